// Cross entropy and negative log-likelihood of rows of class scores.
#ifndef STITCH_CPU_LOSS_H_
#define STITCH_CPU_LOSS_H_

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "stitch/common/status.h"
#include "stitch/cpu/buffer.h"
#include "stitch/cpu/vec.h"

namespace stitch::cpu {

enum class Reduction { kNone, kMean, kSum };

struct LossOptions {
  int64_t rows = 0;
  int64_t classes = 0;
  int64_t ignore_index = -100;
  float smoothing = 0.0f;    // label smoothing, kFromLogits only
  float input_scale = 1.0f;  // scores are multiplied by it first, kFromLogits only (1 / temperature)
};

// kFromLogits: the rows are logits (cross_entropy); else log-probabilities (nll_loss).
template <bool kFromLogits, Reduction kReduction>
class ClassLoss {
 public:
  int32_t init(const LossOptions& options) {
    options_ = options;
    return losses_.reserve(sizeof(float) * 2 * options.rows + 1) ? STITCH_OK : STITCH_OUT_OF_MEMORY;
  }

  // `weight` (one for each class) may be null. `out` is one float, or one for each row with kNone.
  // STITCH_UNSUPPORTED when a target is no class.
  int32_t run(const float* scores, const int64_t* target, const float* weight, float* out, int threads) {
    const LossOptions& o = options_;
    float *losses = kReduction == Reduction::kNone ? out : losses_.floats(),
          *weights = losses_.floats() + o.rows;
    bool bad = false;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(|| : bad)
    for (int64_t row = 0; row < o.rows; ++row) {
      const int64_t t = target[row];
      losses[row] = weights[row] = 0.0f;
      if (t == o.ignore_index) continue;
      if (t < 0 || t >= o.classes) {
        bad = true;
        continue;
      }
      weights[row] = weight ? weight[t] : 1.0f;
      losses[row] = loss(scores + row * o.classes, t, weight, weights[row]);
    }
    if (bad) return STITCH_UNSUPPORTED;
    if constexpr (kReduction != Reduction::kNone) {
      double total = 0.0, count = 0.0;
      for (int64_t row = 0; row < o.rows; ++row) {
        total += losses[row];
        count += weights[row];
      }
      // Without a row that counts the mean is 0 / 0 = NaN, as torch gives it.
      *out = static_cast<float>(kReduction == Reduction::kMean ? total / count : total);
    }
    return STITCH_OK;
  }

 private:
  // Classes that are added in one chain of floats; one chain over a large vocabulary would drift.
  static constexpr int64_t kRun = 128 * kLanes;

  float loss(const float* line, int64_t target, const float* weight, float own) const {
    if constexpr (!kFromLogits) {
      return -own * line[target];
    } else {
      const LossOptions& o = options_;
      const float log_sum = log_sum_exp(line);
      const float plain = own * (log_sum - o.input_scale * line[target]);
      if (o.smoothing == 0.0f) return plain;
      double spread = 0.0;  // the share of smoothing that falls on every class alike
      for (int64_t begin = 0; begin < o.classes; begin += kRun) {
        const int64_t end = std::min(begin + kRun, o.classes);
        float run = 0.0f;
#pragma omp simd reduction(+ : run)
        for (int64_t c = begin; c < end; ++c) {
          run += (weight ? weight[c] : 1.0f) * (log_sum - o.input_scale * line[c]);
        }
        spread += run;
      }
      const float share = o.smoothing / static_cast<float>(o.classes);
      return (1.0f - o.smoothing) * plain + share * static_cast<float>(spread);
    }
  }

  // log(sum(exp(input_scale * line))), from the largest score on.
  float log_sum_exp(const float* line) const {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    const int64_t n = options_.classes, whole = n / kLanes * kLanes, rest = n - whole;
    const Vec scale = splat(options_.input_scale);
    Vec top = splat(kLowest);  // of NaN and numbers either will do: the exponentials bring NaN back
    for (int64_t c = 0; c < whole; c += kLanes) top = max(top, load(line + c) * scale);
    if (rest) top = max(top, (load_some(line + whole, rest, line[0]) * scale));
    const float highest = largest(top);
    Vec total[2] = {};
    const Vec base = splat(highest);
    int64_t c = 0;
    while (c + 2 * kLanes <= whole) {
      Vec run[2] = {};
      for (const int64_t end = std::min(c + kRun, whole); c + 2 * kLanes <= end; c += 2 * kLanes) {
        run[0] += exp(fma(load(line + c), scale, -base));
        run[1] += exp(fma(load(line + c + kLanes), scale, -base));
      }
      total[0] += run[0];
      total[1] += run[1];
    }
    if (c < whole) total[0] += exp(fma(load(line + c), scale, -base));
    float tail = 0.0f;
    for (int64_t i = whole; i < n; ++i) tail += std::exp(line[i] * options_.input_scale - highest);
    return highest + std::log(sum(total[0] + total[1]) + tail);
  }

  LossOptions options_;
  Buffer losses_;  // loss and weight of each row
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_LOSS_H_
