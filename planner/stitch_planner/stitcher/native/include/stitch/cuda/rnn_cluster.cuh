// Persistent recurrent layers: one kernel for all steps, a thread-block cluster for each layer (or direction)
// and part of the batch. Weights stay in registers and shared memory; after each step every block sends its
// units' states to all blocks of its cluster, into one of two buffers whose barrier counts the bytes.
//
// Why two buffers are enough: a warp sends the state of step t only after it has used that of step t - 1, and
// a block goes on to step t + 1 only when it has the whole state of step t, from every warp of the cluster.
//
// Fused (ClusterShape::kFused): the cluster multiplies its input as well, and layers run one behind another.
// A layer leaves its states in global memory, with a flag for each block that says how many steps are there;
// one warp of each block of the layer above waits for the flags and copies the states of coming steps into
// shared memory. Clusters take the layers in the order in which they start, lower layers first, and wait for
// lower layers only: no order in which the GPU starts them can leave one waiting for ever.
#ifndef STITCH_CUDA_RNN_CLUSTER_CUH_
#define STITCH_CUDA_RNN_CLUSTER_CUH_

#include "stitch/cuda/cluster.cuh"
#include "stitch/cuda/rnn_shape.cuh"
#include "stitch/cuda/vector.cuh"

namespace stitch::cuda {

// One layer in one direction.
struct ClusterSide {
  const float *input_weight, *weight, *input_bias, *bias;  // as torch has them; biases may be null
  const float* source;  // fused: [part][step][columns][kStride]; else rows of gates, as torch orders them
  float* handover;      // fused: states for the layer above, [part][step][kPadded][kStride]; null: none
  float* out;           // at this direction's columns; null: not wanted
  const float *first_hidden, *first_cell;  // [batch][units]; null: zeros
  float *last_hidden, *last_cell;          // null: not wanted
  int32_t columns;                         // of the source
  int32_t features;                        // of these, those that have weights
  int64_t weight_row;                      // floats between rows of `weight`
  bool backward;
};

inline constexpr int kMostClusterBlocks = 16;
inline constexpr int kFlagLine = 16;  // flags of one layer's part; the first line holds the ticket

template <int kSides>
struct ClusterArgs {
  ClusterSide sides[kSides];
  int32_t* flags;  // zeros at the start: kFlagLine for tickets, then kFlagLine for each side and part
  int32_t steps, batch;
  int32_t first_part, parts;             // parts of the batch that this launch computes
  int64_t out_step, out_sequence;        // floats from one row of `out` to the next
  int64_t source_step, source_sequence;  // not fused: rows of gates
};

#if defined(STITCH_CLUSTERS)

struct ClusterSignals {
  uint64_t state[2];
  uint64_t input[4];
  int32_t done;  // warps that have finished a step, over all steps
  int32_t ticket;
};

// Where a block stands: its rank in the cluster, its layer and its sequences.
struct ClusterPlace {
  int rank, side, part;
};

// What one thread knows and keeps through all steps.
template <class S>
class ClusterLane {
 public:
  __device__ __forceinline__ ClusterLane(const ClusterSide& side, const ClusterPlace& place, float* memory)
      : side_(side),
        share_(threadIdx.x % S::kLanes),
        group_(threadIdx.x / S::kLanes),
        lane_(threadIdx.x % S::kLanes),
        rank_(place.rank),
        first_sequence_(place.part * S::kBatch),
        states_(memory),
        inputs_(memory + 2 * S::kStateFloats),
        staging_(inputs_ + S::kStages * S::kInputFloats),
        spilled_(staging_ + S::kStagingFloats) {}

  // Weights, biases and first states; the block's memory is zero before.
  __device__ __forceinline__ void load(int32_t batch) {
    load_columns<S::kStateColumns, S::kStateHeld>(side_.weight, side_.weight_row, S::kUnits, state_weights_,
                                                  0);
    if constexpr (S::kFused) {
      load_columns<S::kInputColumns, S::kInputHeld>(side_.input_weight, side_.features, side_.features,
                                                    input_weights_, S::kStateColumns - S::kStateHeld);
    }
#pragma unroll
    for (int p = 0; p < kOwn; ++p) {
      const bool real = is_real(p, batch);
      const int64_t at = real ? int64_t{sequence(p)} * S::kUnits + unit(p) : 0;
      hidden_[p] = real && side_.first_hidden != nullptr ? side_.first_hidden[at] : 0.0f;
      cell_[p] = real && side_.first_cell != nullptr ? side_.first_cell[at] : 0.0f;
      unit_biases<S::kCell>(real ? side_.input_bias : nullptr, real ? side_.bias : nullptr, S::kUnits,
                            unit(p), biases_[p]);
    }
    if (side_.first_hidden == nullptr) return;
    float* before = states_ + S::kStateFloats;  // step 0 reads the second buffer
    for (int i = threadIdx.x; i < S::kUnits * S::kBatch; i += S::kThreads) {
      const int column = i % S::kUnits, b = i / S::kUnits;
      if (first_sequence_ + b < batch) {
        before[column * S::kStride + b] =
            side_.first_hidden[int64_t{first_sequence_ + b} * S::kUnits + column];
      }
    }
  }

  template <int kSides>
  __device__ __forceinline__ void run(const ClusterArgs<kSides>& args, ClusterSignals& signals) {
    float given[kOwn][S::kGates];
    if constexpr (!S::kFused) load_gates(args, 0, given);
    for (int32_t t = 0; t < args.steps; ++t) {
      float sums[kItems][S::kSums] = {};
      float gates[kOwn][S::kGates];
      if constexpr (S::kFused) {
        const int stage = t % S::kStages;
        barrier_wait(&signals.input[stage], (t / S::kStages) % 2);
        add_columns<false>(inputs_ + stage * S::kInputFloats, sums);
      } else {
#pragma unroll
        for (int p = 0; p < kOwn; ++p) {
#pragma unroll
          for (int gate = 0; gate < S::kGates; ++gate) gates[p][gate] = given[p][gate];
        }
        if (t + 1 < args.steps) load_gates(args, t + 1, given);
      }
      const int before = (t + 1) % 2;
      if (t > 0) {
        barrier_wait(&signals.state[before], ((t - 1) / 2) % 2);
        // For step t + 1, and before this thread's own share of step t goes out.
        if (threadIdx.x == 0 && t + 2 < args.steps) barrier_expect(&signals.state[before], S::kStateBytes);
      }
      add_columns<true>(states_ + before * S::kStateFloats, sums);
      fold<kItems, S::kLanes / 2>(sums);
      finish(args, t, sums, gates);
      hand_on(args, t, signals);
    }
    if (side_.last_hidden != nullptr) store_last(side_.last_hidden, hidden_, args.batch);
    if (side_.last_cell != nullptr) store_last(side_.last_cell, cell_, args.batch);
  }

 private:
  static constexpr int kItems = S::kTile * S::kBatch;  // units times sequences of a group
  static constexpr bool kWide = S::kRows == 4;
  static constexpr int kOwn = LaneShare<kItems, S::kLanes>::kOwn;

  // Item p of this lane: a unit of its group and a sequence of the part.
  __device__ __forceinline__ int item(int p) const { return share_.begin + p; }
  __device__ __forceinline__ bool is_own(int p) const { return item(p) < share_.end; }
  __device__ __forceinline__ int local_unit(int p) const { return group_ * S::kTile + item(p) / S::kBatch; }
  __device__ __forceinline__ int unit(int p) const { return rank_ * S::kBlockUnits + local_unit(p); }
  __device__ __forceinline__ int sequence(int p) const { return first_sequence_ + item(p) % S::kBatch; }
  __device__ __forceinline__ bool is_real(int p, int32_t batch) const {
    return is_own(p) && unit(p) < S::kUnits && sequence(p) < batch;
  }

  // Rows of this lane's group at columns lane, lane + kLanes, ...: the first kHeld to registers.
  template <int kColumns, int kHeld, int kSize>
  __device__ __forceinline__ void load_columns(const float* weight, int64_t length, int width,
                                               float (&held)[kSize][S::kRows], int spilled_before) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
#pragma unroll
      for (int row = 0; row < S::kRows; ++row) held[i][row] = weight_at(weight, length, width, i, row);
    }
#pragma unroll 1
    for (int i = kHeld; i < kColumns; ++i) {
#pragma unroll
      for (int row = 0; row < S::kRows; ++row) {
        spilled(spilled_before + i - kHeld, row) = weight_at(weight, length, width, i, row);
      }
    }
  }

  __device__ __forceinline__ float weight_at(const float* weight, int64_t length, int width, int i,
                                             int row) const {
    const int column = i * S::kLanes + lane_;
    const int at = rank_ * S::kBlockUnits + group_ * S::kTile + row / S::kGates;
    const bool real = column < width && at < S::kUnits;
    return real ? weight[(int64_t{row % S::kGates} * S::kUnits + at) * length + column] : 0.0f;
  }

  __device__ __forceinline__ float& spilled(int i, int row) const {
    // Four rows side by side are one access.
    return kWide ? spilled_[(i * S::kThreads + threadIdx.x) * S::kRows + row]
                 : spilled_[(i * S::kRows + row) * S::kThreads + threadIdx.x];
  }

  // sums += weights * columns, for the state or the input.
  template <bool kOfState>
  __device__ __forceinline__ void add_columns(const float* columns, float (&sums)[kItems][S::kSums]) const {
    constexpr int kCount = kOfState ? S::kStateColumns : S::kInputColumns;
    constexpr int kHeld = kOfState ? S::kStateHeld : S::kInputHeld;
    constexpr int kBefore = kOfState ? 0 : S::kStateColumns - S::kStateHeld;
    const float* column = columns + lane_ * S::kStride;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if constexpr (kOfState) {
        add_column<true>(column + i * S::kLanes * S::kStride, state_weights_[i], sums);
      } else {
        add_column<false>(column + i * S::kLanes * S::kStride, input_weights_[i], sums);
      }
    }
#pragma unroll 4
    for (int i = kHeld; i < kCount; ++i) {
      float weights[S::kRows];
      if constexpr (kWide) {
        const Group<float, 4> rows = cuda::load<4>(&spilled(kBefore + i - kHeld, 0));
#pragma unroll
        for (int row = 0; row < S::kRows; ++row) weights[row] = rows[row];
      } else {
#pragma unroll
        for (int row = 0; row < S::kRows; ++row) weights[row] = spilled(kBefore + i - kHeld, row);
      }
      add_column<kOfState>(column + i * S::kLanes * S::kStride, weights, sums);
    }
  }

  template <bool kOfState>
  __device__ __forceinline__ void add_column(const float* column, const float (&weights)[S::kRows],
                                             float (&sums)[kItems][S::kSums]) const {
    constexpr int kLast = S::kSums - 1;
    constexpr int kVectors = (S::kBatch + S::kVector - 1) / S::kVector;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Group<float, S::kVector> values = cuda::load<S::kVector>(column + v * S::kVector);
#pragma unroll
      for (int row = 0; row < S::kRows; ++row) {
        const int gate = row % S::kGates, tile = row / S::kGates;
        const int sum = kOfState && S::kCell == Cell::kGru && gate == 2 ? kLast : gate;
#pragma unroll
        for (int e = 0; e < S::kVector; ++e) {
          const int b = v * S::kVector + e;
          if (b < S::kBatch) {
            float& total = sums[tile * S::kBatch + b][sum];
            total = fmaf(weights[row], values[e], total);
          }
        }
      }
    }
  }

  // Adds up the lanes of a group. Each round halves the items that a lane is responsible for: it gives the
  // other half away. The order of additions depends on the shape alone.
  template <int kCount, int kMask>
  __device__ __forceinline__ void fold(float (&sums)[kItems][S::kSums]) const {
    if constexpr (kMask > 0) {
      constexpr int kHalf = (kCount + 1) / 2;
      const bool upper = (lane_ & kMask) != 0;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
#pragma unroll
        for (int s = 0; s < S::kSums; ++s) {
          const float low = sums[i][s], high = kHalf + i < kCount ? sums[kHalf + i][s] : 0.0f;
          const float other = __shfl_xor_sync(0xffffffffu, upper ? low : high, kMask);
          sums[i][s] = (upper ? high : low) + other;
        }
      }
      fold<kHalf, kMask / 2>(sums);
    }
  }

  template <int kSides>
  __device__ __forceinline__ void load_gates(const ClusterArgs<kSides>& args, int32_t t,
                                             float (&gates)[kOwn][S::kGates]) const {
    const int64_t at = side_.backward ? args.steps - 1 - t : t;
#pragma unroll
    for (int p = 0; p < kOwn; ++p) {
      const bool real = is_real(p, args.batch);
      const int64_t row = at * args.source_step + int64_t{sequence(p)} * args.source_sequence;
      const float* gate_row = side_.source + row * S::kGates * S::kUnits;
#pragma unroll
      for (int gate = 0; gate < S::kGates; ++gate) {
        gates[p][gate] = real ? gate_row[gate * S::kUnits + unit(p)] : 0.0f;
      }
    }
  }

  // The new states of this lane's items: to registers, to the staging memory and to the layer's output.
  template <int kSides>
  __device__ __forceinline__ void finish(const ClusterArgs<kSides>& args, int32_t t,
                                         const float (&sums)[kItems][S::kSums],
                                         const float (&gates)[kOwn][S::kGates]) {
    const int64_t at = side_.backward ? args.steps - 1 - t : t;
    __syncwarp();  // the step before has been read from the staging memory
#pragma unroll
    for (int p = 0; p < kOwn; ++p) {
      float values[S::kValues];
#pragma unroll
      for (int v = 0; v < S::kValues; ++v) values[v] = biases_[p][v];
#pragma unroll
      for (int s = 0; s < S::kSums; ++s) {
        values[S::kFused ? s : recurrent_value(S::kCell, s)] += sums[p][s];
      }
      if constexpr (!S::kFused) {
#pragma unroll
        for (int gate = 0; gate < S::kGates; ++gate) values[input_value(gate)] += gates[p][gate];
      }
      if (!is_own(p)) continue;
      hidden_[p] = next_hidden<S::kCell>(values, hidden_[p], cell_[p]);
      staging_[local_unit(p) * S::kStride + item(p) % S::kBatch] = hidden_[p];
      if (side_.out != nullptr && is_real(p, args.batch)) {
        side_.out[at * args.out_step + int64_t{sequence(p)} * args.out_sequence + unit(p)] = hidden_[p];
      }
    }
    __syncwarp();
  }

  // Gives the warp's new states to the layer above and to the cluster's blocks.
  template <int kSides>
  __device__ __forceinline__ void hand_on(const ClusterArgs<kSides>& args, int32_t t,
                                          ClusterSignals& signals) const {
    constexpr int kChunks = S::kWarpFloats / S::kSend;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* mine = staging_ + warp * S::kWarpFloats;
    const int first = rank_ * S::kBlockUnits * S::kStride + warp * S::kWarpFloats;
    if constexpr (S::kFused) {
      if (side_.handover != nullptr) {
        const int64_t step =
            (int64_t{first_sequence_ / S::kBatch} * args.steps + t) * S::kPadded * S::kStride;
        for (int i = lane; i < kChunks; i += 32) {
          cuda::store(side_.handover + step + first + i * S::kSend,
                      cuda::load<S::kSend>(mine + i * S::kSend));
        }
      }
      // Before anything is sent: then no warp can count for step t + 1 while another has not for step t.
      __syncwarp();
      if (lane == 0) count_up(&signals.done);
    }
    if (t + 1 == args.steps) return;
    const SharedAddress target = shared_address(states_ + t % 2 * S::kStateFloats + first);
    const SharedAddress barrier = shared_address(&signals.state[t % 2]);
#pragma unroll
    for (int base = 0; base < kChunks * S::kBlocks; base += 32) {
      const int i = base + lane, chunk = i % kChunks, rank = i / kChunks;
      if (i < kChunks * S::kBlocks) {
        const Group<float, S::kSend> values = cuda::load<S::kSend>(mine + chunk * S::kSend);
        send<S::kSend>(remote_address(target + chunk * S::kSend * 4, rank), values.values,
                       remote_address(barrier, rank));
      }
    }
  }

  __device__ __forceinline__ void store_last(float* last, const float (&values)[kOwn], int32_t batch) const {
#pragma unroll
    for (int p = 0; p < kOwn; ++p) {
      if (is_real(p, batch)) last[int64_t{sequence(p)} * S::kUnits + unit(p)] = values[p];
    }
  }

  const ClusterSide& side_;
  const LaneShare<kItems, S::kLanes> share_;
  const int group_, lane_, rank_, first_sequence_;
  float *const states_, *const inputs_, *const staging_, *const spilled_;
  float state_weights_[detail::larger(S::kStateHeld, 1)][S::kRows];
  float input_weights_[detail::larger(S::kInputHeld, 1)][S::kRows];
  float biases_[kOwn][S::kValues], hidden_[kOwn], cell_[kOwn];
};

// The warp that moves data between layers: copies coming inputs in, and says how far this layer is.
template <class S, int kSides>
__device__ __forceinline__ void move_data(const ClusterArgs<kSides>& args, const ClusterPlace& place,
                                          float* memory, ClusterSignals& signals) {
  const ClusterSide& side = args.sides[place.side];
  const int lane = threadIdx.x % 32;
  int32_t* own_flags = args.flags + kFlagLine * (1 + place.side * args.parts + place.part - args.first_part);
  const int32_t* lower_flags = own_flags - kFlagLine * args.parts;
  const bool first_layer = place.side == 0, publishes = side.handover != nullptr;
  const int64_t step_floats = int64_t{side.columns} * S::kStride;
  const float* source = side.source + place.part * args.steps * step_floats;
  float* inputs = memory + 2 * S::kStateFloats;
  int32_t loaded = 0, published = 0, ready = first_layer ? args.steps : 0;
  Patience patience;
  while (loaded < args.steps || (publishes && published < args.steps)) {
    patience.lose();
    const int32_t done = __shfl_sync(0xffffffffu, counted(&signals.done), 0) / S::kWarps;
    if (publishes && done > published) {
      async_fence();
      if (lane == 0) store_release(own_flags + place.rank, done);
      published = done;
      patience.renew();
    }
    const int32_t room = detail::smaller(args.steps, done + S::kStages);
    if (loaded < room && ready <= loaded) {
      const int32_t flag = lane < S::kBlocks ? load_acquire(lower_flags + lane) : args.steps;
      ready = __reduce_min_sync(0xffffffffu, flag);
      __syncwarp();
    }
    for (const int32_t end = detail::smaller(room, ready); loaded < end; ++loaded) {
      const int stage = loaded % S::kStages;
      if (lane == 0) {
        async_fence();
        barrier_expect(&signals.input[stage], static_cast<uint32_t>(4 * step_floats));
        copy_in(inputs + stage * S::kInputFloats, source + loaded * step_floats,
                static_cast<uint32_t>(4 * step_floats), &signals.input[stage]);
      }
      patience.renew();
    }
  }
}

// The place of this block; clusters of a fused launch take theirs in the order in which they start.
template <class S, int kSides>
__device__ __forceinline__ ClusterPlace find_place(const ClusterArgs<kSides>& args, ClusterSignals& signals) {
  const int rank = static_cast<int>(cluster_rank());
  int number = blockIdx.x / S::kBlocks;
  if constexpr (S::kFused) {
    if (rank == 0 && threadIdx.x == 0) signals.ticket = atomicAdd(args.flags, 1);
  }
  cluster_sync();  // barriers and zeroed memory, too
  if constexpr (S::kFused) number = load_remote(remote_address(shared_address(&signals.ticket), 0));
  return {rank, number / args.parts, args.first_part + number % args.parts};
}

// What every thread of the kernel does.
template <class S, int kSides>
__device__ __forceinline__ void run_block(const ClusterArgs<kSides>& args, float* memory,
                                          ClusterSignals& signals) {
  for (int i = threadIdx.x; i < S::kFloats; i += S::kAllThreads) memory[i] = 0.0f;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(&signals.state[i], 1);
      if (i + 1 < args.steps) barrier_expect(&signals.state[i], S::kStateBytes);
    }
    for (int i = 0; i < S::kStages; ++i) barrier_init(&signals.input[i], 1);
    signals.done = 0;
    barrier_init_fence();
    async_fence();
  }
  const ClusterPlace place = find_place<S>(args, signals);
  if (threadIdx.x < S::kThreads) {
    ClusterLane<S> lane(args.sides[place.side], place, memory);
    lane.load(args.batch);
    sync_threads<S::kThreads>();  // the first state is there
    lane.run(args, signals);
  } else if constexpr (S::kFused) {
    move_data<S>(args, place, memory, signals);
  }
  cluster_sync();  // no block leaves while another may read its memory
}

#endif  // STITCH_CLUSTERS

#if !defined(STITCH_ON_HOST)

template <class S, int kSides>
__global__ void __launch_bounds__(S::kAllThreads, 1)
    rnn_cluster(const __grid_constant__ ClusterArgs<kSides> args) {
#if defined(STITCH_CLUSTERS)
  extern __shared__ __align__(128) float memory[];
  __shared__ ClusterSignals signals;
  run_block<S>(args, memory, signals);
#endif
}

#endif  // !STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_RNN_CLUSTER_CUH_
