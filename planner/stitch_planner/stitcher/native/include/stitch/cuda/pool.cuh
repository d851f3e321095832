// Maxima and averages of windows of images, [N][C][D][H][W] or channels last; images of two dims have a depth
// of 1.
//
// A thread makes one result, of V neighbouring channels where channels are innermost. Windows that overlap
// read what their neighbours have brought into the cache. Small windows on planes [H][W] are unrolled
// instead: a thread makes several results of a column, and reads what their windows share once. Other small
// windows have their sizes as constants, so that all elements of one are on their way at once.
#ifndef STITCH_CUDA_POOL_CUH_
#define STITCH_CUDA_POOL_CUH_

#include "stitch/common/math.h"
#include "stitch/cuda/constants.cuh"
#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

enum class Pooling { kMax, kAverage };

// Along one dim; the window of result o covers input o * stride - padding + i * dilation, i < kernel.
struct PoolDim {
  int64_t input = 1, output = 1;
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;
};

struct PoolOptions {
  int64_t images = 0, channels = 0;
  PoolDim depth, height, width;
  bool count_padding = true;  // of averages: whether padding counts as elements
  int64_t divisor = 0;        // of averages: what a sum is divided by instead; 0: the number of elements
};

// The elements of one window along a dim that exist: first, first + step, ... below end.
struct PoolSpan {
  int first, end, step, counted;
};

// kAdaptive: the window follows from both sizes; kernel, stride, padding and dilation are not read.
template <bool kAdaptive>
__device__ __forceinline__ PoolSpan span_of(const PoolDim& dim, int64_t o) {
  const int input = static_cast<int>(dim.input);
  if constexpr (kAdaptive) {
    const int first = static_cast<int>(o * dim.input / dim.output);
    const int end = static_cast<int>(((o + 1) * dim.input + dim.output - 1) / dim.output);
    return {first, end, 1, end - first};
  } else {
    const int step = static_cast<int>(dim.dilation);
    const int begin = static_cast<int>(o * dim.stride - dim.padding);
    const int end = begin + static_cast<int>(dim.kernel) * step;
    // An average counts padding, but nothing beyond it (a window that ceil_mode has let hang over).
    const int padded = input + static_cast<int>(dim.padding);
    const int first = begin >= 0 ? begin : begin + (-begin + step - 1) / step * step;
    return {first, end < input ? end : input, step, (end < padded ? end : padded) - begin};
  }
}

// KD x KH x KW: the window, 0 where it is known to the call only.
template <Pooling kKind, bool kAdaptive, bool kChannelsLast, int V, int KD, int KH, int KW>
struct PoolWindows {
  const float* x;
  float* y;
  PoolDim depth, height, width;
  int64_t channels;
  bool count_padding;
  int64_t divisor;
  // Of results: groups of channels (channels last), or planes.
  Divisor by_channels, by_width, by_height, by_depth;

  __device__ __forceinline__ void operator()(int64_t i) const {
    uint32_t rest = static_cast<uint32_t>(i), group = 0, ox, oy, oz;
    if constexpr (kChannelsLast) rest = by_channels.split(rest, group);
    rest = by_width.split(rest, ox);
    rest = by_height.split(rest, oy);
    const int64_t image = by_depth.split(rest, oz);  // and channel, where channels are outside
    const int64_t pixels = depth.input * height.input * width.input;
    // Elements between neighbours along the width.
    const int64_t next = kChannelsLast ? channels : 1;
    const float* from = x + image * pixels * next + int64_t{group} * V;
    const PoolSpan zs = span_of<kAdaptive>(depth, oz), ys = span_of<kAdaptive>(height, oy);
    const PoolSpan xs = span_of<kAdaptive>(width, ox);
    Group<float, V> total;
#pragma unroll
    for (int e = 0; e < V; ++e) total[e] = kKind == Pooling::kMax ? kLeast<float> : 0.0f;
    if constexpr (KD > 0) {
      take_all(from, oz, oy, ox, next, total);
    } else {
      for (int z = zs.first; z < zs.end; z += zs.step) {
        for (int y_at = ys.first; y_at < ys.end; y_at += ys.step) {
          const float* line = from + (z * height.input + y_at) * width.input * next;
#pragma unroll 4
          for (int x_at = xs.first; x_at < xs.end; x_at += xs.step) take(load<V>(line + x_at * next), total);
        }
      }
    }
    if constexpr (kKind == Pooling::kAverage) {
      const float count = static_cast<float>(counted(zs, ys, xs));
#pragma unroll
      for (int e = 0; e < V; ++e) total[e] /= count;
    }
    store(y + i * V, total);
  }

 private:
  static constexpr float kNothing = kKind == Pooling::kMax ? kLeast<float> : 0.0f;

  // Elements beyond the image count nothing; those of a line are loaded before any is taken.
  __device__ __forceinline__ void take_all(const float* from, int64_t oz, int64_t oy, int64_t ox,
                                           int64_t next, Group<float, V>& total) const {
    const int z_first = static_cast<int>(oz * depth.stride - depth.padding);
    const int y_first = static_cast<int>(oy * height.stride - height.padding);
    const int x_first = static_cast<int>(ox * width.stride - width.padding);
    const int z_step = static_cast<int>(depth.dilation), y_step = static_cast<int>(height.dilation);
    const int x_step = static_cast<int>(width.dilation);
#pragma unroll
    for (int i = 0; i < KD; ++i) {
      const int z = z_first + i * z_step;
      const bool in_depth = z >= 0 && z < depth.input;
#pragma unroll
      for (int j = 0; j < KH; ++j) {
        const int y_at = y_first + j * y_step;
        const bool in_plane = in_depth && y_at >= 0 && y_at < height.input;
        const float* line = from + (int64_t{z} * height.input + y_at) * width.input * next;
        Group<float, V> items[KW];
#pragma unroll
        for (int k = 0; k < KW; ++k) {
          const int x_at = x_first + k * x_step;
          const bool there = in_plane && x_at >= 0 && x_at < width.input;
#pragma unroll
          for (int e = 0; e < V; ++e) items[k][e] = kNothing;
          if (there) items[k] = load<V>(line + x_at * next);
        }
#pragma unroll
        for (int k = 0; k < KW; ++k) take(items[k], total);
      }
    }
  }

  __device__ __forceinline__ static void take(const Group<float, V>& in, Group<float, V>& total) {
#pragma unroll
    for (int e = 0; e < V; ++e) {
      if constexpr (kKind == Pooling::kMax) {
        total[e] = math::maximum(total[e], in[e]);  // passes NaN on
      } else {
        total[e] += in[e];
      }
    }
  }
  __device__ __forceinline__ int64_t counted(const PoolSpan& zs, const PoolSpan& ys,
                                             const PoolSpan& xs) const {
    if (divisor != 0) return divisor;
    if (count_padding) return int64_t{zs.counted} * ys.counted * xs.counted;
    return int64_t{zs.end - zs.first} * (ys.end - ys.first) * (xs.end - xs.first);
  }
};

// V: neighbouring channels that a thread takes; divides their number. 1 where channels are outside.
template <Pooling kKind, bool kAdaptive, bool kChannelsLast, int V, int KD = 0, int KH = 0, int KW = 0>
class Pool {
 public:
  int32_t init(const PoolOptions& options) {
    options_ = options;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  int32_t run(const Call& call, const float* x, float* y) const {
    const PoolOptions& o = options_;
    using Windows = PoolWindows<kKind, kAdaptive, kChannelsLast, V, KD, KH, KW>;
    const Windows windows{x,
                          y,
                          o.depth,
                          o.height,
                          o.width,
                          o.channels,
                          o.count_padding,
                          o.divisor,
                          Divisor(o.channels / V),
                          Divisor(o.width.output),
                          Divisor(o.height.output),
                          Divisor(o.depth.output)};
    const int64_t pixels = o.depth.output * o.height.output * o.width.output;
    return each("pool", o.images * o.channels / V * pixels, windows, call);
  }

 private:
  PoolOptions options_;
};

// R results of one column of a plane. KH x KW: the window; S: its stride.
template <Pooling kKind, int KH, int KW, int S, int R>
struct PoolPlanes {
  static constexpr int kReadRows = (R - 1) * S + KH;

  const float* x;
  float* y;
  PoolDim height, width;
  bool count_padding;
  int64_t divisor;
  Divisor columns, tiles;

  __device__ __forceinline__ void operator()(int64_t i) const {
    uint32_t column, tile;
    const int64_t plane = tiles.split(columns.split(static_cast<uint32_t>(i), column), tile);
    const int first = static_cast<int>(tile) * R;
    const int top = first * S - static_cast<int>(height.padding);
    const int left = static_cast<int>(column) * S - static_cast<int>(width.padding);
    const int rows = static_cast<int>(height.input), across = static_cast<int>(width.input);
    const float* from = x + plane * height.input * width.input;
    float totals[R];
#pragma unroll
    for (int t = 0; t < R; ++t) totals[t] = kNothing;
#pragma unroll
    for (int r = 0; r < kReadRows; ++r) {
      const int row = top + r;
      float line = kNothing;
#pragma unroll
      for (int k = 0; k < KW; ++k) {
        const int at = left + k;
        const bool there = row >= 0 && row < rows && at >= 0 && at < across;
        line = joined(line, there ? from[int64_t{row} * across + at] : kNothing);
      }
#pragma unroll
      for (int t = 0; t < R; ++t) {
        if (r - t * S >= 0 && r - t * S < KH) totals[t] = joined(totals[t], line);
      }
    }
#pragma unroll
    for (int t = 0; t < R; ++t) {
      if (first + t >= height.output) continue;
      const float result = kKind == Pooling::kMax ? totals[t] : totals[t] / count(first + t, column);
      y[(plane * height.output + first + t) * width.output + column] = result;
    }
  }

 private:
  static constexpr float kNothing = kKind == Pooling::kMax ? kLeast<float> : 0.0f;

  __device__ __forceinline__ static float joined(float a, float b) {
    return kKind == Pooling::kMax ? math::maximum(a, b) : a + b;  // a maximum passes NaN on
  }
  __device__ __forceinline__ float count(int row, uint32_t column) const {
    if (divisor != 0) return static_cast<float>(divisor);
    const PoolSpan ys = span_of<false>(height, row), xs = span_of<false>(width, column);
    return static_cast<float>(count_padding ? ys.counted * xs.counted
                                            : (ys.end - ys.first) * (xs.end - xs.first));
  }
};

template <Pooling kKind, int KH, int KW, int S, int R>
class PlanarPool {
 public:
  int32_t init(const PoolOptions& options) {
    options_ = options;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  int32_t run(const Call& call, const float* x, float* y) const {
    const PoolOptions& o = options_;
    const int64_t tiles = ceil_div(o.height.output, R);
    const PoolPlanes<kKind, KH, KW, S, R> planes{
        x, y, o.height, o.width, o.count_padding, o.divisor, Divisor(o.width.output), Divisor(tiles)};
    // A plane of a volume is pooled alone: the window has a depth of 1.
    return each("pool", o.images * o.channels * o.depth.output * tiles * o.width.output, planes, call);
  }

 private:
  PoolOptions options_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_POOL_CUH_
