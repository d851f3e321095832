// Recurrent layers on any GPU and of any size: for each step a matrix product and a kernel for the cells.
#ifndef STITCH_CUDA_RNN_STEPS_CUH_
#define STITCH_CUDA_RNN_STEPS_CUH_

#include "stitch/cuda/rnn_plan.cuh"

namespace stitch::cuda {

// The cells of one step in one direction. Rows belong to sequences.
template <Cell kCell>
struct StepCells {
  const float* gates;      // the input's share, for this step; rows gate_row floats apart
  const float* recurrent;  // dense rows; not read where `from_zero`
  RnnWeights weights;
  const float* cell_before;  // dense; null: zeros
  const float* hidden_before;
  float *hidden, *cell;  // dense
  float* out;            // rows out_row apart
  int64_t gate_row, out_row;
  int32_t batch, units;

  STITCH_FN void operator()(int64_t at) const {
    constexpr int kGates = gate_count(kCell);
    const int64_t sequence = at / units, unit = at % units;
    float values[value_count(kCell)];
    unit_biases<kCell>(weights.input_bias, weights.recurrent_bias, units, unit, values);
    for (int gate = 0; gate < kGates; ++gate) {
      const int64_t column = int64_t{gate} * units + unit;
      values[input_value(gate)] += gates[sequence * gate_row + column];
      if (hidden_before != nullptr) {
        values[recurrent_value(kCell, gate)] += recurrent[sequence * kGates * units + column];
      }
    }
    float state = cell_before != nullptr ? cell_before[at] : 0.0f;
    const float next = next_hidden<kCell>(values, hidden_before != nullptr ? hidden_before[at] : 0.0f, state);
    hidden[at] = next;
    if (cell != nullptr) cell[at] = state;
    if (out != nullptr) out[sequence * out_row + unit] = next;
  }
};

#if defined(STITCH_ON_HOST)

template <Cell kCell>
int32_t launch_cells(const Call&, const StepCells<kCell>& cells) {
  for (int64_t i = 0; i < int64_t{cells.batch} * cells.units; ++i) cells(i);
  return STITCH_OK;
}

#else

template <Cell kCell>
__global__ void __launch_bounds__(128) rnn_step_cells(const StepCells<kCell> cells) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at < int64_t{cells.batch} * cells.units) cells(at);
}

template <Cell kCell>
int32_t launch_cells(const Call& call, const StepCells<kCell>& cells) {
  // Small blocks: a step has few cells, and they are to spread over the multiprocessors.
  const int64_t blocks = ceil_div(int64_t{cells.batch} * cells.units, 128);
  rnn_step_cells<kCell><<<static_cast<unsigned>(blocks), 128, 0, call.stream>>>(cells);
  return call.launched("rnn_step_cells");
}

#endif

template <class Sizes>
class StepPlan final : public RnnPlan {
 public:
  int32_t init(CublasLt& lib, const RnnOptions& options, const std::vector<RnnWeights>& weights) {
    options_ = options;
    weights_ = weights;
    STITCH_TRY(inputs_.init(lib, options));
    GemmOptions o;
    o.m = Sizes::kBatch;
    o.n = Sizes::kGateColumns;
    o.k = Sizes::kUnits;
    o.b = {true, options.weight_row != 0 ? options.weight_row : Sizes::kUnits, 0};
    return step_.init(lib, o);
  }

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
    inner.scratch_bytes = library_bytes();
    const float* from = tensors.x;
    for (int layer = 0; layer < Sizes::kLayers; ++layer) {
      const bool last = layer + 1 == Sizes::kLayers;
      float* to = last ? tensors.y : memory.between[layer % 2];
      for (int direction = 0; direction < Sizes::kDirections; ++direction) {
        STITCH_TRY(run_side(inner, tensors, memory, layer, direction, from, to));
      }
      from = to;
    }
    return STITCH_OK;
  }

 private:
  static constexpr int64_t kState = int64_t{Sizes::kBatch} * Sizes::kUnits;

  struct Memory {
    float *gates, *between[2], *recurrent, *hidden, *cell;
    char* library;
  };

  size_t library_bytes() const {
    return inputs_.workspace_bytes() > step_.workspace_bytes() ? inputs_.workspace_bytes()
                                                               : step_.workspace_bytes();
  }

  Memory carve(Carver& carver) const {
    const int64_t rows = int64_t{options_.steps} * Sizes::kBatch;
    Memory memory{};
    memory.gates = carver.take<float>(rows * Sizes::kGateColumns);
    for (float*& between : memory.between) {
      between = Sizes::kLayers > 1 ? carver.take<float>(rows * Sizes::kWidth) : nullptr;
    }
    memory.recurrent = carver.take<float>(int64_t{Sizes::kBatch} * Sizes::kGateColumns);
    memory.hidden = carver.take<float>(kState);
    memory.cell = carver.take<float>(kState);
    memory.library = carver.take<char>(static_cast<int64_t>(library_bytes()));
    return memory;
  }

  int32_t run_side(const Call& call, const RnnTensors& tensors, const Memory& memory, int layer,
                   int direction, const float* from, float* to) {
    const int64_t steps = options_.steps;
    const int side = layer * Sizes::kDirections + direction;
    const RowOrder in = row_order(layer == 0 && options_.batch_first, steps, Sizes::kBatch);
    const RowOrder out = row_order(layer + 1 == Sizes::kLayers && options_.batch_first, steps, Sizes::kBatch);
    STITCH_TRY(inputs_.run(call, layer, from, weights_[side].input, memory.gates));
    const float* hidden = tensors.first_hidden ? tensors.first_hidden + side * kState : nullptr;
    const float* cell = tensors.first_cell ? tensors.first_cell + side * kState : nullptr;
    for (int64_t t = 0; t < steps; ++t) {
      const int64_t at = direction == 1 ? steps - 1 - t : t;
      if (hidden != nullptr) {
        STITCH_TRY(step_.run(call, hidden, weights_[side].recurrent, memory.recurrent));
      }
      StepCells<Sizes::kCell> cells{};
      cells.gates = memory.gates + at * in.step * Sizes::kGateColumns;
      cells.gate_row = in.sequence * Sizes::kGateColumns;
      cells.recurrent = memory.recurrent;
      cells.weights = weights_[side];
      cells.hidden_before = hidden;
      cells.cell_before = cell;
      const bool last = t + 1 == steps;
      cells.hidden = last && tensors.last_hidden ? tensors.last_hidden + side * kState : memory.hidden;
      cells.cell = last && tensors.last_cell ? tensors.last_cell + side * kState : memory.cell;
      cells.out = to + at * out.step * Sizes::kWidth + direction * Sizes::kUnits;
      cells.out_row = out.sequence * Sizes::kWidth;
      cells.batch = Sizes::kBatch;
      cells.units = Sizes::kUnits;
      STITCH_TRY(launch_cells<Sizes::kCell>(call, cells));
      hidden = cells.hidden;
      cell = cells.cell;
    }
    return STITCH_OK;
  }

  RnnOptions options_;
  std::vector<RnnWeights> weights_;
  InputProducts<Sizes> inputs_;
  Gemm step_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_RNN_STEPS_CUH_
