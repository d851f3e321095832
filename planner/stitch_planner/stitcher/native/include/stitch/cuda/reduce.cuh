// Reductions over the threads that share one row: several running totals at once, in registers, by shuffles
// inside a warp and through shared memory across warps.
//
// The order of additions depends only on the launch shape, so equal inputs give equal bits.
#ifndef STITCH_CUDA_REDUCE_CUH_
#define STITCH_CUDA_REDUCE_CUH_

#include "stitch/common/math.h"
#include "stitch/cuda/constants.cuh"

namespace stitch::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// ---- one running total: begins at `identity`, takes values by `add` -----------------------------------

template <class T>
struct Sum {
  using Value = T;
  static __device__ __forceinline__ T identity() { return T(0); }
  static __device__ __forceinline__ T combine(T a, T b) { return a + b; }
};

template <class T>
struct Prod {
  using Value = T;
  static __device__ __forceinline__ T identity() { return T(1); }
  static __device__ __forceinline__ T combine(T a, T b) { return a * b; }
};

// Maximum and minimum pass NaN on, as torch's do.
template <class T>
struct Max {
  using Value = T;
  static __device__ __forceinline__ T identity() { return kLeast<T>; }
  static __device__ __forceinline__ T combine(T a, T b) { return math::maximum(a, b); }
};

template <class T>
struct Min {
  using Value = T;
  static __device__ __forceinline__ T identity() { return kMost<T>; }
  static __device__ __forceinline__ T combine(T a, T b) { return math::minimum(a, b); }
};

// ---- the totals of one pass ---------------------------------------------------------------------------

template <class... Kinds>
struct Totals {
  __device__ __forceinline__ void merge(const Totals&) {}
  __device__ __forceinline__ Totals from_lane(int) const { return {}; }
};

template <class Kind, class... Rest>
struct Totals<Kind, Rest...> {
  typename Kind::Value value = Kind::identity();
  Totals<Rest...> rest;

  __device__ __forceinline__ void merge(const Totals& other) {
    value = Kind::combine(value, other.value);
    rest.merge(other.rest);
  }

#if !defined(STITCH_ON_HOST)
  // The totals of the lane whose number differs in the bits of `mask`.
  __device__ __forceinline__ Totals from_lane(int mask) const {
    Totals other;
    other.value = __shfl_xor_sync(kAllLanes, value, mask);
    other.rest = rest.from_lane(mask);
    return other;
  }
#endif

  // Takes one element into total number I.
  template <int I, class T>
  __device__ __forceinline__ void add(T element) {
    if constexpr (I == 0) {
      value = Kind::combine(value, element);
    } else {
      rest.template add<I - 1>(element);
    }
  }

  template <int I>
  __device__ __forceinline__ auto get() const {
    if constexpr (I == 0) {
      return value;
    } else {
      return rest.template get<I - 1>();
    }
  }
};

// Groups of elements that one thread adds in one chain. Longer sums are cut into such runs, whose totals are
// then merged: one chain over a million elements would drift by more than the sum of its roundings should.
inline constexpr int kRun = 32;

// Calls take(column, totals) for first, first + step, ... < length, run by run. kUnroll: loads in flight.
template <int kUnroll, class T, class Index, class Take>
__device__ __forceinline__ void take_runs(Index first, Index step, Index length, T& totals,
                                          const Take& take) {
  for (Index column = first; column < length;) {
    T run;
    const Index end = length - column > kRun * step ? column + kRun * step : length;
#pragma unroll kUnroll
    for (; column < end; column += step) take(column, run);
    totals.merge(run);
  }
}

// Pick<P, A, B, ...>: the totals of pass P.
template <int P, class First, class... Rest>
struct PickPass {
  using Type = typename PickPass<P - 1, Rest...>::Type;
};
template <class First, class... Rest>
struct PickPass<0, First, Rest...> {
  using Type = First;
};
template <int P, class... Passes>
using Pick = typename PickPass<P, Passes...>::Type;

#if !defined(STITCH_ON_HOST)

// ---- across threads -----------------------------------------------------------------------------------

// Every lane ends with the totals of its group of kLanes neighbours (a power of two, at most a warp).
// All lanes of the warp must be here.
template <int kLanes, class T>
__device__ __forceinline__ void reduce_lanes(T& totals) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) totals.merge(totals.from_lane(mask));
}

// Every thread ends with the totals of the block. `slots` holds one entry for each warp; it may be used again
// after the next barrier of the block, so two calls in a row need different slots.
template <int kThreads, class T>
__device__ __forceinline__ void reduce_block(T& totals, T* slots) {
  static_assert(kThreads % kWarp == 0, "a block is made of whole warps");
  constexpr int kWarps = kThreads / kWarp;
  reduce_lanes<kWarp>(totals);
  if constexpr (kWarps > 1) {
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) slots[threadIdx.x / kWarp] = totals;
    __syncthreads();
    // Every warp combines the same entries in the same order: no second barrier to broadcast the result.
    totals = lane < kWarps ? slots[lane] : T{};
    reduce_lanes<kWarp>(totals);
  }
}

#endif  // !STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_REDUCE_CUH_
