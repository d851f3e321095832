// What all ways to compute a recurrent layer share: sizes, weights, tensors, the division of scratch memory,
// and input products of a whole layer at once.
#ifndef STITCH_CUDA_RNN_PLAN_CUH_
#define STITCH_CUDA_RNN_PLAN_CUH_

#include <vector>

#include "stitch/cuda/gemm.cuh"
#include "stitch/cuda/rnn_cell.cuh"

namespace stitch::cuda {

// What kernels are written for.
template <Cell kCell_, int kFeatures_, int kUnits_, int kLayers_, int kDirections_, int kBatch_>
struct RnnSizes {
  static constexpr Cell kCell = kCell_;
  static constexpr int kFeatures = kFeatures_, kUnits = kUnits_, kLayers = kLayers_;
  static constexpr int kDirections = kDirections_, kBatch = kBatch_;
  static constexpr int kGateColumns = gate_count(kCell) * kUnits;
  static constexpr int kWidth = kDirections * kUnits;  // columns of the output
};

// Ways to compute; kAuto takes the first that this GPU can run.
enum class RnnWay { kAuto, kFused, kLayered, kSteps };

struct RnnOptions {
  int32_t steps = 0;
  bool batch_first = false;  // x and y are [batch, time, ...] instead of [time, batch, ...]
  int32_t biases = 2;        // of a layer and direction: torch's two, one, or none
  int64_t input_row = 0;     // floats between rows of w_ih; 0: dense. For one layer only
  int64_t weight_row = 0;    // of w_hh
  RnnWay way = RnnWay::kAuto;
};

// Addresses of one layer in one direction, as torch has them; biases may be null.
struct RnnWeights {
  const float *input = nullptr, *recurrent = nullptr, *input_bias = nullptr, *recurrent_bias = nullptr;
};

// States are [layers * directions][batch][units]; null first states are zeros, null last ones not wanted.
struct RnnTensors {
  const float *x, *first_hidden, *first_cell;
  float *y, *last_hidden, *last_cell;
};

// Hands out scratch memory in the same order when it is counted and when it is used.
class Carver {
 public:
  explicit Carver(void* memory = nullptr) : memory_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(int64_t count) {
    T* const taken = reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return taken;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  size_t bytes_ = 0;
};

class RnnPlan {
 public:
  virtual ~RnnPlan() = default;
  virtual size_t workspace_bytes() const = 0;
  virtual int32_t run(const Call& call, const RnnTensors& tensors) = 0;
};

// The rows of gates of all steps before the recurrence: x @ w_ih^T, without biases.
template <class Sizes>
class InputProducts {
 public:
  int32_t init(CublasLt& lib, const RnnOptions& options) {
    STITCH_TRY(init_one(lib, options, Sizes::kFeatures, first_));
    return Sizes::kLayers > 1 ? init_one(lib, options, Sizes::kWidth, rest_) : STITCH_OK;
  }
  size_t workspace_bytes() const {
    return first_.workspace_bytes() > rest_.workspace_bytes() ? first_.workspace_bytes()
                                                              : rest_.workspace_bytes();
  }
  int32_t run(const Call& call, int layer, const float* x, const float* weight, float* gates) const {
    return (layer == 0 ? first_ : rest_).run(call, x, weight, gates);
  }

 private:
  static int32_t init_one(CublasLt& lib, const RnnOptions& options, int64_t width, Gemm& gemm) {
    GemmOptions o;
    o.m = int64_t{options.steps} * Sizes::kBatch;
    o.n = Sizes::kGateColumns;
    o.k = width;
    o.b = {true, options.input_row != 0 ? options.input_row : width, 0};
    return gemm.init(lib, o);
  }

  Gemm first_, rest_;
};

// Rows between steps and between sequences of one tensor.
struct RowOrder {
  int64_t step, sequence;
};

constexpr RowOrder row_order(bool batch_first, int64_t steps, int64_t batch) {
  return batch_first ? RowOrder{1, steps} : RowOrder{batch, 1};
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_RNN_PLAN_CUH_
