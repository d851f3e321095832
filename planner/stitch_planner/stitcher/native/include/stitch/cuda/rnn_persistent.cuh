// Launches of the persistent recurrent kernels (rnn_cluster.cuh): all layers at once, or layer after layer
// with the products of a layer's inputs before it.
#ifndef STITCH_CUDA_RNN_PERSISTENT_CUH_
#define STITCH_CUDA_RNN_PERSISTENT_CUH_

#include "stitch/cuda/rnn_cluster.cuh"
#include "stitch/cuda/rnn_plan.cuh"

namespace stitch::cuda {

namespace detail {

// Multiprocessors that clusters are laid out for; the GPU is asked before anything runs.
inline constexpr int kUsualBlocks = 128;

// Sequences of a cluster where `together` clusters are wanted for each part of the batch.
constexpr int part_size(int batch, int blocks, int together, int most) {
  const int room = larger(1, kUsualBlocks / blocks / together);
  const int parts = larger(smaller(room, batch), ratio_up(batch, most));
  return ratio_up(batch, parts);
}

template <class Sizes, int kBlocks>
using FusedShape =
    ClusterShape<Sizes::kCell, Sizes::kUnits, larger(up_to(Sizes::kFeatures, 4), up_to(Sizes::kUnits, 4)),
                 part_size(Sizes::kBatch, kBlocks, Sizes::kLayers, 12), kBlocks>;
template <class Sizes, int kBlocks>
using LayeredShape = ClusterShape<Sizes::kCell, Sizes::kUnits, 0,
                                  part_size(Sizes::kBatch, kBlocks, Sizes::kDirections, 12), kBlocks>;

}  // namespace detail

#if defined(STITCH_ON_HOST)

template <class Shape, int kSides>
class ClusterLaunch {
 public:
  using Args = ClusterArgs<kSides>;

  static int active_clusters() { return detail::kUsualBlocks / Shape::kBlocks; }

  static int32_t run(const Call&, int clusters, const Args& args) {
    constexpr size_t kSignals = sizeof(float) * Shape::kFloats;
    host::run_clusters(clusters, Shape::kBlocks, Shape::kAllThreads, Shape::kThreads,
                       kSignals + sizeof(ClusterSignals), [&](char* memory) {
                         run_block<Shape>(args, reinterpret_cast<float*>(memory),
                                          *reinterpret_cast<ClusterSignals*>(memory + kSignals));
                       });
    return STITCH_OK;
  }
};

#else

// One kernel of clusters: whether this GPU runs it, and its launch.
template <class Shape, int kSides>
class ClusterLaunch {
 public:
  using Args = ClusterArgs<kSides>;

  // How many clusters run at the same time; 0 where the GPU cannot run one.
  static int active_clusters() {
    int device = 0, major = 0, count = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        major < 9 || !prepare()) {
      (void)cudaGetLastError();
      return 0;
    }
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = configure(1, nullptr, &attribute);
    if (cudaOccupancyMaxActiveClusters(&count, rnn_cluster<Shape, kSides>, &config) != cudaSuccess) {
      (void)cudaGetLastError();
      return 0;
    }
    return count;
  }

  static int32_t run(const Call& call, int clusters, const Args& args) {
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = configure(clusters, call.stream, &attribute);
    return call.errors->check(cudaLaunchKernelEx(&config, rnn_cluster<Shape, kSides>, args), "rnn_cluster");
  }

 private:
  // More than half of a multiprocessor's: two blocks of a cluster on one would slow down all others.
  static constexpr int kLeastShared = 120 * 1024;
  static constexpr int kShared = detail::larger(4 * Shape::kFloats, kLeastShared);

  static bool prepare() {
    void (*const kernel)(Args) = rnn_cluster<Shape, kSides>;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared) ==
               cudaSuccess &&
           cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess;
  }

  static cudaLaunchConfig_t configure(int clusters, cudaStream_t stream, cudaLaunchAttribute* attribute) {
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = Shape::kBlocks;
    attribute->val.clusterDim.y = 1;
    attribute->val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(clusters * Shape::kBlocks));
    config.blockDim = dim3(Shape::kAllThreads);
    config.dynamicSmemBytes = kShared;
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = 1;
    return config;
  }
};

#endif  // STITCH_ON_HOST

// Where a layer's weights and states are.
template <class Sizes>
ClusterSide make_side(const RnnTensors& tensors, const std::vector<RnnWeights>& weights, int side) {
  const int64_t state = int64_t{side} * Sizes::kBatch * Sizes::kUnits;
  ClusterSide made = {};
  made.input_weight = weights[side].input;
  made.weight = weights[side].recurrent;
  made.weight_row = Sizes::kUnits;
  made.input_bias = weights[side].input_bias;
  made.bias = weights[side].recurrent_bias;
  made.first_hidden = tensors.first_hidden ? tensors.first_hidden + state : nullptr;
  made.first_cell = tensors.first_cell ? tensors.first_cell + state : nullptr;
  made.last_hidden = tensors.last_hidden ? tensors.last_hidden + state : nullptr;
  made.last_cell = tensors.last_cell ? tensors.last_cell + state : nullptr;
  return made;
}

// x as [part][step][column][kStride], zeros where there is no such column or sequence.
template <class Shape, int kFeatures, int kColumns>
struct InputColumns {
  const float* x;
  float* columns;
  int64_t count;
  int32_t steps, batch;
  RowOrder order;

  STITCH_FN void operator()(int64_t i) const {
    const int b = static_cast<int>(i % Shape::kStride);
    const int64_t rest = i / Shape::kStride, above = rest / kColumns;
    const int column = static_cast<int>(rest % kColumns);
    const int64_t step = above % steps, sequence = above / steps * Shape::kBatch + b;
    const bool real = b < Shape::kBatch && sequence < batch && column < kFeatures;
    columns[i] = real ? x[(step * order.step + sequence * order.sequence) * kFeatures + column] : 0.0f;
  }
};

#if defined(STITCH_ON_HOST)

template <class Columns>
int32_t launch_columns(const Call&, const Columns& columns) {
  for (int64_t i = 0; i < columns.count; ++i) columns(i);
  return STITCH_OK;
}
inline int32_t reset_flags(const Call&, int32_t* flags, int64_t count) {
  memset(flags, 0, sizeof(int32_t) * static_cast<size_t>(count));
  return STITCH_OK;
}

#else

template <class Columns>
__global__ void __launch_bounds__(256) rnn_columns(const Columns columns) {
  const int64_t step = int64_t{gridDim.x} * 256;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < columns.count; i += step) columns(i);
}

template <class Columns>
int32_t launch_columns(const Call& call, const Columns& columns) {
  const int64_t blocks = ceil_div(columns.count, 256), most = 32 * int64_t{call.multiprocessors};
  rnn_columns<<<static_cast<unsigned>(blocks < most ? blocks : most), 256, 0, call.stream>>>(columns);
  return call.launched("rnn_columns");
}
inline int32_t reset_flags(const Call& call, int32_t* flags, int64_t count) {
  const size_t bytes = sizeof(int32_t) * static_cast<size_t>(count);
  return call.errors->check(cudaMemsetAsync(flags, 0, bytes, call.stream), "reset flags");
}

#endif  // STITCH_ON_HOST

// All layers at once, each a step or two behind the one below.
template <class Sizes, class Shape>
class FusedPlan final : public RnnPlan {
 public:
  using Launch = ClusterLaunch<Shape, Sizes::kLayers>;
  static constexpr bool kPossible = Sizes::kDirections == 1 && Sizes::kLayers > 1 &&
                                    Shape::kFits&& Sizes::kLayers <= detail::kUsualBlocks / Shape::kBlocks;

  static bool runs_here(int* active) { return (*active = Launch::active_clusters()) >= Sizes::kLayers; }

  FusedPlan(const RnnOptions& options, const std::vector<RnnWeights>& weights, int active)
      : options_(options), weights_(weights) {
    const int together = active / Sizes::kLayers;
    together_ = together < kParts ? together : kParts;
  }

  size_t workspace_bytes() const override {
    Carver carver;
    carve(carver);
    return carver.bytes();
  }

  int32_t run(const Call& call, const RnnTensors& tensors) override {
    Carver carver(call.scratch);
    const Memory memory = carve(carver);
    const RowOrder order = row_order(options_.batch_first, options_.steps, Sizes::kBatch);
    STITCH_TRY(reset_flags(call, memory.flags, flag_count()));
    const int64_t count = kParts * int64_t{options_.steps} * kColumns * Shape::kStride;
    STITCH_TRY(
        launch_columns(call, InputColumns<Shape, Sizes::kFeatures, kColumns>{
                                 tensors.x, memory.columns, count, options_.steps, Sizes::kBatch, order}));
    typename Launch::Args args = {};
    for (int layer = 0; layer < Sizes::kLayers; ++layer) {
      args.sides[layer] = side_of(tensors, memory, layer);
    }
    args.steps = options_.steps;
    args.batch = Sizes::kBatch;
    args.out_step = order.step * Sizes::kUnits;
    args.out_sequence = order.sequence * Sizes::kUnits;
    for (int part = 0; part < kParts; part += together_) {
      args.flags = memory.flags + part * kPartFlags;
      args.first_part = part;
      args.parts = detail::smaller(together_, kParts - part);
      STITCH_TRY(Launch::run(call, Sizes::kLayers * args.parts, args));
    }
    return STITCH_OK;
  }

 private:
  static constexpr int kParts = detail::ratio_up(Sizes::kBatch, Shape::kBatch);
  static constexpr int kColumns = detail::up_to(Sizes::kFeatures, 4);
  // A launch needs one line for tickets and one for each layer's parts; those of a part are enough for both.
  static constexpr int kPartFlags = kFlagLine * (1 + Sizes::kLayers);

  struct Memory {
    int32_t* flags;
    float *columns, *handover[Sizes::kLayers];
  };

  static constexpr int64_t flag_count() { return int64_t{kParts} * kPartFlags; }

  Memory carve(Carver& carver) const {
    const int64_t columns = kParts * int64_t{options_.steps} * Shape::kStride;
    Memory memory{};
    memory.flags = carver.take<int32_t>(flag_count());
    memory.columns = carver.take<float>(columns * kColumns);
    for (int layer = 0; layer + 1 < Sizes::kLayers; ++layer) {
      memory.handover[layer] = carver.take<float>(columns * Shape::kPadded);
    }
    return memory;
  }

  ClusterSide side_of(const RnnTensors& tensors, const Memory& memory, int layer) const {
    ClusterSide side = make_side<Sizes>(tensors, weights_, layer);
    side.source = layer == 0 ? memory.columns : memory.handover[layer - 1];
    side.columns = layer == 0 ? kColumns : Shape::kPadded;
    side.features = layer == 0 ? Sizes::kFeatures : Sizes::kUnits;
    side.handover = memory.handover[layer];
    side.out = layer + 1 == Sizes::kLayers ? tensors.y : nullptr;
    return side;
  }

  RnnOptions options_;
  std::vector<RnnWeights> weights_;
  int together_ = 1;
};

// Layer after layer, both directions and all parts of the batch at once.
template <class Sizes, class Shape>
class LayeredPlan final : public RnnPlan {
 public:
  using Launch = ClusterLaunch<Shape, Sizes::kDirections>;
  static constexpr bool kPossible = Shape::kFits;

  // Clusters that compute a layer; one that had to wait for another would double the time.
  static constexpr int kClusters = Sizes::kDirections * detail::ratio_up(Sizes::kBatch, Shape::kBatch);

  static bool runs_here(int* active) { return (*active = Launch::active_clusters()) > 0; }

  LayeredPlan(const RnnOptions& options, const std::vector<RnnWeights>& weights)
      : options_(options), weights_(weights) {}

  int32_t init(CublasLt& lib) { return inputs_.init(lib, options_); }

  size_t workspace_bytes() const override {
    Carver carver;
    carve(carver);
    return carver.bytes();
  }

  int32_t run(const Call& call, const RnnTensors& tensors) override {
    Carver carver(call.scratch);
    const Memory memory = carve(carver);
    Call inner = call;
    inner.scratch = memory.library;
    inner.scratch_bytes = inputs_.workspace_bytes();
    const float* from = tensors.x;
    for (int layer = 0; layer < Sizes::kLayers; ++layer) {
      const bool last = layer + 1 == Sizes::kLayers;
      float* to = last ? tensors.y : memory.between[layer % 2];
      STITCH_TRY(run_layer(inner, tensors, memory, layer, from, to));
      from = to;
    }
    return STITCH_OK;
  }

 private:
  static constexpr int kParts = detail::ratio_up(Sizes::kBatch, Shape::kBatch);

  struct Memory {
    float *gates[Sizes::kDirections], *between[2];
    char* library;
  };

  Memory carve(Carver& carver) const {
    const int64_t rows = int64_t{options_.steps} * Sizes::kBatch;
    Memory memory{};
    for (float*& gates : memory.gates) gates = carver.take<float>(rows * Sizes::kGateColumns);
    for (float*& between : memory.between) {
      between = Sizes::kLayers > 1 ? carver.take<float>(rows * Sizes::kWidth) : nullptr;
    }
    memory.library = carver.take<char>(static_cast<int64_t>(inputs_.workspace_bytes()));
    return memory;
  }

  int32_t run_layer(const Call& call, const RnnTensors& tensors, const Memory& memory, int layer,
                    const float* from, float* to) const {
    const bool first = layer == 0, last = layer + 1 == Sizes::kLayers;
    const RowOrder in = row_order(first && options_.batch_first, options_.steps, Sizes::kBatch);
    const RowOrder out = row_order(last && options_.batch_first, options_.steps, Sizes::kBatch);
    typename Launch::Args args = {};
    for (int direction = 0; direction < Sizes::kDirections; ++direction) {
      const int place = layer * Sizes::kDirections + direction;
      STITCH_TRY(inputs_.run(call, layer, from, weights_[place].input, memory.gates[direction]));
      ClusterSide& side = args.sides[direction];
      side = make_side<Sizes>(tensors, weights_, place);
      if (options_.weight_row != 0) side.weight_row = options_.weight_row;
      side.source = memory.gates[direction];
      side.out = to + direction * Sizes::kUnits;
      side.backward = direction == 1;
    }
    args.steps = options_.steps;
    args.batch = Sizes::kBatch;
    args.parts = kParts;
    args.out_step = out.step * Sizes::kWidth;
    args.out_sequence = out.sequence * Sizes::kWidth;
    args.source_step = in.step;
    args.source_sequence = in.sequence;
    return Launch::run(call, Sizes::kDirections * kParts, args);
  }

  RnnOptions options_;
  std::vector<RnnWeights> weights_;
  InputProducts<Sizes> inputs_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_RNN_PERSISTENT_CUH_
