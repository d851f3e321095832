// What attention's kernel is passed, and the kernel before it that looks at the mask: which tiles are hidden
// wholly, and which not at all.
#ifndef STITCH_CUDA_ATTENTION_STATES_CUH_
#define STITCH_CUDA_ATTENTION_STATES_CUH_

#include "stitch/cuda/attention_shape.cuh"

namespace stitch::cuda {

template <AttentionMask kMask>
struct AttentionArgs {
  AttentionOptions o;
  const float *q, *k, *v;
  const AttentionMaskType<kMask>* mask;
  float* out;
  const uint8_t* states;  // TileState[mask's batch][mask's heads][query tiles][key tiles]; null: all mixed
  int32_t* marked;        // becomes 1 for heads that met a number that is not finite
  int32_t query_tiles, key_tiles;
  int32_t state_tiles;  // query tiles of `states`
};

// TileState of every tile of queries and keys: one block each.
template <class T, AttentionMask kMask>
__global__ void __launch_bounds__(T::kThreads)
    attention_states_kernel(const AttentionArgs<kMask> args, uint8_t* states) {
  const AttentionOptions& o = args.o;
  int64_t place = blockIdx.x;
  const int64_t first_key = place % args.key_tiles * T::kKeys;
  place /= args.key_tiles;
  const int64_t first_query = place % args.state_tiles * T::kQueries;
  place /= args.state_tiles;
  const int64_t heads = o.mask[1] == 0 ? 1 : o.heads;
  const AttentionMaskType<kMask>* mask = args.mask + place / heads * o.mask[0] + place % heads * o.mask[1];
  const int64_t queries = o.mask[2] == 0 ? 1 : min(int64_t{T::kQueries}, o.queries - first_query);
  const int64_t keys = min(int64_t{T::kKeys}, o.keys - first_key);
  bool plain = true, hidden = true;
  for (int i = threadIdx.x; i < queries * keys; i += T::kThreads) {
    const auto value = mask[(first_query + i / keys) * o.mask[2] + (first_key + i % keys) * o.mask[3]];
    if constexpr (kMask == AttentionMask::kAdd) {
      plain = plain && value == 0.0f;
      hidden = hidden && value == -INFINITY;
    } else {
      const bool hides = (value != 0) == (kMask == AttentionMask::kHide);
      plain = plain && !hides;
      hidden = hidden && hides && o.hidden == -INFINITY;
    }
  }
  const bool all_plain = __syncthreads_and(plain), all_hidden = __syncthreads_and(hidden);
  if (threadIdx.x == 0) states[blockIdx.x] = all_plain ? kTileVisible : all_hidden ? kTileHidden : kTileMixed;
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_ATTENTION_STATES_CUH_
