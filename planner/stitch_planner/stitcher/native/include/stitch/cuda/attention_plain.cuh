// Attention in plain float32, without tensor cores: for a few keys, where tiles would be nearly empty; for
// heads with infinity or NaN, which products of split numbers do not carry; and for tests on the host.
#ifndef STITCH_CUDA_ATTENTION_PLAIN_CUH_
#define STITCH_CUDA_ATTENTION_PLAIN_CUH_

#include "stitch/cuda/attention_shape.cuh"
#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

// A block has kQueries queries of one head, and walks over kKeys keys a round.
template <AttentionWeights kWeights, AttentionMask kMask>
struct AttendPlainly {
  static constexpr int kThreads = 128, kPhases = 3, kQueries = 16, kKeys = 16;
  static constexpr int kMostWidth = 256;
  static constexpr int kResults = kQueries * kMostWidth / kThreads;
  struct Shared {
    float weight[kQueries][kKeys];
    float top[kQueries], sum[kQueries];  // over all rounds so far
    float correction[kQueries];          // of earlier results
  };
  struct Thread {
    float result[kResults];
  };

  AttentionOptions o;
  const float *q, *k, *v;
  const AttentionMaskType<kMask>* mask;
  float* out;
  int64_t parts;  // blocks of a head

  __device__ __forceinline__ int64_t rounds() const { return (o.keys + kKeys - 1) / kKeys; }

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int64_t round, int thread, Shared& shared,
                                        Thread& mine) const {
    const int64_t head = block / parts, first = (block - head * parts) * kQueries, key = round * kKeys;
    const int64_t batch = head / o.heads, within = head - batch * o.heads;
    const int queries = least(o.queries - first, kQueries), keys = least(o.keys - key, kKeys);
    if constexpr (P == 0) {
      for (int i = thread; i < queries * keys; i += kThreads) {
        shared.weight[i / keys][i % keys] = score(batch, within, first + i / keys, key + i % keys);
      }
    } else if constexpr (P == 1) {
      if (thread < queries) weigh(round == 0, thread, keys, shared);
    } else {
      const float* values = v + batch * o.v[0] + within * o.v[1] + key * o.v[2];
      add(round == 0, queries, keys, values, thread, shared, mine);
      if (round + 1 < rounds()) return;
      store(queries, out + batch * o.out[0] + within * o.out[1] + first * o.out[2], thread, shared, mine);
    }
  }

 private:
  static __device__ __forceinline__ int least(int64_t left, int most) {
    return left < most ? static_cast<int>(left) : most;
  }

  __device__ __forceinline__ float score(int64_t batch, int64_t within, int64_t query, int64_t key) const {
    if (o.causal && key > query) return -INFINITY;
    const float* a = q + batch * o.q[0] + within * o.q[1] + query * o.q[2];
    const float* b = k + batch * o.k[0] + within * o.k[1] + key * o.k[2];
    float sum = 0.0f;
    for (int64_t i = 0; i < o.width; ++i) sum += a[i] * b[i];
    float score = sum * o.scale;
    if constexpr (kMask != AttentionMask::kNone) {
      const int64_t at = batch * o.mask[0] + within * o.mask[1] + query * o.mask[2] + key * o.mask[3];
      score = masked_score<kMask>(score, mask[at], 1.0f, o.hidden, o.adds_hidden);
    }
    return score;
  }

  // A query's scores become weights.
  __device__ __forceinline__ void weigh(bool is_first, int query, int keys, Shared& shared) const {
    float (&weight)[kKeys] = shared.weight[query];
    if constexpr (kWeights == AttentionWeights::kRelu) {
      for (int key = 0; key < keys; ++key) weight[key] = weight[key] <= 0.0f ? 0.0f : weight[key];
      return;
    }
    const float before = is_first ? -INFINITY : shared.top[query];
    float top = before;
    for (int key = 0; key < keys; ++key) top = fmaxf(top, weight[key]);
    // Where nothing has been visible yet, 0 keeps -inf - -inf out.
    const float base = top == -INFINITY ? 0.0f : top;
    float added = 0.0f;
    for (int key = 0; key < keys; ++key) {
      weight[key] = expf(weight[key] - base);
      added += weight[key];
    }
    shared.correction[query] = expf(before - base);
    shared.top[query] = top;
    shared.sum[query] = is_first ? added : shared.sum[query] * shared.correction[query] + added;
  }

  __device__ __forceinline__ void add(bool is_first, int queries, int keys, const float* values, int thread,
                                      const Shared& shared, Thread& mine) const {
    const int width = static_cast<int>(o.value_width), count = queries * width;
#pragma unroll
    for (int n = 0; n < kResults; ++n) {
      const int i = thread + n * kThreads;
      if (i >= count) break;
      const int query = i / width, column = i - query * width;
      float sum = 0.0f;
      for (int key = 0; key < keys; ++key) sum += shared.weight[query][key] * values[key * o.v[2] + column];
      const float factor = kWeights == AttentionWeights::kRelu ? 1.0f : shared.correction[query];
      mine.result[n] = is_first ? sum : mine.result[n] * factor + sum;
    }
  }

  __device__ __forceinline__ void store(int queries, float* results, int thread, const Shared& shared,
                                        const Thread& mine) const {
    const int width = static_cast<int>(o.value_width), count = queries * width;
#pragma unroll
    for (int n = 0; n < kResults; ++n) {
      const int i = thread + n * kThreads;
      if (i >= count) break;
      const int query = i / width, column = i - query * width;
      results[query * o.out[2] + column] = mine.result[n] / divisor(shared.sum[query]);
    }
  }

  // A sum of 0 saw no key: 0 / 0 is the NaN of a softmax over nothing.
  __device__ __forceinline__ float divisor(float sum) const {
    const bool as_is = kWeights == AttentionWeights::kRelu || (sum == 0.0f && o.empty_is_zero);
    return as_is ? 1.0f : sum;
  }
};

#if !defined(STITCH_ON_HOST)

// Marked heads only: `blocks_of_head` blocks share the parts of one.
template <class F>
__global__ void __launch_bounds__(F::kThreads)
    attend_marked_kernel(const F f, const int32_t* marked, const int32_t blocks_of_head) {
  __shared__ typename F::Shared shared;
  const int64_t head = blockIdx.x / blocks_of_head;
  if (marked[head] == 0) return;
  for (int64_t part = blockIdx.x % blocks_of_head; part < f.parts; part += blocks_of_head) {
    typename F::Thread mine;
    const int64_t count = f.rounds();
    for (int64_t round = 0; round < count; ++round) {
      __syncthreads();
      f.template phase<0>(head * f.parts + part, round, threadIdx.x, shared, mine);
      __syncthreads();
      f.template phase<1>(head * f.parts + part, round, threadIdx.x, shared, mine);
      __syncthreads();
      f.template phase<2>(head * f.parts + part, round, threadIdx.x, shared, mine);
    }
  }
}

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_ATTENTION_PLAIN_CUH_
