// Convolutions of images that lie as [N][C][H][W] and stay so: where a chain of operations has no convolution
// that needs channels-last images, bringing them into that order and back would cost more than it saves.
//
//   PlanarProduct     windows of one pixel: a matrix product by cuBLASLt, [out, in] by [in, pixels], for each
//                     image and group
//   PlanarDepthwise   a window for each channel
//   PlanarDirect      few channels and a small window: all that a result needs fits a thread's registers, and
//                     the result is written once
//
// Each ends with out = relu(sum + bias + residual), where the options have those. The result may be a slice
// of a wider image's channels: `out_image` elements lie between its images. Weights are packed as
// conv_kernels.cuh does it, with a normalisation folded in.
#ifndef STITCH_CUDA_PLANAR_CONV_CUH_
#define STITCH_CUDA_PLANAR_CONV_CUH_

#include "stitch/cuda/conv_kernels.cuh"
#include "stitch/cuda/gemm.cuh"

namespace stitch::cuda {

// What follows the sum of one result; addresses are those of the result's channel and element.
__device__ __forceinline__ float planar_finished(float value, const float* bias, const float* residual,
                                                 bool relu) {
  if (bias != nullptr) value += *bias;
  if (residual != nullptr) value += *residual;
  return relu && value < 0.0f ? 0.0f : value;  // NaN is not below 0
}

// ---- windows of one pixel ------------------------------------------------------------------------------

// The end of a product: V neighbouring pixels of one channel, in place.
template <int V>
struct FinishPlanes {
  float* out;
  const float* bias;
  const float* residual;  // dense
  int64_t out_image;
  Divisor groups_of_plane, channels;  // groups of V pixels in a plane; planes of an image
  int64_t area;
  bool relu;

  __device__ void operator()(int64_t i) const {
    uint32_t at, channel;
    const uint32_t plane = groups_of_plane.split(static_cast<uint32_t>(i), at);
    const int64_t image = channels.split(plane, channel);
    float* to = out + image * out_image + channel * area + int64_t{at} * V;
    Group<float, V> value = load<V>(to), more;
    if (residual != nullptr) more = load<V>(residual + plane * area + int64_t{at} * V);
#pragma unroll
    for (int e = 0; e < V; ++e) {
      value[e] = planar_finished(value[e], bias != nullptr ? bias + channel : nullptr,
                                 residual != nullptr ? &more[e] : nullptr, relu);
    }
    store(to, value);
  }
};

class PlanarProduct {
 public:
  // Tensors are torch's; all but `weight` may be null.
  int32_t init(CublasLt& library, const Call& call, const ConvOptions& options, int64_t out_image,
               const float* weight, const float* bias = nullptr, const float* gamma = nullptr,
               const float* beta = nullptr, const float* mean = nullptr, const float* variance = nullptr,
               float eps = 0.0f) {
    options_ = options, out_image_ = out_image;
    const ConvOptions& o = options;
    if (o.pixels() * o.out_channels >= kMostDividend) {
      return call.errors->fail(STITCH_UNSUPPORTED, "the images are too large for a convolution");
    }
    STITCH_TRY(weights_.pack(call, o, weight, bias, {gamma, beta, mean, variance, eps}));
    // One call has a batch of images for each group, or of groups for each image: whichever are fewer calls.
    by_image_ = o.images < o.groups;
    const int64_t group_weight = o.out_share() * o.in_share();
    GemmOptions product;
    product.m = o.out_share();
    product.n = area();
    product.k = o.in_share();
    product.batch = by_image_ ? o.groups : o.images;
    product.a = {false, o.in_share(), by_image_ ? group_weight : 0};
    product.b = {false, area(), by_image_ ? o.in_share() * area() : o.in_channels * area()};
    product.d = {false, area(), by_image_ ? o.out_share() * area() : out_image};
    product.allow_tf32 = o.allow_tf32;
    return product_.init(library, product);
  }
  size_t workspace_bytes() const { return product_.workspace_bytes(); }

  // `residual` is null where the options have none.
  int32_t run(const Call& call, const float* source, float* out, const float* residual = nullptr) const {
    const ConvOptions& o = options_;
    const int64_t calls = by_image_ ? o.images : o.groups;
    for (int64_t i = 0; i < calls; ++i) {
      const float* from = source + i * (by_image_ ? o.in_channels : o.in_share()) * area();
      const float* weight = weights_.weight() + (by_image_ ? 0 : i * o.out_share() * o.in_share());
      float* to = out + i * (by_image_ ? out_image_ : o.out_share() * area());
      STITCH_TRY(product_.run(call, weight, from, to));
    }
    if (weights_.bias() == nullptr && residual == nullptr && !o.relu) return STITCH_OK;
    constexpr int V = 4;  // the planes are whole groups: products are promised aligned addresses
    const FinishPlanes<V> finish{
        out,    weights_.bias(), residual, out_image_, Divisor(area() / V), Divisor(o.out_channels),
        area(), o.relu};
    return each("finish a convolution", o.pixels() * o.out_channels / V, finish, call);
  }

 private:
  int64_t area() const { return options_.height * options_.width; }

  ConvOptions options_;
  int64_t out_image_ = 0;
  bool by_image_ = false;
  ConvWeights weights_;
  Gemm product_;
};

// ---- a window for each channel -------------------------------------------------------------------------

// Where a thread's results lie: R rows of one column of a plane.
struct PlanarTiles {
  Divisor columns, tiles, channels;

  PlanarTiles() = default;
  PlanarTiles(const ConvOptions& o, int rows)
      : columns(o.out_width), tiles(ceil_div(o.out_height, rows)), channels(o.out_channels) {}
};

// KH x KW: the window; S: its stride. Neighbouring threads take neighbouring columns.
template <int KH, int KW, int S, int R>
struct DepthwisePlanes {
  static constexpr int kReadRows = (R - 1) * S + KH;

  const float* source;
  const float* weight;  // [channel][KH][KW]
  const float* bias;    // or null
  const float* residual;
  float* out;
  int64_t out_image;
  PlanarTiles places;
  int32_t height, width, out_height, out_width, out_channels;
  int32_t top, left;  // padding
  bool relu;

  __device__ void operator()(int64_t i) const {
    uint32_t column, tile, channel;
    uint32_t rest = places.columns.split(static_cast<uint32_t>(i), column);
    const int64_t plane = places.tiles.split(rest, tile);
    const int64_t image = places.channels.split(static_cast<uint32_t>(plane), channel);
    float factor[KH][KW];
#pragma unroll
    for (int tap = 0; tap < KH * KW; ++tap) factor[tap / KW][tap % KW] = weight[channel * KH * KW + tap];
    float sums[R] = {};
    const int32_t row = static_cast<int32_t>(tile) * R, begin = row * S - top;
    const int32_t x = static_cast<int32_t>(column) * S - left;
    const float* from = source + plane * height * width;
#pragma unroll
    for (int r = 0; r < kReadRows; ++r) {
      const int32_t y = begin + r;
      const bool there = y >= 0 && y < height;
      float read[KW];
#pragma unroll
      for (int k = 0; k < KW; ++k) {
        read[k] = there && x + k >= 0 && x + k < width ? from[int64_t{y} * width + x + k] : 0.0f;
      }
#pragma unroll
      for (int t = 0; t < R; ++t) {
        const int tap = r - t * S;
        if (tap < 0 || tap >= KH) continue;
#pragma unroll
        for (int k = 0; k < KW; ++k) sums[t] += read[k] * factor[tap][k];
      }
    }
#pragma unroll
    for (int t = 0; t < R; ++t) {
      if (row + t >= out_height) continue;
      const int64_t at = int64_t{row + t} * out_width + column, within = int64_t{out_height} * out_width;
      const float* more = residual != nullptr ? residual + plane * within + at : nullptr;
      out[image * out_image + channel * within + at] =
          planar_finished(sums[t], bias != nullptr ? bias + channel : nullptr, more, relu);
    }
  }
};

template <int KH, int KW, int S, int R>
class PlanarDepthwise {
 public:
  // Tensors are torch's; all but `weight` may be null.
  int32_t init(const Call& call, const ConvOptions& options, int64_t out_image, const float* weight,
               const float* bias = nullptr, const float* gamma = nullptr, const float* beta = nullptr,
               const float* mean = nullptr, const float* variance = nullptr, float eps = 0.0f) {
    options_ = options, out_image_ = out_image;
    if (count() >= kMostDividend || options.height * options.width >= kMostDividend) {
      return call.errors->fail(STITCH_UNSUPPORTED, "the images are too large for a convolution");
    }
    return weights_.pack(call, options, weight, bias, {gamma, beta, mean, variance, eps});
  }
  size_t workspace_bytes() const { return 0; }

  // `residual` is null where the options have none.
  int32_t run(const Call& call, const float* source, float* out, const float* residual = nullptr) const {
    const ConvOptions& o = options_;
    const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
    const DepthwisePlanes<KH, KW, S, R> planes{source,
                                               weights_.weight(),
                                               weights_.bias(),
                                               residual,
                                               out,
                                               out_image_,
                                               PlanarTiles(o, R),
                                               narrow(o.height),
                                               narrow(o.width),
                                               narrow(o.out_height),
                                               narrow(o.out_width),
                                               narrow(o.out_channels),
                                               narrow(o.padding[0]),
                                               narrow(o.padding[1]),
                                               o.relu};
    return each("depthwise convolution", count(), planes, call);
  }

 private:
  int64_t count() const {
    const ConvOptions& o = options_;
    return o.images * o.out_channels * ceil_div(o.out_height, R) * o.out_width;
  }

  ConvOptions options_;
  int64_t out_image_ = 0;
  ConvWeights weights_;
};

// ---- few channels --------------------------------------------------------------------------------------

// C channels to K, a window of KH x KW, stride 1. A thread keeps what P neighbouring pixels of one row need
// in registers, and writes them for every channel; the weights lie in shared memory, where a warp reads one
// address.
template <int C, int K, int KH, int KW, int P>
struct DirectPlanes {
  static constexpr int kThreads = 128, kPhases = 2, kTaps = C * KH * KW, kColumns = P + KW - 1;
  struct Shared {
    float weight[K][kTaps];
  };
  struct Thread {};

  const float* source;
  const float* weight;  // [K][KH][KW][C], as packed
  const float* bias;    // or null
  const float* residual;
  float* out;
  int64_t out_image, count;
  Divisor groups, rows;  // groups of P columns of a row of results; rows of an image
  int32_t height, width, out_height, out_width;
  int32_t top, left;  // padding
  bool relu;

  template <int Phase>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared& shared, Thread&) const {
    if constexpr (Phase == 0) {
      for (int i = thread; i < K * kTaps; i += kThreads) shared.weight[i / kTaps][i % kTaps] = weight[i];
    } else {
      const int64_t i = block * kThreads + thread;
      if (i < count) compute(static_cast<uint32_t>(i), shared);
    }
  }

 private:
  __device__ __forceinline__ void compute(uint32_t i, const Shared& shared) const {
    uint32_t group, row;
    const uint32_t line = groups.split(i, group);
    const int64_t image = rows.split(line, row);
    float in[kTaps / KW][kColumns];  // [KH][C]
    read(image, static_cast<int32_t>(row), static_cast<int32_t>(group) * P, in);
    const int64_t area = int64_t{out_height} * out_width;
    const int64_t at = int64_t{row} * out_width + int64_t{group} * P;
#pragma unroll 2
    for (int channel = 0; channel < K; ++channel) {
      Group<float, P> sums{}, more{};
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        const float factor = shared.weight[channel][tap];
        const int c = tap % C, kx = tap / C % KW, ky = tap / C / KW;
#pragma unroll
        for (int p = 0; p < P; ++p) sums[p] += in[ky * C + c][kx + p] * factor;
      }
      if (residual != nullptr) more = load<P>(residual + (image * K + channel) * area + at);
#pragma unroll
      for (int p = 0; p < P; ++p) {
        sums[p] = planar_finished(sums[p], bias != nullptr ? bias + channel : nullptr,
                                  residual != nullptr ? &more[p] : nullptr, relu);
      }
      store(out + image * out_image + channel * area + at, sums);
    }
  }

  // Zeros beside the image.
  __device__ __forceinline__ void read(int64_t image, int32_t row, int32_t column,
                                       float (&in)[kTaps / KW][kColumns]) const {
#pragma unroll
    for (int ky = 0; ky < KH; ++ky) {
      const int32_t y = row + ky - top;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float* from = source + ((image * C + c) * height + y) * width;
#pragma unroll
        for (int q = 0; q < kColumns; ++q) {
          const int32_t x = column + q - left;
          const bool there = y >= 0 && y < height && x >= 0 && x < width;
          in[ky * C + c][q] = there ? from[x] : 0.0f;
        }
      }
    }
  }
};

// P divides the results' width.
template <int C, int K, int KH, int KW, int P>
class PlanarDirect {
 public:
  using Planes = DirectPlanes<C, K, KH, KW, P>;

  // Tensors are torch's; all but `weight` may be null.
  int32_t init(const Call& call, const ConvOptions& options, int64_t out_image, const float* weight,
               const float* bias = nullptr, const float* gamma = nullptr, const float* beta = nullptr,
               const float* mean = nullptr, const float* variance = nullptr, float eps = 0.0f) {
    options_ = options, out_image_ = out_image;
    if (options.pixels() >= kMostDividend || options.out_pixels() >= kMostDividend) {
      return call.errors->fail(STITCH_UNSUPPORTED, "the images are too large for a convolution");
    }
    return weights_.pack(call, options, weight, bias, {gamma, beta, mean, variance, eps});
  }
  size_t workspace_bytes() const { return 0; }

  // `residual` is null where the options have none.
  int32_t run(const Call& call, const float* source, float* out, const float* residual = nullptr) const {
    const ConvOptions& o = options_;
    const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
    const int64_t count = o.out_pixels() / P;
    const Planes planes{source,
                        weights_.weight(),
                        weights_.bias(),
                        residual,
                        out,
                        out_image_,
                        count,
                        Divisor(o.out_width / P),
                        Divisor(o.out_height),
                        narrow(o.height),
                        narrow(o.width),
                        narrow(o.out_height),
                        narrow(o.out_width),
                        narrow(o.padding[0]),
                        narrow(o.padding[1]),
                        o.relu};
    return blocks("convolution of few channels", ceil_div(count, Planes::kThreads), planes, call);
  }

 private:
  ConvOptions options_;
  int64_t out_image_ = 0;
  ConvWeights weights_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_PLANAR_CONV_CUH_
