// Nearest-neighbour and bilinear resizing of images, in both orders of memory.
#ifndef STITCH_CPU_UPSAMPLE_H_
#define STITCH_CPU_UPSAMPLE_H_

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "stitch/common/status.h"
#include "stitch/cpu/vec.h"

namespace stitch::cpu {

enum class Resize { kNearest, kBilinear };

struct UpsampleOptions {
  int64_t images = 0;     // N
  int64_t channels = 0;   // C
  int64_t input[2] = {};  // height, width, as all pairs here
  int64_t output[2] = {};
  double scale[2] = {0.0, 0.0};  // the caller's scale factor; 0: output / input
  bool align_corners = false;    // kBilinear only
};

// kChannelsLast: x and y are [N][H][W][C]; else [N][C][H][W].
template <Resize kResize, bool kChannelsLast>
class Upsample {
 public:
  int32_t init(const UpsampleOptions& options) {
    options_ = options;
    for (int axis = 0; axis < 2; ++axis) {
      taps_[axis].clear();
      for (int64_t i = 0; i < options.output[axis]; ++i) taps_[axis].push_back(tap(axis, i));
    }
    return STITCH_OK;
  }

  int32_t run(const float* x, float* y, int threads) const {
    const UpsampleOptions& o = options_;
    const int64_t in_area = o.input[0] * o.input[1];
    // A task is one output row: of an image, or of a plane.
    const int64_t inner = kChannelsLast ? o.channels : 1,
                  planes = kChannelsLast ? o.images : o.images * o.channels;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < planes * o.output[0]; ++i) {
      const Tap& h = taps_[0][i % o.output[0]];
      const float* from = x + i / o.output[0] * in_area * inner;
      float* to = y + i * o.output[1] * inner;
      if constexpr (kChannelsLast) {
        row_of_pixels(from, h, to);
      } else {
        row_of_plane(from, h, to);
      }
    }
    return STITCH_OK;
  }

 private:
  // Output place = (1 - part) * input[low] + part * input[high].
  struct Tap {
    int64_t low, high;
    float part;
  };

  Tap tap(int axis, int64_t place) const {
    const UpsampleOptions& o = options_;
    const int64_t in = o.input[axis], out = o.output[axis];
    const bool given = o.scale[axis] > 0.0;
    const float ratio =
        given ? static_cast<float>(1.0 / o.scale[axis]) : static_cast<float>(in) / static_cast<float>(out);
    if constexpr (kResize == Resize::kNearest) {
      const int64_t at =
          std::min<int64_t>(static_cast<int64_t>(std::floor(static_cast<float>(place) * ratio)), in - 1);
      return {at, at, 0.0f};
    } else {
      const float whole = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
      const float at = o.align_corners ? whole * static_cast<float>(place)
                                       : std::max(0.0f, (static_cast<float>(place) + 0.5f) * ratio - 0.5f);
      const int64_t low = std::min<int64_t>(static_cast<int64_t>(at), in - 1);
      return {low, std::min(low + 1, in - 1), at - static_cast<float>(low)};
    }
  }

  void row_of_pixels(const float* from, const Tap& h, float* to) const {
    const int64_t c = options_.channels, line = options_.input[1] * c;
    const float *upper = from + h.low * line, *lower = from + h.high * line;
    for (const Tap& w : taps_[1]) {
      if constexpr (kResize == Resize::kNearest) {
        memcpy(to, upper + w.low * c, sizeof(float) * c);
      } else {
        const float *a = upper + w.low * c, *b = upper + w.high * c, *d = lower + w.low * c,
                    *e = lower + w.high * c;
#pragma omp simd
        for (int64_t i = 0; i < c; ++i) to[i] = mix(a[i], b[i], d[i], e[i], h.part, w.part);
      }
      to += c;
    }
  }

  void row_of_plane(const float* from, const Tap& h, float* to) const {
    const float *upper = from + h.low * options_.input[1], *lower = from + h.high * options_.input[1];
    for (const Tap& w : taps_[1]) {
      if constexpr (kResize == Resize::kNearest) {
        *to++ = upper[w.low];
      } else {
        *to++ = mix(upper[w.low], upper[w.high], lower[w.low], lower[w.high], h.part, w.part);
      }
    }
  }

  static STITCH_INLINE float mix(float a, float b, float c, float d, float down, float right) {
    const float top = a * (1.0f - right) + b * right, bottom = c * (1.0f - right) + d * right;
    return top * (1.0f - down) + bottom * down;
  }

  UpsampleOptions options_;
  std::vector<Tap> taps_[2];
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_UPSAMPLE_H_
