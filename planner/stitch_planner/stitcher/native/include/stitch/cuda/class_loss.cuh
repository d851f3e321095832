// The negative log-likelihood of class numbers: a block for each row, then one block that joins the rows in
// double precision. A target that is no class gives NaN: a kernel cannot refuse.
#ifndef STITCH_CUDA_CLASS_LOSS_CUH_
#define STITCH_CUDA_CLASS_LOSS_CUH_

#include "stitch/common/math.h"
#include "stitch/cuda/constants.cuh"
#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

enum class LossReduction { kNone, kMean, kSum };

struct ClassLossOptions {
  int64_t rows = 0, classes = 0;
  int64_t ignore_index = -100;
  float smoothing = 0.0f;  // label smoothing, of logits only
};

// kFromLogits: the rows are logits (cross_entropy); else log-probabilities (nll_loss).
template <bool kFromLogits>
struct RowLosses {
  static constexpr int kThreads = 128, kPhases = 4;
  struct Shared {
    float top[kThreads];
    double powers[kThreads], weights[kThreads], weighted[kThreads];
  };
  struct Thread {};

  const float* scores;
  const int64_t* target;
  const float* weight;  // of each class; null: 1
  float* losses;
  float* counts;  // what each row weighs
  ClassLossOptions options;

  template <int P>
  __device__ __forceinline__ void phase(int64_t row, int thread, Shared& shared, Thread&) const {
    const float* line = scores + row * options.classes;
    if constexpr (P == 0) {
      float top = kLeast<float>;
      for (int64_t c = thread; kFromLogits && c < options.classes; c += kThreads) {
        top = math::maximum(top, line[c]);
      }
      shared.top[thread] = top;
    } else if constexpr (P == 1) {
      if (thread != 0 || !kFromLogits) return;
      for (int t = 1; t < kThreads; ++t) shared.top[0] = math::maximum(shared.top[0], shared.top[t]);
    } else if constexpr (P == 2) {
      add(line, thread, shared);
    } else {
      if (thread == 0) finish(row, line, shared);
    }
  }

 private:
  __device__ __forceinline__ float weight_of(int64_t c) const { return weight != nullptr ? weight[c] : 1.0f; }

  __device__ __forceinline__ void add(const float* line, int thread, Shared& shared) const {
    const float top = shared.top[0];
    double powers = 0.0, weights = 0.0, weighted = 0.0;
    for (int64_t c = thread; kFromLogits && c < options.classes; c += kThreads) {
      powers += math::exp(line[c] - top);
      if (options.smoothing == 0.0f) continue;
      weights += weight_of(c);
      weighted += static_cast<double>(weight_of(c)) * line[c];
    }
    shared.powers[thread] = powers, shared.weights[thread] = weights, shared.weighted[thread] = weighted;
  }

  __device__ __forceinline__ void finish(int64_t row, const float* line, const Shared& shared) const {
    const int64_t t = target[row];
    const bool ignored = t == options.ignore_index, known = t >= 0 && t < options.classes;
    counts[row] = ignored || !known ? 0.0f : weight_of(t);
    if (ignored || !known) {
      losses[row] = ignored ? 0.0f : kNaN<float>;
      return;
    }
    if constexpr (!kFromLogits) {
      losses[row] = -weight_of(t) * line[t];
    } else {
      double powers = 0.0, weights = 0.0, weighted = 0.0;
      for (int i = 0; i < kThreads; ++i) {
        powers += shared.powers[i], weights += shared.weights[i], weighted += shared.weighted[i];
      }
      const double log_sum = shared.top[0] + math::log(powers);
      const double plain = weight_of(t) * (log_sum - line[t]);
      // The share of smoothing that falls on every class alike.
      const double spread = (weights * log_sum - weighted) / static_cast<double>(options.classes);
      const double smoothing = options.smoothing;
      losses[row] =
          static_cast<float>(smoothing == 0.0 ? plain : (1.0 - smoothing) * plain + smoothing * spread);
    }
  }
};

struct JoinLosses {
  static constexpr int kThreads = 256, kPhases = 2;
  struct Shared {
    double losses[kThreads], counts[kThreads];
  };
  struct Thread {};

  const float* losses;
  const float* counts;
  float* out;
  int64_t rows;
  bool mean;

  template <int P>
  __device__ __forceinline__ void phase(int64_t, int thread, Shared& shared, Thread&) const {
    double loss = 0.0, count = 0.0;
    if constexpr (P == 0) {
      for (int64_t row = thread; row < rows; row += kThreads) loss += losses[row], count += counts[row];
      shared.losses[thread] = loss, shared.counts[thread] = count;
    } else {
      if (thread != 0) return;
      for (int t = 0; t < kThreads; ++t) loss += shared.losses[t], count += shared.counts[t];
      // Without a row that counts the mean is 0 / 0 = NaN, as torch gives it.
      *out = static_cast<float>(mean ? loss / count : loss);
    }
  }
};

template <bool kFromLogits, LossReduction kReduction>
class ClassLoss {
 public:
  int32_t init(const ClassLossOptions& options) {
    options_ = options;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return sizeof(float) * 2 * static_cast<size_t>(options_.rows); }

  // scores: [rows][classes]. `weight` may be null. `out`: one float, or one for each row with kNone.
  int32_t run(const Call& call, const float* scores, const int64_t* target, const float* weight,
              float* out) const {
    constexpr bool kRows = kReduction == LossReduction::kNone;
    float* scratch = static_cast<float*>(call.scratch);
    float* losses = kRows ? out : scratch;
    float* counts = scratch + options_.rows;
    const RowLosses<kFromLogits> rows{scores, target, weight, losses, counts, options_};
    STITCH_TRY(blocks("loss of rows", options_.rows, rows, call));
    if constexpr (kRows) return STITCH_OK;
    const JoinLosses join{losses, counts, out, options_.rows, kReduction == LossReduction::kMean};
    return blocks("loss", 1, join, call);
  }

 private:
  ClassLossOptions options_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CLASS_LOSS_CUH_
