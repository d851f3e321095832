// Batch normalisation with batch statistics, with a residual and an activation behind it.
//
// Statistics are read in one pass over x, then y = act(x * scale + offset (+ residual)) in a second one.
// Inference mode has no class here: its scale and offset are constants, which the convolution before it (or a
// pointwise kernel) takes in.
#ifndef STITCH_CPU_BATCHNORM_H_
#define STITCH_CPU_BATCHNORM_H_

#include <omp.h>

#include "stitch/common/status.h"
#include "stitch/cpu/buffer.h"
#include "stitch/cpu/channel_stats.h"

namespace stitch::cpu {

struct BatchNormOptions {
  int64_t images = 0;    // N
  int64_t area = 0;      // H * W
  int64_t channels = 0;  // C
  float eps = 1e-5f;
  float momentum = 0.1f;  // of the running statistics
  float slope = 0.0f;     // of kLeakyRelu
};

// kChannelsLast: x, y and residual are [N][H*W][C]; else [N][C][H*W].
template <bool kChannelsLast, Epilogue kAct = Epilogue::kNone, bool kResidual = false>
class BatchNorm {
 public:
  int32_t init(const BatchNormOptions& options) {
    options_ = options;
    const size_t c = options.channels;
    return folded_.reserve(sizeof(float) * 2 * c) ? STITCH_OK
                                                  : STITCH_OUT_OF_MEMORY;  // STITCH_OK, STITCH_OUT_OF_MEMORY
  }

  // gamma and beta may be null. mean_in and var_in: running statistics to update into mean_out and var_out
  // (null: none are kept). Returns STITCH_OK, or STITCH_OUT_OF_MEMORY.
  int32_t run(const float* x, const float* gamma, const float* beta, const float* residual,
              const float* mean_in, const float* var_in, float* mean_out, float* var_out, float* y,
              int threads) {
    const BatchNormOptions& o = options_;
    if (o.images * o.area * o.channels == 0) return STITCH_OK;
    if (!partial_.reserve(sizeof(double) * 2 * stride() * threads)) return STITCH_OUT_OF_MEMORY;
    float *scale = folded_.floats(), *offset = scale + o.channels;
#pragma omp parallel num_threads(threads)
    {
      const int64_t team = omp_get_num_threads(), thread = omp_get_thread_num();
      measure(x, thread, team);
#pragma omp barrier
      // Every thread folds a share of the channels; each is a handful of additions.
      for (int64_t c = o.channels * thread / team; c < o.channels * (thread + 1) / team; ++c) {
        double mean = 0.0, variance = 0.0;
        combine(x, c, team, &mean, &variance);
        const double count = static_cast<double>(o.images * o.area);
        const float inverse = static_cast<float>(1.0 / std::sqrt(variance + o.eps));
        scale[c] = (gamma ? gamma[c] : 1.0f) * inverse;
        offset[c] = (beta ? beta[c] : 0.0f) - static_cast<float>(mean) * scale[c];
        if (mean_out) mean_out[c] = mean_in[c] + o.momentum * (static_cast<float>(mean) - mean_in[c]);
        if (var_out) {
          const float unbiased = static_cast<float>(variance * (count / (count - 1.0)));
          var_out[c] = var_in[c] + o.momentum * (unbiased - var_in[c]);
        }
      }
#pragma omp barrier
      apply(x, scale, offset, residual, y, thread, team);
    }
    return STITCH_OK;
  }

 private:
  // Doubles between two threads' partial sums: whole cache lines.
  int64_t stride() const { return (options_.channels + 7) / 8 * 8; }
  double* partial(int64_t thread) const {
    return static_cast<double*>(partial_.data()) + thread * 2 * stride();
  }

  // A value of the channel itself, from which differences are summed.
  float shift(const float* x, int64_t c) const { return x[kChannelsLast ? c : c * options_.area]; }

  void measure(const float* x, int64_t thread, int64_t team) const {
    const BatchNormOptions& o = options_;
    double *sums = partial(thread), *squares = sums + stride();
    std::fill_n(sums, 2 * stride(), 0.0);
    if constexpr (kChannelsLast) {
      const int64_t rows = o.images * o.area, begin = rows * thread / team, end = rows * (thread + 1) / team;
      channel_sums(x + begin * o.channels, end - begin, o.channels, x, sums, squares);
    } else {
      const int64_t planes = o.images * o.channels;
      for (int64_t p = planes * thread / team; p < planes * (thread + 1) / team; ++p) {
        const int64_t c = p % o.channels;
        plane_sums(x + p * o.area, o.area, shift(x, c), sums + c, squares + c);
      }
    }
  }

  void combine(const float* x, int64_t c, int64_t team, double* mean, double* variance) const {
    double total = 0.0, square = 0.0;
    for (int64_t t = 0; t < team; ++t) {
      total += partial(t)[c];
      square += partial(t)[stride() + c];
    }
    const double count = static_cast<double>(options_.images * options_.area), offset = total / count;
    *mean = shift(x, c) + offset;
    *variance = math::maximum(square / count - offset * offset, 0.0);
  }

  void apply(const float* x, const float* scale, const float* offset, const float* residual, float* y,
             int64_t thread, int64_t team) const {
    const BatchNormOptions& o = options_;
    if constexpr (kChannelsLast) {
      const int64_t rows = o.images * o.area, begin = rows * thread / team, end = rows * (thread + 1) / team;
      const int64_t at = begin * o.channels;
      apply_rows<kAct, kResidual>(x + at, end - begin, o.channels, scale, offset,
                                  kResidual ? residual + at : nullptr, o.slope, y + at);
    } else {
      const int64_t planes = o.images * o.channels;
      for (int64_t p = planes * thread / team; p < planes * (thread + 1) / team; ++p) {
        const int64_t c = p % o.channels, at = p * o.area;
        apply_plane<kAct, kResidual>(x + at, o.area, scale[c], offset[c], kResidual ? residual + at : nullptr,
                                     o.slope, y + at);
      }
    }
  }

  BatchNormOptions options_;
  Buffer partial_;  // [thread][sum, square][channel]
  Buffer folded_;   // scale[channel], offset[channel]
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_BATCHNORM_H_
