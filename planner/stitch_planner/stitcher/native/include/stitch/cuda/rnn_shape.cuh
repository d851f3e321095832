// How a recurrent layer is spread over a thread-block cluster: all numbers of rnn_cluster.cuh, from sizes.
//
// A block owns kBlockUnits units, in groups of kTile. kLanes neighbouring lanes share a group: each has the
// weights of the group's rows at every kLanes-th column, in registers as far as they reach. A step is then
// one chain of multiply-adds in each lane, a sum over the lanes, and a cell in the lane that keeps its state.
#ifndef STITCH_CUDA_RNN_SHAPE_CUH_
#define STITCH_CUDA_RNN_SHAPE_CUH_

#include <stdint.h>

#include "stitch/cuda/rnn_cell.cuh"

namespace stitch::cuda {

namespace detail {

constexpr STITCH_FN int up_to(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr STITCH_FN int ratio_up(int a, int b) { return (a + b - 1) / b; }
constexpr STITCH_FN int smaller(int a, int b) { return a < b ? a : b; }
constexpr STITCH_FN int larger(int a, int b) { return a > b ? a : b; }

// The most lanes of a group, a power of two up to a warp, with which `groups` groups fit into `threads`.
constexpr int lanes_for(int groups, int threads) {
  int lanes = 32;
  while (lanes > 1 && lanes * groups > threads) lanes /= 2;
  return lanes;
}

// Floats of a vector access to a column of `batch` values.
constexpr int column_vector(int batch) { return batch % 4 == 0 || batch % 4 == 3 ? 4 : batch > 1 ? 2 : 1; }

// Floats from one column to the next: an odd number of vectors, so that lanes at neighbouring columns read
// from different banks.
constexpr int column_stride(int batch) {
  const int vector = column_vector(batch), vectors = ratio_up(batch, vector);
  return vector * (vectors % 2 == 0 ? vectors + 1 : vectors);
}

}  // namespace detail

// Columns (states and inputs) lie as [column][kStride] floats, one for each sequence, in shared memory and in
// the global memory between layers.
//
// kInputs_: columns of the widest input that is multiplied here; 0: input products are computed before.
template <Cell kCell_, int kUnits_, int kInputs_, int kBatch_, int kBlocks_>
struct ClusterShape {
  static constexpr Cell kCell = kCell_;
  static constexpr int kUnits = kUnits_, kInputs = kInputs_, kBatch = kBatch_, kBlocks = kBlocks_;
  static constexpr bool kFused = kInputs > 0;
  static constexpr int kGates = gate_count(kCell);
  static constexpr int kValues = value_count(kCell);
  // Sums over columns: input and recurrent share of a GRU's n apart, unless the input's is given.
  static constexpr int kSums = kFused ? kValues : kGates;
  // Each value that is read from shared memory is to be used for about four multiply-adds.
  static constexpr int kTile = kGates == 1 ? 4 : 1;
  static constexpr int kRows = kGates * kTile;

  static constexpr int kMostThreads = 256;  // more would leave each too few registers
  static constexpr int kOtherRegisters = 46;
  static constexpr int kLeastGroups = detail::ratio_up(detail::ratio_up(kUnits, kBlocks), kTile);
  static constexpr int kLanes = detail::lanes_for(kLeastGroups, kMostThreads);
  static constexpr int kWarpGroups = 32 / kLanes;
  static constexpr int kGroups = detail::up_to(kLeastGroups, kWarpGroups);
  static constexpr int kWarps = kGroups / kWarpGroups;
  static constexpr int kThreads = 32 * kWarps;  // that compute; one warp more moves data
  static constexpr int kAllThreads = kThreads + (kFused ? 32 : 0);
  static constexpr int kWarpUnits = kWarpGroups * kTile;
  static constexpr int kBlockUnits = kGroups * kTile;
  static constexpr int kPadded = kBlockUnits * kBlocks;  // columns of a state, zeros beyond kUnits

  static constexpr int kVector = detail::column_vector(kBatch);
  static constexpr int kStride = detail::column_stride(kBatch);

  // Columns of one lane, and how many of them have their weights in registers: those of the state first.
  static constexpr int kStateColumns = detail::ratio_up(kPadded, kLanes);
  static constexpr int kInputColumns = detail::ratio_up(kInputs, kLanes);
  static constexpr int kTotals = kSums * kTile * kBatch;
  // A quarter of a multiprocessor has 16384 registers, for two warps, or three where one moves data. What is
  // left beside addresses and values on their way holds totals and weights.
  static constexpr int kThreadRegisters = kAllThreads > 256 ? 168 : 255;
  static constexpr int kFreeRegisters = kThreadRegisters - kOtherRegisters - kTotals;
  static constexpr int kRegisterColumns = kFreeRegisters > 0 ? kFreeRegisters / kRows : 0;
  static constexpr int kStateHeld = detail::smaller(kStateColumns, kRegisterColumns);
  static constexpr int kInputHeld = detail::smaller(kInputColumns, kRegisterColumns - kStateHeld);

  // Shared memory, in floats.
  static constexpr int kStateFloats = detail::up_to(kStateColumns * kLanes * kStride, 4);
  static constexpr int kInputFloats = detail::up_to(kInputColumns * kLanes * kStride, 4);
  static constexpr int kStages = kFused ? 4 : 0;  // inputs of steps to come
  static constexpr int kStagingFloats = detail::up_to(kBlockUnits * kStride, 4);
  static constexpr int kSpilledWeights =
      (kStateColumns - kStateHeld + kInputColumns - kInputHeld) * kRows * kThreads;
  static constexpr int kFloats = 2 * kStateFloats + kStages * kInputFloats + kStagingFloats + kSpilledWeights;

  // What a warp sends: its units' columns, in stores of kSend floats.
  static constexpr int kWarpFloats = kWarpUnits * kStride;
  static constexpr int kSend = kWarpFloats % 4 == 0 ? 4 : kWarpFloats % 2 == 0 ? 2 : 1;
  static constexpr int kStateBytes = kPadded * kStride * 4;  // that a block receives in a step

  static constexpr int kMostSharedBytes = 227 * 1024 - 256;  // less than a block may have, by its barriers
  static constexpr int kMostSequences = 12;
  static constexpr bool kFits =
      4 * kFloats <= kMostSharedBytes && kBatch * kTile * kSums <= kMostSequences * 4 && kBatch > 0;
};

// A lane's share of `kItems` totals when they are halved log2(kLanes) times: [begin, end) of the items that
// end in this lane, at most kOwn.
template <int kItems, int kLanes>
struct LaneShare {
  static constexpr int own() {
    int items = kItems;
    for (int lanes = kLanes; lanes > 1; lanes /= 2) items = (items + 1) / 2;
    return items;
  }
  static constexpr int kOwn = own();

  int begin = 0, end = kItems;

  STITCH_FN explicit LaneShare(int lane) {
    int items = kItems;
    for (int mask = kLanes / 2; mask > 0; mask /= 2) {
      items = (items + 1) / 2;
      const int middle = begin + items < end ? begin + items : end;
      if (lane & mask) {
        begin = begin + items;
      } else {
        end = middle;
      }
    }
  }
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_RNN_SHAPE_CUH_
