// Depthwise convolutions of channels-last images: every channel has a window of its own, so there are no
// products of matrices to be had, and memory is the limit.
//
// A thread computes a tile of neighbouring pixels for V neighbouring channels: it reads a row of the source
// once for all windows that the tile has on it, and keeps the sums in registers. Neighbouring threads take
// neighbouring channels, so that all accesses run through memory in lines.
#ifndef STITCH_CUDA_DEPTHWISE_CUH_
#define STITCH_CUDA_DEPTHWISE_CUH_

#include "stitch/cuda/conv_kernels.cuh"

namespace stitch::cuda {

// KH x KW: the window; S: the stride along both axes, or along the width where KH is 1; V: 1, 2 or 4
// channels, of which the image has a multiple. R x C: pixels of a tile. Larger ones read less where windows
// overlap, smaller ones make more threads.
template <int KH, int KW, int S, int V, int R, int C>
struct DepthwiseTile {
  static constexpr int kRows = R;
  static constexpr int kColumns = C;
  static constexpr int kRowStride = KH > 1 ? S : 1;
  static constexpr int kReadRows = (kRows - 1) * kRowStride + KH;
  static constexpr int kReadColumns = (kColumns - 1) * S + KW;
  using Values = Group<float, V>;

  const float* source;
  const float* weight;  // [KH][KW][channels]
  const float* bias;    // or null
  const float* residual;
  float* out;
  int32_t height, width, out_height, out_width;
  int32_t top, left;  // padding
  uint32_t channels, tiles_down, tiles_across;
  bool relu;

  __device__ void operator()(int64_t i) const {
    uint32_t rest = static_cast<uint32_t>(i);
    const uint32_t groups = channels / V;
    const uint32_t channel = rest % groups * V;
    rest /= groups;
    const int32_t column = static_cast<int32_t>(rest % tiles_across) * kColumns;
    rest /= tiles_across;
    const int32_t row = static_cast<int32_t>(rest % tiles_down) * kRows;
    const int64_t image = rest / tiles_down;
    Values sums[kRows][kColumns] = {};
#pragma unroll
    for (int r = 0; r < kReadRows; ++r) {
      const int32_t y = row * kRowStride - top + r;
      if (y < 0 || y >= height) continue;
      Values read[kReadColumns];
      load_row(read, (image * height + y) * width, column * S - left, channel);
#pragma unroll
      for (int t = 0; t < kRows; ++t) {
        const int tap = r - t * kRowStride;
        if (tap >= 0 && tap < KH) add_row(sums[t], read, tap, channel);
      }
    }
    write(sums, image, row, column, channel);
  }

 private:
  // A row of the source from `begin` on; zeros beside the image.
  __device__ __forceinline__ void load_row(Values* read, int64_t pixels, int32_t begin,
                                           uint32_t channel) const {
#pragma unroll
    for (int q = 0; q < kReadColumns; ++q) {
      const int32_t x = begin + q;
      read[q] = x >= 0 && x < width ? load<V>(source + (pixels + x) * channels + channel) : Values{};
    }
  }

  // What the window's row `tap` adds to a row of results.
  __device__ __forceinline__ void add_row(Values* sums, const Values* read, int tap, uint32_t channel) const {
#pragma unroll
    for (int k = 0; k < KW; ++k) {
      const Values factor = load<V>(weight + static_cast<uint32_t>(tap * KW + k) * channels + channel);
#pragma unroll
      for (int p = 0; p < kColumns; ++p) {
#pragma unroll
        for (int e = 0; e < V; ++e) sums[p][e] += read[p * S + k][e] * factor[e];
      }
    }
  }

  __device__ __forceinline__ void write(const Values (&sums)[kRows][kColumns], int64_t image, int32_t row,
                                        int32_t column, uint32_t channel) const {
    const float* own = bias != nullptr ? bias + channel : nullptr;
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
#pragma unroll
      for (int p = 0; p < kColumns; ++p) {
        if (row + t >= out_height || column + p >= out_width) continue;
        const int64_t pixel = (image * out_height + row + t) * out_width + column + p;
        const int64_t at = pixel * channels + channel;
        const float* added = residual != nullptr ? residual + at : nullptr;
        store(out + at, finished<V>(sums[t][p], own, added, relu));
      }
    }
  }
};

template <int KH, int KW, int S, int V, int R, int C>
class DepthwiseConv {
 public:
  using Tile = DepthwiseTile<KH, KW, S, V, R, C>;

  // Tensors are torch's; all but `weight` may be null.
  int32_t init(const Call& call, const ConvOptions& options, const float* weight, const float* bias = nullptr,
               const float* gamma = nullptr, const float* beta = nullptr, const float* mean = nullptr,
               const float* variance = nullptr, float eps = 0.0f) {
    options_ = options;
    if (options.empty()) return STITCH_OK;
    down_ = ceil_div(options.out_height, Tile::kRows);
    across_ = ceil_div(options.out_width, Tile::kColumns);
    if (count() >= kMostIndices || options.height >= INT32_MAX / 2 || options.width >= INT32_MAX / 2) {
      return call.errors->fail(STITCH_UNSUPPORTED, "the images are too large for a convolution");
    }
    return weights_.pack(call, options, weight, bias, {gamma, beta, mean, variance, eps}, /*spread=*/true);
  }

  size_t workspace_bytes() const { return 0; }

  // `residual` is null where the options have none.
  int32_t run(const Call& call, const float* source, float* out, const float* residual = nullptr) const {
    const ConvOptions& o = options_;
    if (o.empty()) return STITCH_OK;
    const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
    const Tile tile{source,
                    weights_.weight(),
                    weights_.bias(),
                    residual,
                    out,
                    narrow(o.height),
                    narrow(o.width),
                    narrow(o.out_height),
                    narrow(o.out_width),
                    narrow(o.padding[0]),
                    narrow(o.padding[1]),
                    static_cast<uint32_t>(o.in_channels),
                    static_cast<uint32_t>(down_),
                    static_cast<uint32_t>(across_),
                    o.relu};
    return each("depthwise convolution", count(), tile, call);
  }

 private:
  int64_t count() const { return options_.images * down_ * across_ * (options_.in_channels / V); }

  ConvOptions options_;
  ConvWeights weights_;
  int64_t down_ = 0, across_ = 0;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_DEPTHWISE_CUH_
