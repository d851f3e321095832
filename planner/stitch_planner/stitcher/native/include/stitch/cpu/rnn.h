// LSTM, GRU and plain recurrent layers, stacked and bidirectional, as torch.nn computes them.
//
// Each layer is two parts. The input's share of all gates, for all steps at once, is one packed oneDNN
// product. The recurrent share is a product of few rows that waits for the step before it: there a library
// call per step loses to its own overhead, so a register tile computes all gates of 16 hidden units for a few
// sequences and applies the cell function before anything is stored.
//
// Threads split directions first, then sequences, which needs no synchronisation over time. Only when there
// are too few sequences do they split the hidden units and meet at a barrier after each step.
#ifndef STITCH_CPU_RNN_H_
#define STITCH_CPU_RNN_H_

#include <omp.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <vector>

#include "stitch/cpu/gemm.h"
#include "stitch/cpu/vec.h"

namespace stitch::cpu {

enum class Cell { kLstm, kGru, kTanh, kRelu };

struct RnnOptions {
  int64_t features = 0;
  int64_t hidden = 0;
  int layers = 1;
  int directions = 1;
  bool batch_first = false;  // x and y are [batch, time, ...] instead of [time, batch, ...]
  bool has_bias = true;
  int64_t hint_rows = 0;  // time * batch to expect
};

// Gates of a cell, in torch's order (LSTM: i f g o; GRU: r z n).
constexpr int gate_count(Cell cell) { return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1; }

// Sequences in a register tile: as many as fill the 32 vector registers with gates x sequences sums.
constexpr int tile_rows(Cell cell) { return cell == Cell::kLstm ? 6 : cell == Cell::kGru ? 8 : 12; }

// A template, so that a program compiles the tiles of its own cells only.
template <Cell kCell>
class Rnn {
 public:
  // Addresses for each layer and direction, in torch's order: w_ih, w_hh and, with bias, b_ih, b_hh.
  int32_t init(Dnnl& lib, const RnnOptions& options, const float* const* weights) {
    lib_ = &lib;
    options_ = options;
    STITCH_TRY(lib.open());
    blocks_ = (options.hidden + kLanes - 1) / kLanes;
    sides_.clear();
    const int each = options.has_bias ? 4 : 2;
    for (int layer = 0; layer < options.layers; ++layer) {
      const int64_t features = layer ? options.hidden * options.directions : options.features;
      for (int direction = 0; direction < options.directions; ++direction, weights += each) {
        sides_.push_back(std::make_unique<Side>());
        STITCH_TRY(pack(*sides_.back(), features, weights));
      }
    }
    return STITCH_OK;
  }

  int32_t init(Dnnl& lib, const RnnOptions& options, std::initializer_list<const float*> weights) {
    return init(lib, options, weights.begin());
  }

  // x: `time * batch` dense rows of features. y: rows of directions * hidden. h0, c0, hn, cn: dense
  // [layers * directions, batch, hidden]; null h0 or c0 mean zeros, null hn or cn are not wanted.
  int32_t run(int64_t time, int64_t batch, const float* x, const float* h0, const float* c0, float* y,
              float* hn, float* cn, int threads) {
    if (batch == 0) return STITCH_OK;
    const int64_t rows = time * batch, width = options_.directions * options_.hidden;
    const int64_t gate_row = kGates * blocks_ * kLanes;
    const bool stacked = options_.layers > 1;
    if (!inputs_.reserve(sizeof(float) * options_.directions * rows * gate_row) ||
        !cells_.reserve(sizeof(float) * options_.directions * batch * blocks_ * kLanes) ||
        !zeros_.reserve(sizeof(float) * batch * options_.hidden) ||
        (stacked && !between_.reserve(sizeof(float) * 2 * rows * width))) {
      return lib_->fail(STITCH_OUT_OF_MEMORY, "no memory for the gates of all steps");
    }
    std::fill_n(zeros_.floats(), batch * options_.hidden, 0.0f);
    const float* from = x;
    for (int layer = 0; layer < options_.layers; ++layer) {
      float* to = layer + 1 == options_.layers ? y : between_.floats() + (layer % 2) * rows * width;
      for (int direction = 0; direction < options_.directions; ++direction) {
        Side& side = *sides_[layer * options_.directions + direction];
        STITCH_TRY(side.input.run(rows, from, 0, inputs_.floats() + direction * rows * gate_row, 0));
      }
      run_layer(layer, time, batch, h0, c0, to, hn, cn, threads);
      from = to;
    }
    return STITCH_OK;
  }

 private:
  // One direction of one layer.
  struct Side {
    Gemm input;           // x to gate rows laid out [block][gate][kLanes]
    Buffer input_weight;  // w_ih with its rows in that order, zero where a block is not full
    Buffer input_bias;    // biases that can be added before the recurrence
    Buffer weight;        // w_hh as [block][k][gate][kLanes]
    Buffer late_bias;     // GRU: b_hn, which the reset gate multiplies, as [block][kLanes]
  };

  // Steps of one layer as the inner loops see them.
  struct Steps {
    const float* inputs;  // gate rows
    const float* weight;
    const float* late_bias;
    const float* h0;                // [batch][hidden]
    float* cells;                   // [batch][blocks * kLanes]
    float* y;                       // already at this direction's columns
    int64_t time_step, batch_step;  // rows between steps, and between sequences
    int64_t y_row, gate_row;        // floats in a row
    int64_t time, hidden, blocks;
    bool backward;
  };

  // Where this is inlined, GCC warns of the biases that a layer without any is not asked for.
  __attribute__((noinline)) int32_t pack(Side& side, int64_t features, const float* const* weights) {
    const int64_t hidden = options_.hidden, rows = kGates * blocks_ * kLanes;
    if (!side.input_weight.reserve(sizeof(float) * rows * features) ||
        !side.input_bias.reserve(sizeof(float) * rows) ||
        !side.weight.reserve(sizeof(float) * rows * hidden) ||
        !side.late_bias.reserve(sizeof(float) * blocks_ * kLanes)) {
      return lib_->fail(STITCH_OUT_OF_MEMORY, "no memory for packed recurrent weights");
    }
    const float *w_ih = weights[0], *w_hh = weights[1];
    const float* b_ih = options_.has_bias ? weights[2] : nullptr;
    const float* b_hh = options_.has_bias ? weights[3] : nullptr;
    for (int64_t block = 0; block < blocks_; ++block) {
      for (int gate = 0; gate < kGates; ++gate) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const int64_t unit = block * kLanes + lane;
          const int64_t to = (block * kGates + gate) * kLanes + lane;
          const int64_t row = gate * hidden + unit;  // torch: all units of a gate together
          const bool real = unit < hidden, late = kCell == Cell::kGru && gate == 2;
          float* w = side.input_weight.floats() + to * features;
          if (real) {
            std::copy_n(w_ih + row * features, features, w);
          } else {
            std::fill_n(w, features, 0.0f);
          }
          side.input_bias.floats()[to] = real && b_ih ? b_ih[row] + (late ? 0.0f : b_hh[row]) : 0.0f;
          if (late) side.late_bias.floats()[unit] = real && b_hh ? b_hh[row] : 0.0f;
          for (int64_t k = 0; k < hidden; ++k) {
            side.weight.floats()[((block * hidden + k) * kGates + gate) * kLanes + lane] =
                real ? w_hh[row * hidden + k] : 0.0f;
          }
        }
      }
    }
    GemmOptions gemm;
    gemm.n = rows;
    gemm.k = features;
    gemm.has_bias = true;
    gemm.m_hint = options_.hint_rows;
    return side.input.init(*lib_, gemm, side.input_weight.floats(), side.input_bias.floats());
  }

  Steps steps(int layer, int direction, int64_t time, int64_t batch, const float* h0, float* to) const {
    const int64_t index = layer * options_.directions + direction;
    const Side& side = *sides_[index];
    Steps s;
    s.gate_row = kGates * blocks_ * kLanes;
    s.inputs = inputs_.floats() + direction * time * batch * s.gate_row;
    s.weight = side.weight.floats();
    s.late_bias = side.late_bias.floats();
    s.h0 = h0 ? h0 + index * batch * options_.hidden : zeros_.floats();
    s.cells = cells_.floats() + direction * batch * blocks_ * kLanes;
    s.y = to + direction * options_.hidden;
    s.time_step = options_.batch_first ? 1 : batch;
    s.batch_step = options_.batch_first ? time : 1;
    s.y_row = options_.directions * options_.hidden;
    s.time = time;
    s.hidden = options_.hidden;
    s.blocks = blocks_;
    s.backward = direction == 1;
    return s;
  }

  void run_layer(int layer, int64_t time, int64_t batch, const float* h0, const float* c0, float* to,
                 float* hn, float* cn, int threads) {
    // Directions side by side when there are threads for both, else one after the other.
    const int together = options_.directions == 2 && threads >= 2 ? 2 : 1;
    const int group = std::max(1, threads / together);
#pragma omp parallel num_threads(together* group)
    {
      if (omp_get_num_threads() == together * group) {
        const int thread = omp_get_thread_num();
        for (int turn = 0; turn < options_.directions / together; ++turn) {
          const Steps s = steps(layer, turn + thread / group, time, batch, h0, to);
          run_direction(s, layer, turn + thread / group, batch, c0, hn, cn, thread % group, group);
        }
      } else {  // the runtime gave fewer threads than the plan above counts on
#pragma omp single
        for (int direction = 0; direction < options_.directions; ++direction) {
          const Steps s = steps(layer, direction, time, batch, h0, to);
          run_direction(s, layer, direction, batch, c0, hn, cn, 0, 1);
        }
      }
    }
  }

  // Share `part` of `group` threads in one direction of a layer; all of them call it.
  void run_direction(const Steps& s, int layer, int direction, int64_t batch, const float* c0, float* hn,
                     float* cn, int part, int group) {
    const int64_t state = (layer * options_.directions + direction) * batch * options_.hidden;
    const bool by_batch = batch >= 4 * group || group == 1;
    const int64_t row0 = by_batch ? batch * part / group : 0,
                  row1 = by_batch ? batch * (part + 1) / group : batch;
    const int64_t block0 = by_batch ? 0 : blocks_ * part / group;
    const int64_t block1 = by_batch ? blocks_ : blocks_ * (part + 1) / group;
    copy_cells(s, c0 ? c0 + state : nullptr, row0, row1, block0, block1);
    for (int64_t t = 0; t < s.time; ++t) {
      sweep(s, t, row0, row1, block0, block1);
      if (!by_batch) {
#pragma omp barrier
      }
    }
    if (hn) copy_last(s, hn + state, row0, row1, block0, block1);
    if (cn) save_cells(s, cn + state, row0, row1, block0, block1);
  }

  static int64_t lanes_of(const Steps& s, int64_t block) {
    return std::min<int64_t>(kLanes, s.hidden - block * kLanes);
  }

  static void copy_cells(const Steps& s, const float* c0, int64_t row0, int64_t row1, int64_t block0,
                         int64_t block1) {
    for (int64_t row = row0; row < row1; ++row) {
      for (int64_t block = block0; block < block1; ++block) {
        const Vec c = c0 ? load_some(c0 + row * s.hidden + block * kLanes, lanes_of(s, block)) : splat(0.0f);
        store(s.cells + (row * s.blocks + block) * kLanes, c);
      }
    }
  }

  static void save_cells(const Steps& s, float* cn, int64_t row0, int64_t row1, int64_t block0,
                         int64_t block1) {
    for (int64_t row = row0; row < row1; ++row) {
      for (int64_t block = block0; block < block1; ++block) {
        store_some(cn + row * s.hidden + block * kLanes, load(s.cells + (row * s.blocks + block) * kLanes),
                   lanes_of(s, block));
      }
    }
  }

  static void copy_last(const Steps& s, float* hn, int64_t row0, int64_t row1, int64_t block0,
                        int64_t block1) {
    const int64_t last = s.backward ? 0 : s.time - 1;
    for (int64_t row = row0; row < row1; ++row) {
      const float* from =
          s.time ? s.y + (last * s.time_step + row * s.batch_step) * s.y_row : s.h0 + row * s.hidden;
      for (int64_t block = block0; block < block1; ++block) {
        const int64_t lanes = lanes_of(s, block);
        store_some(hn + row * s.hidden + block * kLanes, load_some(from + block * kLanes, lanes), lanes);
      }
    }
  }

  // One step for some sequences and blocks: row tiles of equal height, the block's weights hot in cache.
  static void sweep(const Steps& s, int64_t t, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    constexpr int kRows = tile_rows(kCell);
    const int64_t rows = row1 - row0, tiles = (rows + kRows - 1) / kRows;
    for (int64_t block = block0; block < block1; ++block) {
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t begin = row0 + rows * i / tiles, end = row0 + rows * (i + 1) / tiles;
        dispatch<kRows>(s, t, begin, end - begin, block);
      }
    }
  }

  template <int kRows>
  static void dispatch(const Steps& s, int64_t t, int64_t row, int64_t rows, int64_t block) {
    if constexpr (kRows > 1) {
      if (rows < kRows) return dispatch<kRows - 1>(s, t, row, rows, block);
    }
    tile<kRows>(s, t, row, block);
  }

  // kRows sequences from `row` on, kLanes hidden units of `block`: sums over k of h[k] * w[k][gate], then the
  // cell.
  template <int kRows>
  static void tile(const Steps& s, int64_t t, int64_t row, int64_t block) {
    const int64_t at = s.backward ? s.time - 1 - t : t, before = s.backward ? at + 1 : at - 1;
    const float* h[kRows];  // state of each sequence after the step before
    const float* in[kRows];
    Vec sums[kRows][kGates];
    for (int r = 0; r < kRows; ++r) {
      h[r] =
          t ? s.y + (before * s.time_step + (row + r) * s.batch_step) * s.y_row : s.h0 + (row + r) * s.hidden;
      in[r] = s.inputs + (at * s.time_step + (row + r) * s.batch_step) * s.gate_row + block * kGates * kLanes;
      for (int g = 0; g < kGates; ++g) {
        const bool late = kCell == Cell::kGru && g == 2;
        sums[r][g] = load(late ? s.late_bias + block * kLanes : in[r] + g * kLanes);
      }
    }
    const float* w = s.weight + block * s.hidden * kGates * kLanes;
    for (int64_t k = 0; k < s.hidden; ++k, w += kGates * kLanes) {
      Vec column[kGates];
      for (int g = 0; g < kGates; ++g) column[g] = load(w + g * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vec value = splat(h[r][k]);
        for (int g = 0; g < kGates; ++g) sums[r][g] = fma(value, column[g], sums[r][g]);
      }
    }
    const int64_t lanes = lanes_of(s, block);
    for (int r = 0; r < kRows; ++r) {
      Vec result;
      if constexpr (kCell == Cell::kLstm) {
        float* c = s.cells + ((row + r) * s.blocks + block) * kLanes;
        const Vec next = load(c) / (splat(1.0f) + exp(-sums[r][1])) + gated_tanh(sums[r][0], sums[r][2]);
        store(c, next);
        result = gated_tanh(sums[r][3], next);
      } else if constexpr (kCell == Cell::kGru) {
        const Vec reset = sigmoid(sums[r][0]), update = sigmoid(sums[r][1]);
        const Vec fresh = tanh(fma(reset, sums[r][2], load(in[r] + 2 * kLanes)));
        result = fma(update, load_some(h[r] + block * kLanes, lanes) - fresh, fresh);
      } else if constexpr (kCell == Cell::kTanh) {
        result = tanh(sums[r][0]);
      } else {
        result = max(splat(0.0f), sums[r][0]);  // in this order NaN stays
      }
      store_some(s.y + (at * s.time_step + (row + r) * s.batch_step) * s.y_row + block * kLanes, result,
                 lanes);
    }
  }

  Dnnl* lib_ = nullptr;
  RnnOptions options_;
  static constexpr int kGates = gate_count(kCell);
  int64_t blocks_ = 0;
  std::vector<std::unique_ptr<Side>> sides_;
  Buffer inputs_, cells_, zeros_, between_;
};

}  // namespace stitch::cpu
#endif  // STITCH_CPU_RNN_H_
