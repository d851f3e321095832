// Group normalisation (and instance normalisation: as many groups as channels), with a residual and an
// activation behind it.
//
// An image's rows are cut into pieces so that all threads have work even for one image. Each piece leaves its
// partial sums; after a barrier every piece's thread folds the image's group statistics into a scale and an
// offset for each channel and writes its rows.
#ifndef STITCH_CPU_GROUPNORM_H_
#define STITCH_CPU_GROUPNORM_H_

#include <omp.h>

#include "stitch/common/status.h"
#include "stitch/cpu/buffer.h"
#include "stitch/cpu/channel_stats.h"

namespace stitch::cpu {

struct GroupNormOptions {
  int64_t images = 0;    // N
  int64_t area = 0;      // H * W
  int64_t channels = 0;  // C
  int64_t groups = 1;
  float eps = 1e-5f;
  float slope = 0.0f;  // of kLeakyRelu
};

// kChannelsLast: x, y and residual are [N][H*W][C]; else [N][C][H*W].
template <bool kChannelsLast, Epilogue kAct = Epilogue::kNone, bool kResidual = false>
class GroupNorm {
 public:
  int32_t init(const GroupNormOptions& options) {
    options_ = options;
    return STITCH_OK;
  }

  // gamma and beta may be null. Returns STITCH_OK, or STITCH_OUT_OF_MEMORY.
  int32_t run(const float* x, const float* gamma, const float* beta, const float* residual, float* y,
              int threads) {
    const GroupNormOptions& o = options_;
    if (o.images * o.area * o.channels == 0) return STITCH_OK;
    const int64_t span = kChannelsLast ? o.area : o.channels;  // what an image is cut along
    const int64_t pieces =
        o.images >= threads ? 1 : std::min<int64_t>(span, (threads + o.images - 1) / o.images);
    if (!partial_.reserve(sizeof(double) * o.images * pieces * 2 * o.channels) ||
        !folded_.reserve(sizeof(float) * threads * 2 * padded())) {
      return STITCH_OUT_OF_MEMORY;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
      for (int64_t i = 0; i < o.images * pieces; ++i) {
        const int64_t image = i / pieces, piece = i % pieces;
        measure(x + image * o.area * o.channels, sums(i), span * piece / pieces, span * (piece + 1) / pieces);
      }
      float* scale = folded_.floats() + omp_get_thread_num() * 2 * padded();
#pragma omp for schedule(static)
      for (int64_t i = 0; i < o.images * pieces; ++i) {
        const int64_t image = i / pieces, piece = i % pieces, at = image * o.area * o.channels;
        fold(x + at, image * pieces, pieces, gamma, beta, scale);
        apply(x + at, scale, kResidual ? residual + at : nullptr, y + at, span * piece / pieces,
              span * (piece + 1) / pieces);
      }
    }
    return STITCH_OK;
  }

 private:
  int64_t padded() const { return (options_.channels + kLanes - 1) / kLanes * kLanes; }
  double* sums(int64_t i) const { return static_cast<double*>(partial_.data()) + i * 2 * options_.channels; }
  float shift(const float* x, int64_t c) const { return x[kChannelsLast ? c : c * options_.area]; }

  void measure(const float* x, double* to, int64_t begin, int64_t end) const {
    const GroupNormOptions& o = options_;
    std::fill_n(to, 2 * o.channels, 0.0);
    if constexpr (kChannelsLast) {
      channel_sums(x + begin * o.channels, end - begin, o.channels, x, to, to + o.channels);
    } else {
      for (int64_t c = begin; c < end; ++c) {
        plane_sums(x + c * o.area, o.area, shift(x, c), to + c, to + o.channels + c);
      }
    }
  }

  // Statistics of a group from those of its channels: each channel was summed from a shift of its own.
  void fold(const float* x, int64_t first, int64_t pieces, const float* gamma, const float* beta,
            float* scale) {
    const GroupNormOptions& o = options_;
    const int64_t each = o.channels / o.groups;
    const double area = static_cast<double>(o.area), count = area * static_cast<double>(each);
    float* offset = scale + padded();
    for (int64_t g = 0; g < o.groups; ++g) {
      double mean = 0.0, spread = 0.0;
      for (int64_t c = g * each; c < (g + 1) * each; ++c)
        mean += shift(x, c) + total(first, pieces, c) / area;
      mean /= static_cast<double>(each);
      for (int64_t c = g * each; c < (g + 1) * each; ++c) {
        // sum (x - mean)^2 = sum d^2 + 2 (shift - mean) sum d + area (shift - mean)^2, with d = x - shift
        const double away = shift(x, c) - mean;
        spread +=
            total(first, pieces, o.channels + c) + 2.0 * away * total(first, pieces, c) + area * away * away;
      }
      const float inverse = static_cast<float>(1.0 / std::sqrt(math::maximum(spread / count, 0.0) + o.eps));
      for (int64_t c = g * each; c < (g + 1) * each; ++c) {
        scale[c] = (gamma ? gamma[c] : 1.0f) * inverse;
        offset[c] = (beta ? beta[c] : 0.0f) - static_cast<float>(mean) * scale[c];
      }
    }
  }

  double total(int64_t first, int64_t pieces, int64_t place) const {
    double sum = 0.0;
    for (int64_t p = 0; p < pieces; ++p) sum += sums(first + p)[place];
    return sum;
  }

  void apply(const float* x, const float* scale, const float* residual, float* y, int64_t begin,
             int64_t end) const {
    const GroupNormOptions& o = options_;
    const float* offset = scale + padded();
    if constexpr (kChannelsLast) {
      const int64_t at = begin * o.channels;
      apply_rows<kAct, kResidual>(x + at, end - begin, o.channels, scale, offset,
                                  kResidual ? residual + at : nullptr, o.slope, y + at);
    } else {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t at = c * o.area;
        apply_plane<kAct, kResidual>(x + at, o.area, scale[c], offset[c], kResidual ? residual + at : nullptr,
                                     o.slope, y + at);
      }
    }
  }

  GroupNormOptions options_;
  Buffer partial_;  // [image][piece][sum, square][channel]
  Buffer folded_;   // [thread][scale, offset][channel]
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_GROUPNORM_H_
