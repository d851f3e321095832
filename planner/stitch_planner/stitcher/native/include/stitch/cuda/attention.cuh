// weights(scale * Q K^T, masked) V for every head, without storing scores or weights.
//
// Queries, keys, values and results may lie anywhere in memory, as long as the numbers of a head lie side by
// side: windows on one joint projection are read as they are, and results written as the next one reads them.
#ifndef STITCH_CUDA_ATTENTION_CUH_
#define STITCH_CUDA_ATTENTION_CUH_

#include "stitch/cuda/attention_plain.cuh"
#if !defined(STITCH_ON_HOST)
#include "stitch/cuda/attention_kernel.cuh"
#endif

namespace stitch::cuda {

// In plain float32, best for a few keys.
template <AttentionWeights kWeights, AttentionMask kMask>
class PlainAttention {
  using Mask = AttentionMaskType<kMask>;
  using Attend = AttendPlainly<kWeights, kMask>;

 public:
  int32_t init(const AttentionOptions& options) {
    options_ = options;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  int32_t run(const Call& call, const float* q, const float* k, const float* v, const Mask* mask,
              float* out) const {
    const Attend attend = of(q, k, v, mask, out);
    return rounds("attention", options_.batch * options_.heads * attend.parts, attend, call);
  }

  Attend of(const float* q, const float* k, const float* v, const Mask* mask, float* out) const {
    return {options_, q, k, v, mask, out, ceil_div(options_.queries, Attend::kQueries)};
  }

 private:
  AttentionOptions options_;
};

#if defined(STITCH_ON_HOST)

template <int kWidth, AttentionWeights kWeights, AttentionMask kMask, bool kSplit, int kVector>
class Attention : public PlainAttention<kWeights, kMask> {};

#else

// kWidth: floats of a head, rounded up to what AttentionTileFor has. kSplit: float32 products, else TF32.
// kVector: 4 where every row begins at a multiple of 16 bytes and widths are multiples of 4, else 1.
template <int kWidth, AttentionWeights kWeights, AttentionMask kMask, bool kSplit, int kVector,
          class T = AttentionTileFor<kWidth>>
class Attention {
  using Mask = AttentionMaskType<kMask>;
  using Args = AttentionArgs<kMask>;

 public:
  int32_t init(const AttentionOptions& options) {
    options_ = options;
    query_tiles_ = ceil_div(options.queries, T::kQueries);
    key_tiles_ = ceil_div(options.keys, T::kKeys);
    return plain_.init(options);
  }
  size_t workspace_bytes() const { return marks_bytes() + static_cast<size_t>(states()); }

  int32_t run(const Call& call, const float* q, const float* k, const float* v, const Mask* mask,
              float* out) const {
    const int64_t heads = options_.batch * options_.heads, blocks = heads * query_tiles_;
    if (blocks > kMostBlocks) return call.errors->fail(STITCH_ERROR, "more heads than a grid can have");
    Args args{options_, q, k, v, mask, out};
    args.query_tiles = static_cast<int32_t>(query_tiles_);
    args.key_tiles = static_cast<int32_t>(key_tiles_);
    args.state_tiles = static_cast<int32_t>(state_tiles());
    STITCH_TRY(prepare(call, args));
    const auto kernel = attention_kernel<T, kWeights, kMask, kSplit, kVector>;
    STITCH_TRY(call.errors->check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes),
        "take shared memory for attention"));
    kernel<<<static_cast<unsigned>(blocks), T::kThreads, T::kSharedBytes, call.stream>>>(args);
    STITCH_TRY(call.launched("attention"));
    const auto attend = plain_.of(q, k, v, mask, out);
    const int64_t each = max(int64_t{1}, min(attend.parts, kBlocksForMarked / heads));
    attend_marked_kernel<<<static_cast<unsigned>(heads * each), attend.kThreads, 0, call.stream>>>(
        attend, args.marked, static_cast<int32_t>(each));
    return call.launched("attention: heads with infinity or NaN");
  }

 private:
  static constexpr int64_t kBlocksForMarked = 2048;  // more would only cost time where no head is marked

  size_t marks_bytes() const {
    return sizeof(int32_t) * static_cast<size_t>(ceil_div(options_.batch * options_.heads, 64) * 64);
  }
  int64_t state_tiles() const { return options_.mask[2] == 0 ? 1 : query_tiles_; }
  // Tiles of the mask, without what it only repeats; 0: they are not worth a look.
  int64_t states() const {
    if (kMask == AttentionMask::kNone || key_tiles_ == 1) return 0;
    const int64_t batch = options_.mask[0] == 0 ? 1 : options_.batch;
    const int64_t heads = options_.mask[1] == 0 ? 1 : options_.heads;
    return batch * heads * state_tiles() * key_tiles_;
  }

  // No head is marked, and the states of the mask's tiles are known.
  int32_t prepare(const Call& call, Args& args) const {
    if (call.scratch_bytes < workspace_bytes()) {
      return call.errors->fail(STITCH_ERROR, "the workspace is too small for attention");
    }
    args.marked = static_cast<int32_t*>(call.scratch);
    STITCH_TRY(call.errors->check(cudaMemsetAsync(args.marked, 0, marks_bytes(), call.stream),
                                  "clear the marks of heads"));
    if constexpr (kMask != AttentionMask::kNone) {
      if (states() == 0) return STITCH_OK;
      uint8_t* states_of = static_cast<uint8_t*>(call.scratch) + marks_bytes();
      attention_states_kernel<T, kMask>
          <<<static_cast<unsigned>(states()), T::kThreads, 0, call.stream>>>(args, states_of);
      STITCH_TRY(call.launched("attention: states of tiles"));
      args.states = states_of;
    }
    return STITCH_OK;
  }

  AttentionOptions options_;
  PlainAttention<kWeights, kMask> plain_;
  int64_t query_tiles_ = 0, key_tiles_ = 0;
};

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_ATTENTION_CUH_
