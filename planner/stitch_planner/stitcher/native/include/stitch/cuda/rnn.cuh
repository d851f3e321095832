// LSTM, GRU and plain recurrent layers, float32: all layers, directions and steps.
//
// Three ways, the first that the GPU can run: all layers at once in clusters that keep the weights, layer
// after layer in such clusters, or a matrix product and a cell kernel for each step.
#ifndef STITCH_CUDA_RNN_CUH_
#define STITCH_CUDA_RNN_CUH_

#include <initializer_list>
#include <memory>
#include <vector>

#include "stitch/cuda/rnn_plan.cuh"
#include "stitch/cuda/rnn_steps.cuh"
#if !defined(STITCH_ON_HOST)
#include "stitch/cuda/rnn_persistent.cuh"
#endif

namespace stitch::cuda {

template <Cell kCell, int kFeatures, int kUnits, int kLayers, int kDirections, int kBatch>
class Rnn {
 public:
  using Sizes = RnnSizes<kCell, kFeatures, kUnits, kLayers, kDirections, kBatch>;

  // Addresses for each layer and direction, in torch's order: w_ih, w_hh and, with bias, b_ih, b_hh.
  int32_t init(CublasLt& lib, const RnnOptions& options, const float* const* addresses) {
    std::vector<RnnWeights> weights(kLayers * kDirections);
    for (RnnWeights& one : weights) {
      one.input = *addresses++;
      one.recurrent = *addresses++;
      if (options.biases > 0) one.input_bias = *addresses++;
      if (options.biases > 1) one.recurrent_bias = *addresses++;
    }
    return choose(lib, options, weights);
  }

  int32_t init(CublasLt& lib, const RnnOptions& options, std::initializer_list<const float*> addresses) {
    return init(lib, options, addresses.begin());
  }

  size_t workspace_bytes() const { return plan_->workspace_bytes(); }

  // What `choose` took: "fused 16", "layered 8", "steps".
  const char* chosen() const { return chosen_; }

  int32_t run(const Call& call, const float* x, const float* first_hidden, const float* first_cell, float* y,
              float* last_hidden, float* last_cell) {
    return plan_->run(call, {x, first_hidden, first_cell, y, last_hidden, last_cell});
  }

 private:
  int32_t choose(CublasLt& lib, const RnnOptions& options, const std::vector<RnnWeights>& weights) {
#if !defined(STITCH_ON_HOST)
    const bool any = options.way == RnnWay::kAuto;
    if (any || options.way == RnnWay::kFused) {
      if (fused<16>(options, weights, "fused 16") || fused<8>(options, weights, "fused 8")) return STITCH_OK;
    }
    if (any || options.way == RnnWay::kLayered) {
      bool taken = false;
      STITCH_TRY(layered<16>(lib, options, weights, "layered 16", true, taken));
      if (!taken) STITCH_TRY(layered<8>(lib, options, weights, "layered 8", false, taken));
      // Layers that only large clusters hold.
      if (!taken) STITCH_TRY(layered<16>(lib, options, weights, "layered 16", false, taken));
      if (taken) return STITCH_OK;
    }
#endif
    auto plan = std::make_unique<StepPlan<Sizes>>();
    STITCH_TRY(plan->init(lib, options, weights));
    plan_ = std::move(plan);
    chosen_ = "steps";
    return STITCH_OK;
  }

#if !defined(STITCH_ON_HOST)
  template <int kBlocks>
  bool fused(const RnnOptions& options, const std::vector<RnnWeights>& weights, const char* name) {
    using Plan = FusedPlan<Sizes, detail::FusedShape<Sizes, kBlocks>>;
    if constexpr (Plan::kPossible) {
      int active = 0;
      if (!Plan::runs_here(&active)) return false;
      plan_ = std::make_unique<Plan>(options, weights, active);
      chosen_ = name;
      return true;
    }
    return false;
  }

  template <int kBlocks>
  int32_t layered(CublasLt& lib, const RnnOptions& options, const std::vector<RnnWeights>& weights,
                  const char* name, bool all_at_once, bool& taken) {
    using Plan = LayeredPlan<Sizes, detail::LayeredShape<Sizes, kBlocks>>;
    if constexpr (Plan::kPossible) {
      int active = 0;
      if (!Plan::runs_here(&active) || (all_at_once && active < Plan::kClusters)) return STITCH_OK;
      auto plan = std::make_unique<Plan>(options, weights);
      STITCH_TRY(plan->init(lib));
      plan_ = std::move(plan);
      chosen_ = name;
      taken = true;
    }
    return STITCH_OK;
  }
#endif

  std::unique_ptr<RnnPlan> plan_;
  const char* chosen_ = "";
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_RNN_CUH_
