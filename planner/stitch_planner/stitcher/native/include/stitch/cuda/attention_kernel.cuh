// Attention in one kernel: scores and weights stay in registers. A block has some queries of one head and
// walks over tiles of keys and values, which are copied into shared memory one tile ahead. Softmax is
// corrected as larger scores appear: T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and
// Work Partitioning", 2023.
//
// Products run on tensor cores, in three TF32 instructions each where float32 is wanted (split.cuh): the
// parts of an operand are made in registers, each time that it is read. Tensor cores truncate their sums, so
// the sum over one tile of keys, or over 32 columns of the head, is added to a running sum in ordinary
// arithmetic.
//
// Infinity has no parts (it gives NaN), and tiles that the mask hides wholly are left out, with the NaN or
// infinity that they hold. So whoever meets a product that is not finite marks its head, and marked heads are
// computed again in plain float32 (attention_plain.cuh). What no query sees is never read.
#ifndef STITCH_CUDA_ATTENTION_KERNEL_CUH_
#define STITCH_CUDA_ATTENTION_KERNEL_CUH_

#include "stitch/cuda/attention_states.cuh"
#include "stitch/cuda/split.cuh"

namespace stitch::cuda {

// ---- instructions -------------------------------------------------------------------------------------

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) < INFINITY; }

// Copies kBytes into shared memory, or fills them with zeros.
template <int kBytes>
__device__ __forceinline__ void copy_or_zero(uint32_t shared, const float* source, bool real) {
  const int bytes = real ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(source), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(source), "r"(bytes)
                 : "memory");
  }
}

// An operand's parts; without kSplit only `big`.
template <bool kSplit>
__device__ __forceinline__ Tf32Parts operand_parts(float x) {
  if constexpr (kSplit) return split_tf32(x);
  Tf32Parts parts{};
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(parts.big) : "f"(x));
  return parts;
}

template <bool kSplit>
struct LeftOperand {
  uint32_t big[4], small[4];

  __device__ __forceinline__ void set(int i, float x) {
    const Tf32Parts parts = operand_parts<kSplit>(x);
    big[i] = parts.big, small[i] = parts.small;
  }
  // sum += this * [b0; b1], of three products number `which`; small ones first.
  __device__ __forceinline__ void multiply(int which, float (&sum)[4], const Tf32Parts& b0,
                                           const Tf32Parts& b1) const {
    if (which == 0) mma_tf32(sum, small, b0.big, b1.big);
    if (which == 1) mma_tf32(sum, big, b0.small, b1.small);
    if (which == 2) mma_tf32(sum, big, b0.big, b1.big);
  }
};

// ---- a block ------------------------------------------------------------------------------------------

template <class T, AttentionWeights kWeights, AttentionMask kMask, bool kSplit, int kVector>
class AttentionBlock {
  static constexpr int kGroup = T::kKeys / 8 < 4 ? T::kKeys / 8 : 4;  // tiles of 8 keys at a time
  static constexpr int kFirstProduct = kSplit ? 0 : 2;
  static constexpr bool kSoftmax = kWeights == AttentionWeights::kSoftmax;
  using Args = AttentionArgs<kMask>;

 public:
  __device__ __forceinline__ AttentionBlock(const Args& args, float* shared)
      : args_(args), shared_(shared), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32) {
    // Queries of one head one behind another, for they read the same keys; late ones first, which see most.
    const int32_t head = blockIdx.x / args.query_tiles;
    const int32_t tile = args.query_tiles - 1 - (blockIdx.x - head * args.query_tiles);
    head_ = head;
    batch_ = head / static_cast<int32_t>(args.o.heads);
    within_ = head - batch_ * static_cast<int32_t>(args.o.heads);
    first_query_ = tile * T::kQueries;
    if (args.states != nullptr) {
      const int64_t heads = args.o.mask[1] == 0 ? 1 : args.o.heads;
      const int64_t place = (args.o.mask[0] == 0 ? 0 : batch_) * heads + (args.o.mask[1] == 0 ? 0 : within_);
      states_ =
          args.states + (place * args.state_tiles + (args.state_tiles == 1 ? 0 : tile)) * args.key_tiles;
    }
  }

  __device__ __forceinline__ void run() {
    const AttentionOptions& o = args_.o;
    const float* q = args_.q + batch_ * o.q[0] + within_ * o.q[1] + first_query_ * o.q[2];
    load<T::kQueries>(0, q, o.q[2], o.queries - first_query_, o.width);
    int32_t tile = next(0);
    if (tile < args_.key_tiles) load_keys(tile, 0);
    copies_commit();
    for (int stage = 0; tile < args_.key_tiles; stage ^= 1) {
      const int32_t following = next(tile + 1);
      copies_wait<0>();
      __syncthreads();  // this tile is there for all, and the other stage has been read by all
      if (following < args_.key_tiles) load_keys(following, stage ^ 1);
      copies_commit();
      if (!leaves_out(first_query_ + warp_ * T::kWarpQueries, T::kWarpQueries, tile * T::kKeys)) {
        one_tile(tile, stage);
      }
      tile = following;
    }
    copies_wait<0>();
    finish();
  }

 private:
  // ---- which tiles ------------------------------------------------------------------------------------

  // Whether these queries see none of the keys from `first` on.
  __device__ __forceinline__ bool leaves_out(int32_t query, int32_t count, int32_t first) const {
    return args_.o.causal && first > query + count - 1;
  }

  // The first tile from `tile` on that some query sees.
  __device__ __forceinline__ int32_t next(int32_t tile) const {
    if (leaves_out(first_query_, T::kQueries, tile * T::kKeys)) return args_.key_tiles;
    if (states_ == nullptr) return tile;
    while (tile < args_.key_tiles && states_[tile] == kTileHidden) ++tile;
    return tile;
  }

  // ---- shared memory ----------------------------------------------------------------------------------

  static __device__ __forceinline__ constexpr int keys_begin(int stage) {
    return T::kWidth * (T::kQueries + 2 * stage * T::kKeys);
  }
  static __device__ __forceinline__ constexpr int values_begin(int stage) {
    return keys_begin(stage) + T::kWidth * T::kKeys;
  }

  __device__ __forceinline__ void load_keys(int32_t tile, int stage) {
    const AttentionOptions& o = args_.o;
    const int64_t first = int64_t{tile} * T::kKeys;
    const float* k = args_.k + batch_ * o.k[0] + within_ * o.k[1] + first * o.k[2];
    const float* v = args_.v + batch_ * o.v[0] + within_ * o.v[1] + first * o.v[2];
    load<T::kKeys>(keys_begin(stage), k, o.k[2], o.keys - first, o.width);
    load<T::kKeys>(values_begin(stage), v, o.v[2], o.keys - first, o.value_width);
  }

  // kRows rows into shared memory; zeros beyond `rows` and `width`.
  template <int kRows>
  __device__ __forceinline__ void load(int begin, const float* source, int64_t stride, int64_t rows,
                                       int64_t width) {
    static_assert(kRows * T::kChunks % T::kThreads == 0);
    // Eight threads copy 128 bytes of a row.
    constexpr int kRowsAtOnce = T::kThreads / 8;
    static_assert(kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
    const int first = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const uint32_t to = address(begin + tile_place<T::kWidth>(first, chunk));
    const float* from = source + first * stride + 4 * chunk;
#pragma unroll
    for (int done = 0; done < kRows; done += kRowsAtOnce, from += kRowsAtOnce * stride) {
      const bool row_exists = first + done < rows;
#pragma unroll
      for (int part = 0; part < T::kWidth / 32; ++part) {
        const int64_t left = row_exists ? width - 32 * part - 4 * chunk : 0;
        const uint32_t place = to + 4 * (done * T::kWidth + 32 * part);
        if constexpr (kVector == 4) {
          copy_or_zero<16>(place, left > 0 ? from + 32 * part : source, left > 0);
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            copy_or_zero<4>(place + 4 * e, left > e ? from + 32 * part + e : source, left > e);
          }
        }
      }
    }
  }

  __device__ __forceinline__ uint32_t address(int place) const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared_ + place));
  }

  // ---- one tile ---------------------------------------------------------------------------------------

  __device__ __forceinline__ void one_tile(int32_t tile, int stage) {
    float scores[T::kRowTiles][T::kKeys / 8][4];
    bool finite = multiply_keys(keys_begin(stage), scores);
    hide(tile, scores);
    float correction[T::kRowTiles][2];
    weigh(scores, correction);
#pragma unroll
    for (int group = 0; group < T::kWidth / 32; ++group) {
      float sums[T::kRowTiles][4][4];
      finite = multiply_values(values_begin(stage), group, scores, sums) && finite;
#pragma unroll
      for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          float& out = out_[m][group][i / 4][i % 4];
          out = kSoftmax ? fmaf(out, correction[m][i % 4 / 2], sums[m][i / 4][i % 4])
                         : out + sums[m][i / 4][i % 4];
        }
      }
    }
    if (!finite) args_.marked[head_] = 1;
  }

  // scores = unit * q k^T; whether all products are finite.
  __device__ __forceinline__ bool multiply_keys(int keys,
                                                float (&scores)[T::kRowTiles][T::kKeys / 8][4]) const {
    const float unit = args_.o.scale * (kSoftmax ? kLog2E : 1.0f);
    bool finite = true;
#pragma unroll
    for (int begin = 0; begin < T::kKeys / 8; begin += kGroup) {
#pragma unroll
      for (int part = 0; part < T::kWidth / 32; ++part) {
        float sums[T::kRowTiles][kGroup][4] = {};
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          multiply_step(keys + 8 * begin * T::kWidth + 32 * part, 32 * part, step, sums);
        }
#pragma unroll
        for (int i = 0; i < T::kRowTiles * kGroup * 4; ++i) {
          const int m = i / (4 * kGroup), n = i / 4 % kGroup, e = i % 4;
          float& score = scores[m][begin + n][e];
          score = part == 0 ? sums[m][n][e] * unit : fmaf(sums[m][n][e], unit, score);
          finite = finite && is_finite(sums[m][n][e]);
        }
      }
    }
    return finite;
  }

  // Eight columns of the head, for 8 * kGroup keys; both begin where the places say.
  __device__ __forceinline__ void multiply_step(int keys, int queries, int step,
                                                float (&sums)[T::kRowTiles][kGroup][4]) const {
    LeftOperand<kSplit> q[T::kRowTiles];
#pragma unroll
    for (int m = 0; m < T::kRowTiles; ++m) {
      uint32_t raw[4];
      const int row = warp_ * T::kWarpQueries + query_row(lane_);
      const int place = step_place<T::kWidth>(row, query_chunk(lane_), step);
      load_matrices(raw, address(queries + place + 16 * m * T::kWidth));
#pragma unroll
      for (int i = 0; i < 4; ++i) q[m].set(i, __uint_as_float(raw[i]));
    }
#pragma unroll
    for (int n = 0; n < kGroup; n += 2) {
      uint32_t raw[4];
      const int place = step_place<T::kWidth>(key_row(lane_), key_chunk(lane_), step);
      load_matrices(raw, address(keys + place + 8 * n * T::kWidth));
      Tf32Parts k[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) k[i] = operand_parts<kSplit>(__uint_as_float(raw[i]));
#pragma unroll
      for (int which = kFirstProduct; which < 3; ++which) {
#pragma unroll
        for (int m = 0; m < T::kRowTiles; ++m) {
          q[m].multiply(which, sums[m][n], k[0], k[1]);
          q[m].multiply(which, sums[m][n + 1], k[2], k[3]);
        }
      }
    }
  }

  // sums = weights v for 32 columns; whether all are finite.
  __device__ __forceinline__ bool multiply_values(int values, int group,
                                                  const float (&weights)[T::kRowTiles][T::kKeys / 8][4],
                                                  float (&sums)[T::kRowTiles][4][4]) const {
#pragma unroll
    for (int i = 0; i < T::kRowTiles * 16; ++i) sums[i / 16][i / 4 % 4][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < T::kKeys / 8; ++step) {
      float4 rows[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int place = tile_place<T::kWidth>(value_key(lane_, i), lane_ / 4);
        rows[i] =
            *reinterpret_cast<const float4*>(shared_ + values + place + 8 * step * T::kWidth + 32 * group);
      }
      LeftOperand<kSplit> w[T::kRowTiles];
#pragma unroll
      for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) w[m].set(i, weights[m][step][weight_element(i)]);
      }
      const float first[4] = {rows[0].x, rows[0].y, rows[0].z, rows[0].w};
      const float second[4] = {rows[1].x, rows[1].y, rows[1].z, rows[1].w};
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        Tf32Parts v[2][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          v[i][0] = operand_parts<kSplit>(first[j + i]);
          v[i][1] = operand_parts<kSplit>(second[j + i]);
        }
#pragma unroll
        for (int which = kFirstProduct; which < 3; ++which) {
#pragma unroll
          for (int i = 0; i < 2 * T::kRowTiles; ++i) {
            w[i / 2].multiply(which, sums[i / 2][j + i % 2], v[i % 2][0], v[i % 2][1]);
          }
        }
      }
    }
    bool finite = true;
#pragma unroll
    for (int i = 0; i < T::kRowTiles * 16; ++i) finite = finite && is_finite(sums[i / 16][i / 4 % 4][i % 4]);
    return finite;
  }

  // ---- weights ----------------------------------------------------------------------------------------

  // Applies masks, and hides keys that do not exist.
  __device__ __forceinline__ void hide(int32_t tile, float (&scores)[T::kRowTiles][T::kKeys / 8][4]) const {
    const AttentionOptions& o = args_.o;
    const int32_t first = tile * T::kKeys, query = first_query_ + warp_ * T::kWarpQueries;
    const bool reads = kMask != AttentionMask::kNone && (states_ == nullptr || states_[tile] != kTileVisible);
    const bool ends = first + T::kKeys > o.keys, crosses = o.causal && first + T::kKeys - 1 > query;
    if (!reads && !ends && !crosses) return;
    const float unit = kSoftmax ? kLog2E : 1.0f, hidden = in_units(o.hidden, unit);
    const AttentionMaskType<kMask>* mask = args_.mask;
    if (reads) mask += batch_ * o.mask[0] + within_ * o.mask[1];
#pragma unroll
    for (int i = 0; i < T::kRowTiles * (T::kKeys / 2); ++i) {
      const int m = i / (T::kKeys / 2), n = i / 4 % (T::kKeys / 8), e = i % 4;
      const int32_t row = query + 16 * m + score_row(lane_, e), key = first + 8 * n + score_key(lane_, e);
      float& score = scores[m][n][e];
      if (reads && row < o.queries && key < o.keys) {
        score =
            masked_score<kMask>(score, mask[row * o.mask[2] + key * o.mask[3]], unit, hidden, o.adds_hidden);
      }
      if (crosses && key > row) score = -INFINITY;
      if (key >= o.keys) score = -INFINITY;
    }
  }

  // Scores become weights; `correction` is what earlier results have to be multiplied with.
  __device__ __forceinline__ void weigh(float (&scores)[T::kRowTiles][T::kKeys / 8][4],
                                        float (&correction)[T::kRowTiles][2]) {
#pragma unroll
    for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kSoftmax) {
          correction[m][half] = softmax_row(scores[m], half, top_[m][half], sum_[m][half]);
        } else {
#pragma unroll
          for (int i = 0; i < T::kKeys / 4; ++i) {
            float& score = scores[m][i / 2][2 * half + i % 2];
            score = score <= 0.0f ? 0.0f : score;  // NaN stays
          }
        }
      }
    }
  }

  __device__ __forceinline__ static float softmax_row(float (&scores)[T::kKeys / 8][4], int half, float& top,
                                                      float& sum) {
    float largest = top;
#pragma unroll
    for (int i = 0; i < T::kKeys / 4; ++i) largest = fmaxf(largest, scores[i / 2][2 * half + i % 2]);
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    // Where nothing has been visible yet, 0 keeps -inf - -inf out.
    const float base = largest == -INFINITY ? 0.0f : largest;
    const float correction = power_of_two(top - base);
    float added = 0.0f;
#pragma unroll
    for (int i = 0; i < T::kKeys / 4; ++i) {
      float& score = scores[i / 2][2 * half + i % 2];
      score = power_of_two(score - base);
      added += score;
    }
    top = largest;
    sum = fmaf(sum, correction, added);
    return correction;
  }

  // ---- results ----------------------------------------------------------------------------------------

  __device__ __forceinline__ void finish() {
    const AttentionOptions& o = args_.o;
#pragma unroll
    for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = sum_[m][half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const int64_t row = first_query_ + warp_ * T::kWarpQueries + 16 * m + score_row(lane_, 2 * half);
        if (row >= o.queries) continue;
        // A sum of 0 saw no key: 0 / 0 is the NaN of a softmax over nothing.
        const float by = !kSoftmax || (sum == 0.0f && o.empty_is_zero) ? 1.0f : sum;
        float* out = args_.out + batch_ * o.out[0] + within_ * o.out[1] + row * o.out[2];
#pragma unroll
        for (int group = 0; group < T::kWidth / 32; ++group) {
#pragma unroll
          for (int side = 0; side < 2; ++side) {
            const int e = 2 * half + side, column = 32 * group + result_column(lane_, 0, e);
            float4 four;
            four.x = out_[m][group][0][e] / by, four.y = out_[m][group][1][e] / by;
            four.z = out_[m][group][2][e] / by, four.w = out_[m][group][3][e] / by;
            store(out + column, four, static_cast<int32_t>(o.value_width) - column);
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void store(float* out, const float4& four, int32_t left) {
    if (kVector == 4) {
      if (left > 0) *reinterpret_cast<float4*>(out) = four;
      return;
    }
    if (left > 0) out[0] = four.x;
    if (left > 1) out[1] = four.y;
    if (left > 2) out[2] = four.z;
    if (left > 3) out[3] = four.w;
  }

  static constexpr float kLog2E = 1.4426950408889634f;

  const Args& args_;
  float* shared_;
  const uint8_t* states_ = nullptr;
  int32_t head_, batch_, within_, first_query_;
  int lane_, warp_;
  float out_[T::kRowTiles][T::kWidth / 32][4][4] = {};
  float top_[T::kRowTiles][2], sum_[T::kRowTiles][2] = {};

 public:
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int m = 0; m < T::kRowTiles; ++m) top_[m][0] = top_[m][1] = -INFINITY;
  }
};

template <class T, AttentionWeights kWeights, AttentionMask kMask, bool kSplit, int kVector>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    attention_kernel(const __grid_constant__ AttentionArgs<kMask> args) {
  extern __shared__ __align__(128) float attention_memory[];
  AttentionBlock<T, kWeights, kMask, kSplit, kVector> block(args, attention_memory);
  block.start();
  block.run();
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_ATTENTION_KERNEL_CUH_
