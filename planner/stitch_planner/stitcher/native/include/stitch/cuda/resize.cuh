// Nearest-neighbour and bilinear resizing of images, in both orders of memory: a thread makes one result, of
// V neighbouring channels where channels are innermost.
#ifndef STITCH_CUDA_RESIZE_CUH_
#define STITCH_CUDA_RESIZE_CUH_

#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

enum class Resize { kNearest, kBilinear };

struct UpsampleOptions {
  int64_t images = 0, channels = 0;
  int64_t input[2] = {};  // height, width, as all pairs here
  int64_t output[2] = {};
  double scale[2] = {0.0, 0.0};  // the caller's scale factor; 0: output / input
  bool align_corners = false;    // kBilinear only
};

// Result = (1 - part) * input[low] + part * input[high].
struct Tap {
  int low, high;
  float part;
};

// How places of results become places of the input along one axis.
struct ResizeAxis {
  int input = 1;
  float ratio = 1.0f;  // input places between neighbouring results
  bool align_corners = false;

  ResizeAxis() = default;
  ResizeAxis(const UpsampleOptions& o, int axis)
      : input(static_cast<int>(o.input[axis])), align_corners(o.align_corners) {
    const float in = static_cast<float>(o.input[axis]), out = static_cast<float>(o.output[axis]);
    if (o.align_corners) {
      ratio = o.output[axis] > 1 ? (in - 1.0f) / (out - 1.0f) : 0.0f;
    } else {
      ratio = o.scale[axis] > 0.0 ? static_cast<float>(1.0 / o.scale[axis]) : in / out;
    }
  }

  template <Resize kResize>
  __device__ __forceinline__ Tap tap(uint32_t place) const {
    const float at_result = static_cast<float>(place);
    if constexpr (kResize == Resize::kNearest) {
      const int at = static_cast<int>(at_result * ratio);
      const int low = at < input - 1 ? at : input - 1;
      return {low, low, 0.0f};
    } else {
      const float middle = (at_result + 0.5f) * ratio - 0.5f;
      const float at = align_corners ? at_result * ratio : (middle > 0.0f ? middle : 0.0f);
      const int whole = static_cast<int>(at), low = whole < input - 1 ? whole : input - 1;
      return {low, low < input - 1 ? low + 1 : low, at - static_cast<float>(low)};
    }
  }
};

template <Resize kResize, bool kChannelsLast, int V>
struct ResizePixels {
  const float* x;
  float* y;
  ResizeAxis rows, columns;
  int64_t channels, height, width;
  Divisor by_channels, by_width, by_height;

  __device__ __forceinline__ void operator()(int64_t i) const {
    uint32_t rest = static_cast<uint32_t>(i), group = 0, across, down;
    if constexpr (kChannelsLast) rest = by_channels.split(rest, group);
    rest = by_width.split(rest, across);
    const int64_t image = by_height.split(rest, down);  // and channel, where channels are outside
    const int64_t next = kChannelsLast ? channels : 1;
    const float* from = x + image * height * width * next + int64_t{group} * V;
    const Tap h = rows.tap<kResize>(down), w = columns.tap<kResize>(across);
    const auto at = [&](int row, int column) { return load<V>(from + (row * width + column) * next); };
    if constexpr (kResize == Resize::kNearest) {
      store(y + i * V, at(h.low, w.low));
    } else {
      const Group<float, V> a = at(h.low, w.low), b = at(h.low, w.high);
      const Group<float, V> c = at(h.high, w.low), d = at(h.high, w.high);
      Group<float, V> out;
#pragma unroll
      for (int e = 0; e < V; ++e) {
        const float top = a[e] * (1.0f - w.part) + b[e] * w.part;
        const float bottom = c[e] * (1.0f - w.part) + d[e] * w.part;
        out[e] = top * (1.0f - h.part) + bottom * h.part;
      }
      store(y + i * V, out);
    }
  }
};

// V: neighbouring channels that a thread takes; divides their number. 1 where channels are outside.
template <Resize kResize, bool kChannelsLast, int V>
class Upsample {
 public:
  int32_t init(const UpsampleOptions& options) {
    options_ = options;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  int32_t run(const Call& call, const float* x, float* y) const {
    const UpsampleOptions& o = options_;
    const ResizePixels<kResize, kChannelsLast, V> pixels{
        x,          y,          ResizeAxis(o, 0),        ResizeAxis(o, 1),     o.channels,
        o.input[0], o.input[1], Divisor(o.channels / V), Divisor(o.output[1]), Divisor(o.output[0])};
    return each("resize", o.images * o.channels / V * o.output[0] * o.output[1], pixels, call);
  }

 private:
  UpsampleOptions options_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_RESIZE_CUH_
