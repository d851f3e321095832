// Column kernels: the same class F as in rows.cuh, where neighbours in memory belong to different rows (a
// mean over dim 1 of [batch, time, width], batch statistics in channels-last layout).
//
// A block takes kWidth neighbouring rows. Threads of one x share a row: they walk its elements with kHeight
// threads at a time, so that every access of a warp is one line of memory. Short columns stay in registers
// between passes (kItems > 0: elements of a thread).
#ifndef STITCH_CUDA_COLUMNS_CUH_
#define STITCH_CUDA_COLUMNS_CUH_

#include "stitch/cuda/host_rows.cuh"
#include "stitch/cuda/launch.cuh"
#include "stitch/cuda/reduce.cuh"
#include "stitch/cuda/vector.cuh"

namespace stitch::cuda {

template <int kWidth_, int kHeight_, int kItems_ = 0>
struct ColumnSchedule {
  static constexpr int kWidth = kWidth_;
  static constexpr int kHeight = kHeight_;
  static constexpr int kItems = kItems_;
  static_assert(kWidth * kHeight <= 1024 && (kHeight & (kHeight - 1)) == 0, "a block of 2^n lines");
};

#if defined(STITCH_ON_HOST)

template <class S, class F>
int32_t columns(const char*, const F& f, const Call&) {
  static_assert(F::kVector == 1, "neighbours in memory belong to different rows");
  return rows_on_host(f);
}

#else

// The elements of this thread, with the cells of each: kept, or loaded anew.
template <class F, class S>
struct ColumnCells {
  using Index = typename F::Index;
  static constexpr bool kKept = S::kItems > 0;
  static_assert(!kKept || (S::kItems - 1) * S::kHeight < F::kLength, "no more items than there are");
  static_assert(!kKept || S::kItems * S::kHeight >= F::kLength, "the threads of a column keep all of it");

  typename F::Cells kept[kKept ? S::kItems : 1];

  __device__ __forceinline__ ColumnCells(const F& f, const typename F::Row& row) {
    if constexpr (kKept) {
#pragma unroll
      for (int i = 0; i < S::kItems; ++i) {
        const Index column = static_cast<Index>(threadIdx.y) + i * S::kHeight;
        if (column < F::kLength) kept[i] = f.load(row, column);
      }
    }
  }

  template <int P, class T>
  __device__ __forceinline__ void take(const F& f, const typename F::Row& row, T& totals) const {
    if constexpr (kKept) {
      for_each(f, row, [&](const typename F::Cells& cells, Index column) {
        f.template take<P>(row, cells, column, totals);
      });
    } else {
      take_runs<8>(static_cast<Index>(threadIdx.y), static_cast<Index>(S::kHeight), F::kLength, totals,
                   [&](Index column, T& run) { f.template take<P>(row, f.load(row, column), column, run); });
    }
  }

  template <class Body>
  __device__ __forceinline__ void for_each(const F& f, const typename F::Row& row, Body body) const {
    if constexpr (kKept) {
#pragma unroll
      for (int i = 0; i < S::kItems; ++i) {
        const Index column = static_cast<Index>(threadIdx.y) + i * S::kHeight;
        if (column < F::kLength) body(kept[i], column);
      }
    } else {
      for (Index column = threadIdx.y; column < F::kLength; column += S::kHeight) {
        body(f.load(row, column), column);
      }
    }
  }
};

template <int P, class F, class S>
__device__ __forceinline__ void column_passes(const F& f, typename F::Row& row,
                                              const ColumnCells<F, S>& cells) {
  if constexpr (P < F::kPasses) {
    using T = typename F::template Totals<P>;
    __shared__ alignas(16) char storage[sizeof(T) * S::kWidth * S::kHeight];
    T* slots = reinterpret_cast<T*>(storage);
    T totals;
    cells.template take<P>(f, row, totals);
    slots[threadIdx.y * S::kWidth + threadIdx.x] = totals;
    for (int half = S::kHeight / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.y < half) {
        totals.merge(slots[(threadIdx.y + half) * S::kWidth + threadIdx.x]);
        slots[threadIdx.y * S::kWidth + threadIdx.x] = totals;
      }
    }
    __syncthreads();
    f.template finish<P>(slots[threadIdx.x], row);
    column_passes<P + 1, F, S>(f, row, cells);
  }
}

template <class F, class S>
__global__ void __launch_bounds__(S::kWidth* S::kHeight) column_kernel(const F f) {
  using Index = typename F::Index;
  const Index wanted = static_cast<Index>(blockIdx.x) * S::kWidth + threadIdx.x;
  const bool real = wanted < F::kRows;  // the others repeat the last row up to the barriers
  const Index number = real ? wanted : F::kRows - 1;
  typename F::Row row;
  f.begin(number, row);
  const ColumnCells<F, S> cells(f, row);
  column_passes<0, F, S>(f, row, cells);
  if (!real) return;
  cells.for_each(f, row, [&](const typename F::Cells& mine, Index column) { f.put(row, mine, column); });
  if (threadIdx.y == 0) f.put_row(number, row);
}

template <class S, class F>
int32_t columns(const char* name, const F& f, const Call& call) {
  static_assert(F::kVector == 1, "neighbours in memory belong to different rows");
  if (F::kRows == 0) return STITCH_OK;
  static_assert(ceil_div(F::kRows, S::kWidth) <= kMostBlocks, "more rows than a grid can have blocks for");
  const unsigned blocks = static_cast<unsigned>(ceil_div(F::kRows, S::kWidth));
  column_kernel<F, S><<<blocks, dim3(S::kWidth, S::kHeight), 0, call.stream>>>(f);
  return call.launched(name);
}

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_COLUMNS_CUH_
