// The largest (or smallest) elements along one dim of a dense tensor [outer, length, inner], and the first
// places where they stand. A NaN is beyond all others.
//
//   rows      inner is 1: a block for each row
//   columns   a thread for each column, neighbours side by side
#ifndef STITCH_CUDA_EXTREME_CUH_
#define STITCH_CUDA_EXTREME_CUH_

#include "stitch/cuda/grid.cuh"

namespace stitch::cuda {

struct ExtremeOptions {
  int64_t outer = 0, length = 0, inner = 1;
};

template <class T, bool kLargest>
struct Candidate {
  T value;
  int64_t place;  // -1: none

  __device__ __forceinline__ void take(T other, int64_t at) {
    if (place < 0 || beats(other, value) || (at < place && !beats(value, other))) value = other, place = at;
  }

 private:
  static __device__ __forceinline__ bool beats(T a, T b) {
    const bool beyond = kLargest ? a > b : a < b;
    return (beyond || a != a) && b == b;  // a NaN differs from itself, and stays
  }
};

template <class T, bool kLargest, int kThreads_>
struct ExtremeRows {
  static constexpr int kThreads = kThreads_, kPhases = 3, kJoiners = kThreads < 32 ? kThreads : 32;
  struct Shared {
    T value[kThreads_];
    int64_t place[kThreads_];
  };
  struct Thread {};

  const T* in;
  T* values;  // null: only the places are wanted
  int64_t* places;
  int64_t length;

  template <int P>
  __device__ __forceinline__ void phase(int64_t row, int thread, Shared& shared, Thread&) const {
    Candidate<T, kLargest> best{T{}, -1};
    if constexpr (P == 0) {
      const T* from = in + row * length;
#pragma unroll 4
      for (int64_t at = thread; at < length; at += kThreads) best.take(from[at], at);
      keep(thread, best, shared);
    } else if constexpr (P == 1) {
      if (thread >= kJoiners) return;
      for (int t = thread; t < kThreads; t += kJoiners) join(t, shared, best);
      keep(thread, best, shared);
    } else {
      if (thread != 0) return;
      for (int t = 0; t < kJoiners; ++t) join(t, shared, best);
      places[row] = best.place;
      if (values != nullptr) values[row] = best.value;
    }
  }

 private:
  static __device__ __forceinline__ void keep(int thread, const Candidate<T, kLargest>& best,
                                              Shared& shared) {
    shared.value[thread] = best.value;
    shared.place[thread] = best.place;
  }
  static __device__ __forceinline__ void join(int from, const Shared& shared, Candidate<T, kLargest>& best) {
    if (shared.place[from] >= 0) best.take(shared.value[from], shared.place[from]);
  }
};

template <class T, bool kLargest>
struct ExtremeColumns {
  static constexpr int kItems = 8;  // loads in flight

  const T* in;
  T* values;
  int64_t* places;
  int64_t length, inner;

  __device__ __forceinline__ void operator()(int64_t i) const {
    const T* from = in + i / inner * length * inner + i % inner;
    Candidate<T, kLargest> best{T{}, -1};
    for (int64_t first = 0; first < length; first += kItems) {
      T items[kItems];
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        if (first + k < length) items[k] = from[(first + k) * inner];
      }
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        if (first + k < length) best.take(items[k], first + k);
      }
    }
    places[i] = best.place;
    if (values != nullptr) values[i] = best.value;
  }
};

// T: float, double, int32_t or int64_t. kThreads: that share a row.
template <class T, bool kLargest, int kThreads>
class Extreme {
 public:
  int32_t init(const ExtremeOptions& options) {
    options_ = options;
    return STITCH_OK;
  }
  size_t workspace_bytes() const { return 0; }

  // `values` may be null.
  int32_t run(const Call& call, const T* in, T* values, int64_t* places) const {
    const ExtremeOptions& o = options_;
    if (o.inner > 1) {
      const ExtremeColumns<T, kLargest> columns{in, values, places, o.length, o.inner};
      return each("extremes", o.outer * o.inner, columns, call);
    }
    return blocks("extremes", o.outer, ExtremeRows<T, kLargest, kThreads>{in, values, places, o.length},
                  call);
  }

 private:
  ExtremeOptions options_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_EXTREME_CUH_
