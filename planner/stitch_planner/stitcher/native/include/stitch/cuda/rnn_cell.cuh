// The arithmetic of recurrent cells: how many sums a state needs, and the state after a step.
//
// Gates are in torch's order: LSTM i f g o, GRU r z n. The reset gate of a GRU multiplies the recurrent share
// of n alone, so that this share and the input's are two values.
#ifndef STITCH_CUDA_RNN_CELL_CUH_
#define STITCH_CUDA_RNN_CELL_CUH_

#include "stitch/common/math.h"

namespace stitch::cuda {

enum class Cell { kLstm, kGru, kTanh, kRelu };

// Rows of a weight matrix for each unit.
constexpr STITCH_FN int gate_count(Cell cell) { return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1; }

// Values that a cell is computed from; GRU: r, z, the input's share of n, the recurrent share of n.
constexpr STITCH_FN int value_count(Cell cell) { return cell == Cell::kGru ? 4 : gate_count(cell); }

// Where a gate's input product and recurrent product are added.
constexpr STITCH_FN int input_value(int gate) { return gate; }
constexpr STITCH_FN int recurrent_value(Cell cell, int gate) {
  return cell == Cell::kGru && gate == 2 ? 3 : gate;
}

// The next hidden state. `values` are complete sums, biases included; `cell` is the LSTM's cell state.
template <Cell kCell>
STITCH_FN float next_hidden(const float* values, float hidden, float& cell) {
  if constexpr (kCell == Cell::kLstm) {
    const float in = math::sigmoid(values[0]), forget = math::sigmoid(values[1]);
    cell = forget * cell + in * math::tanh(values[2]);
    return math::sigmoid(values[3]) * math::tanh(cell);
  } else if constexpr (kCell == Cell::kGru) {
    const float reset = math::sigmoid(values[0]), update = math::sigmoid(values[1]);
    const float fresh = math::tanh(values[2] + reset * values[3]);
    return fresh + update * (hidden - fresh);
  } else if constexpr (kCell == Cell::kTanh) {
    return math::tanh(values[0]);
  } else {
    return math::relu(values[0]);
  }
}

// The biases of one unit as the values take them; null pointers where a layer has none.
template <Cell kCell>
STITCH_FN void unit_biases(const float* input, const float* recurrent, int64_t units, int64_t unit,
                           float* values) {
  for (int value = 0; value < value_count(kCell); ++value) values[value] = 0.0f;
  for (int gate = 0; gate < gate_count(kCell); ++gate) {
    if (input != nullptr) values[input_value(gate)] += input[gate * units + unit];
    if (recurrent != nullptr) values[recurrent_value(kCell, gate)] += recurrent[gate * units + unit];
  }
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_RNN_CELL_CUH_
