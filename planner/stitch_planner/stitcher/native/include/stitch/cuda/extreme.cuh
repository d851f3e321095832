// The largest (or smallest) elements along one dim of a dense tensor [outer, length, inner], and the first
// places where they stand. A NaN is beyond all others.
//
//   rows      inner is 1: a block for each row
//   columns   a block for 32 neighbouring columns, eight threads each
#ifndef STITCH_CUDA_EXTREME_CUH_
#define STITCH_CUDA_EXTREME_CUH_

#include "stitch/cuda/grid.cuh"
#include "stitch/cuda/reduce.cuh"

namespace stitch::cuda {

struct ExtremeOptions {
  int64_t outer = 0, length = 0, inner = 1;
};

// Place: a signed type that holds the length.
template <class T, bool kLargest, class Place>
struct Candidate {
  T value;
  Place place;  // -1: none

  // No constructor: shared memory has none.
  static __device__ __forceinline__ Candidate none() { return {T{}, -1}; }

  // An element behind all that were taken before.
  __device__ __forceinline__ void next(T other, Place at) {
    if (place < 0 || beats(other, value)) value = other, place = at;
  }
  // What other threads found, anywhere.
  __device__ __forceinline__ void join(const Candidate& other) {
    if (other.place < 0) return;
    const bool earlier = other.place < place && !beats(value, other.value);
    if (place < 0 || beats(other.value, value) || earlier) *this = other;
  }

 private:
  static __device__ __forceinline__ bool beats(T a, T b) {
    const bool within = kLargest ? a <= b : a >= b;
    return !within && b == b;  // a NaN differs from itself, and stays
  }
};

#if defined(STITCH_ON_HOST)
inline constexpr int kVoices = 1;  // threads whose candidates are joined before they are written
#else
inline constexpr int kVoices = kWarp;

template <class C>
__device__ __forceinline__ void join_warp(C& best) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    C other;
    other.value = __shfl_xor_sync(kAllLanes, best.value, mask);
    other.place = __shfl_xor_sync(kAllLanes, best.place, mask);
    best.join(other);
  }
}
#endif

template <class T, bool kLargest, int kThreads_, class Place>
struct ExtremeRows {
  using Best = Candidate<T, kLargest, Place>;
  static constexpr int kThreads = kThreads_, kPhases = 2, kItems = 4;  // loads in flight
  struct Shared {
    Best found[kThreads_ / kVoices];
  };
  struct Thread {};

  const T* in;
  T* values;  // null: only the places are wanted
  int64_t* places;
  Place length;

  template <int P>
  __device__ __forceinline__ void phase(int64_t row, int thread, Shared& shared, Thread&) const {
    if constexpr (P == 0) {
      const T* from = in + row * length;
      Best best = Best::none();
      for (Place first = thread; first < length; first += kItems * kThreads) {
        T items[kItems];
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          if (first + i * kThreads < length) items[i] = from[first + i * kThreads];
        }
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          if (first + i * kThreads < length) best.next(items[i], first + i * kThreads);
        }
      }
#if !defined(STITCH_ON_HOST)
      join_warp(best);
#endif
      if (thread % kVoices == 0) shared.found[thread / kVoices] = best;
    } else {
      if (thread != 0) return;
      Best best = shared.found[0];
      for (int t = 1; t < kThreads / kVoices; ++t) best.join(shared.found[t]);
      places[row] = best.place;
      if (values != nullptr) values[row] = best.value;
    }
  }
};

template <class T, bool kLargest, class Place>
struct ExtremeColumns {
  using Best = Candidate<T, kLargest, Place>;
  static constexpr int kWidth = 32, kLines = 8;
  static constexpr int kThreads = kWidth * kLines, kPhases = 2, kItems = 8;  // loads in flight
  struct Shared {
    Best found[kLines][kWidth];
  };
  struct Thread {};

  const T* in;
  T* values;
  int64_t* places;
  Place length;
  int64_t inner, columns;

  template <int P>
  __device__ __forceinline__ void phase(int64_t block, int thread, Shared& shared, Thread&) const {
    const int across = thread % kWidth, line = thread / kWidth;
    const int64_t column = block * kWidth + across;
    if (column >= columns) return;
    if constexpr (P == 0) {
      const int64_t outer = column / inner;
      const T* from = in + (outer * length * inner + (column - outer * inner));
      Best best = Best::none();
      for (Place first = line; first < length; first += kItems * kLines) {
        T items[kItems];
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          if (first + i * kLines < length) items[i] = from[(first + i * kLines) * inner];
        }
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          if (first + i * kLines < length) best.next(items[i], first + i * kLines);
        }
      }
      shared.found[line][across] = best;
    } else {
      if (line != 0) return;
      Best best = shared.found[0][across];
      for (int l = 1; l < kLines; ++l) best.join(shared.found[l][across]);
      places[column] = best.place;
      if (values != nullptr) values[column] = best.value;
    }
  }
};

// T: float, double, int32_t or int64_t. kThreads: that share a row; whole warps.
template <class T, bool kLargest, int kThreads, class Place>
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
    const Place length = static_cast<Place>(o.length);
    if (o.inner > 1) {
      using Columns = ExtremeColumns<T, kLargest, Place>;
      const int64_t columns = o.outer * o.inner;
      return blocks("extremes", ceil_div(columns, Columns::kWidth),
                    Columns{in, values, places, length, o.inner, columns}, call);
    }
    return blocks("extremes", o.outer, ExtremeRows<T, kLargest, kThreads, Place>{in, values, places, length},
                  call);
  }

 private:
  ExtremeOptions options_;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_EXTREME_CUH_
