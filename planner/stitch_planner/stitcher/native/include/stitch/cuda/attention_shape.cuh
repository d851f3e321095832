// What attention is given, and which element of a tile each lane of a warp holds.
//
// Scores are computed as sums[16 queries, 8 keys] += q[16, 8] k[8, 8] by the tensor-core instructions of
// split.cuh, in whose terms row = lane / 4 and column = lane % 4. Two orders are free, and chosen so that
// nothing has to be shuffled between the two products:
//
//   keys      of the second product, within eight: place `column` is key 2 column, place `column + 4` is key
//             2 column + 1. So a lane already holds the weights that it has to pass.
//   columns   of the values, within 32: column 4 n + j is number n of tile j. So a lane reads the values of
//             four tiles as 16 bytes, and writes its results as 16 bytes.
//
// In shared memory the 16 bytes number c of row r lie at place c ^ (r % 8) of the row: eight rows of one
// column, as well as eight neighbours of one row, then lie in different banks.
#ifndef STITCH_CUDA_ATTENTION_SHAPE_CUH_
#define STITCH_CUDA_ATTENTION_SHAPE_CUH_

#include <float.h>
#include <math.h>

#include <type_traits>

#include "stitch/common/scalar.h"
#include "stitch/cuda/launch.cuh"

namespace stitch::cuda {

// How scores become weights.
enum class AttentionWeights {
  kSoftmax,
  kRelu,  // max(score, 0), not normalised
};

// What is added to, or hidden from, the scores.
enum class AttentionMask {
  kNone,
  kAdd,   // float, added
  kKeep,  // bool, false hides the key
  kHide,  // bool, true hides the key
};

struct AttentionOptions {
  int64_t batch = 1, heads = 1, queries = 0, keys = 0;
  int64_t width = 0;        // of a query and a key
  int64_t value_width = 0;  // of a value
  float scale = 1.0f;
  bool causal = false;  // query i sees keys 0 to i
  // A query that sees no key gives zeros (scaled_dot_product_attention) or NaN (softmax written out).
  bool empty_is_zero = true;
  // What a hidden key's score becomes; it is added where `adds_hidden`, so that NaN stays NaN.
  float hidden = -INFINITY;
  bool adds_hidden = false;
  int64_t q[3] = {}, k[3] = {}, v[3] = {}, out[3] = {};  // strides over [batch, head, position]; width has 1
  int64_t mask[4] = {};                                  // strides over [batch, head, query, key]; 0 repeats
};

template <AttentionMask kMask>
using AttentionMaskType = std::conditional_t<kMask == AttentionMask::kAdd, float, boolean>;

// A score in the weights' units. The least finite numbers stay finite: a query whose keys all have them sees
// them alike, where minus infinity would hide them.
__host__ __device__ __forceinline__ float in_units(float score, float unit) {
  const float scaled = score * unit;
  return scaled == -INFINITY && score != -INFINITY ? -FLT_MAX : scaled;
}

// The score of a key, in the weights' units, after masks.
template <AttentionMask kMask>
__host__ __device__ __forceinline__ float masked_score(float score, AttentionMaskType<kMask> mask, float unit,
                                                       float hidden, bool adds_hidden) {
  if constexpr (kMask == AttentionMask::kAdd) return score + in_units(mask, unit);
  const bool hides = kMask == AttentionMask::kHide ? mask != 0 : mask == 0;
  if (kMask == AttentionMask::kNone || !hides) return score;
  return adds_hidden ? score + hidden : hidden;
}

// ---- tiles --------------------------------------------------------------------------------------------

// A block of kWarps warps, each with kRowTiles * 16 queries, walks over kKeys keys at a time.
template <int kWidthOf, int kRowTilesOf, int kKeysOf, int kWarpsOf, int kBlocksOf>
struct AttentionTile {
  static constexpr int kWidth = kWidthOf;  // floats of a head in shared memory, a multiple of 32
  static constexpr int kRowTiles = kRowTilesOf, kKeys = kKeysOf, kWarps = kWarpsOf;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks = kBlocksOf;  // that a multiprocessor should hold
  static constexpr int kWarpQueries = 16 * kRowTiles, kQueries = kWarps * kWarpQueries;
  static constexpr int kChunks = kWidth / 4;  // of 16 bytes in a row
  static constexpr int kStages = 2;           // tiles of keys and values in shared memory
  static constexpr int kSharedBytes = 4 * kWidth * (kQueries + 2 * kStages * kKeys);
};

// The tile for a head of at most kWidth floats. All take 96 KiB at most, which GPUs of 99 KiB have as well.
template <int kWidth>
struct AttentionTileFor;
template <>
struct AttentionTileFor<32> : AttentionTile<32, 2, 32, 4, 3> {};
template <>
struct AttentionTileFor<64> : AttentionTile<64, 1, 32, 4, 4> {};
template <>
struct AttentionTileFor<96> : AttentionTile<96, 1, 32, 4, 3> {};
template <>
struct AttentionTileFor<128> : AttentionTile<128, 1, 32, 4, 2> {};
template <>
struct AttentionTileFor<192> : AttentionTile<192, 1, 16, 4, 2> {};
template <>
struct AttentionTileFor<256> : AttentionTile<256, 1, 16, 2, 2> {};

// Floats before the 16 bytes number `chunk` of a row of a tile in shared memory.
template <int kWidth>
__host__ __device__ __forceinline__ constexpr int tile_place(int row, int chunk) {
  return row * kWidth + 4 * (chunk ^ (row % 8));
}

// The same, behind a multiple of 32 floats, for chunk 2 * step + side, where side is 0 or 1 and step 0 to 3:
// what depends on the lane is computed once for all steps.
template <int kWidth>
__host__ __device__ __forceinline__ constexpr int step_place(int row, int side, int step) {
  return row * kWidth + 4 * ((side ^ (row % 8)) ^ (2 * step));
}

// Of score number `element` (0 to 3) of an instruction's sums: its query and its key, within 16 and 8.
__host__ __device__ __forceinline__ constexpr int score_row(int lane, int element) {
  return lane / 4 + 8 * (element / 2);
}
__host__ __device__ __forceinline__ constexpr int score_key(int lane, int element) {
  return 2 * (lane % 4) + element % 2;
}

// The score that a lane passes as operand number `operand` (0 to 3) of the second product.
__host__ __device__ __forceinline__ constexpr int weight_element(int operand) {
  return 2 * (operand % 2) + operand / 2;
}

// The key, within 8, whose values a lane passes as operand 0 or 1 of the second product.
__host__ __device__ __forceinline__ constexpr int value_key(int lane, int operand) {
  return 2 * (lane % 4) + operand;
}

// The column, within 32, of result number `element` of tile `tile` (0 to 3).
__host__ __device__ __forceinline__ constexpr int result_column(int lane, int tile, int element) {
  return 4 * (2 * (lane % 4) + element % 2) + tile;
}

// Which rows and chunks the matrices begin at that a lane names to load_matrices: 16 queries by 8 columns,
// and 16 keys by 8 columns.
__host__ __device__ __forceinline__ constexpr int query_row(int lane) { return lane % 16; }
__host__ __device__ __forceinline__ constexpr int query_chunk(int lane) { return lane / 16; }
__host__ __device__ __forceinline__ constexpr int key_row(int lane) { return 8 * (lane / 16) + lane % 8; }
__host__ __device__ __forceinline__ constexpr int key_chunk(int lane) { return lane / 8 % 2; }

// What the mask does to a tile of queries and keys.
enum TileState : uint8_t {
  kTileHidden,   // no query sees a key
  kTileMixed,    // the mask has to be read
  kTileVisible,  // every query sees every key as it is
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_ATTENTION_SHAPE_CUH_
