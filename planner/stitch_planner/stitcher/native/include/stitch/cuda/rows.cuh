// Row kernels: reductions over the trailing dims with an element-wise prologue and epilogue, in one launch.
// LayerNorm, RMSNorm, softmax, log-softmax, row sums and what is fused around them are all one class F:
//
//     using Index            type of row numbers and offsets
//     kRows, kLength         rows, and elements of one row
//     kVector                neighbours that a thread takes at once (divides the innermost dim)
//     kPasses                reductions that depend on each other (softmax: 2, the maximum before the sum)
//     struct Row             what is computed once a row: offsets, per-row operands, results of reductions
//     struct Cells           the operands that passes share, for kVector neighbours
//     Totals<P>              running totals of pass P (stitch::cuda::Totals)
//     begin(Index row, Row&)                      fills in what is known before any pass
//     load(const Row&, Index column) -> Cells
//     take<P>(const Row&, const Cells&, Index column, Totals<P>&)
//     finish<P>(const Totals<P>&, Row&)           what follows from the totals of pass P
//     put(const Row&, const Cells&, Index column) computes and stores the element-wise results
//     put_row(Index row, const Row&)              stores the per-row results
//
// A row's cells stay in registers between passes where they fit (kItems > 0): memory is then read once.
#ifndef STITCH_CUDA_ROWS_CUH_
#define STITCH_CUDA_ROWS_CUH_

#include "stitch/cuda/host_rows.cuh"
#include "stitch/cuda/launch.cuh"
#include "stitch/cuda/reduce.cuh"
#include "stitch/cuda/vector.cuh"

namespace stitch::cuda {

// kLanes: threads that share a row: a power of two up to a warp, or a multiple of a warp (then a whole
// block). kItems: groups of cells that a thread keeps in registers; 0: it loads them again in every pass.
template <int kLanes_, int kRowsPerBlock_, int kItems_>
struct RowSchedule {
  static constexpr int kLanes = kLanes_;
  static constexpr int kRowsPerBlock = kRowsPerBlock_;
  static constexpr int kItems = kItems_;
  static constexpr int kThreads = kLanes * kRowsPerBlock;
  static_assert(kLanes <= kWarp || kRowsPerBlock == 1, "a row is shared inside a warp, or by a whole block");
  static_assert(kThreads % kWarp == 0 && kThreads <= 1024, "whole warps, and no more than a block holds");
};

#if defined(STITCH_ON_HOST)

template <class S, class F>
int32_t rows(const char*, const F& f, const Call&) {
  static_assert(F::kLength % F::kVector == 0, "groups must not reach beyond the row");
  return rows_on_host(f);
}

#else

// The columns that belong to this thread, with the cells of each: kept, or loaded anew.
template <class F, class S>
struct RowCells {
  using Index = typename F::Index;
  static constexpr Index kStep = static_cast<Index>(S::kLanes) * F::kVector;
  static constexpr bool kKept = S::kItems > 0;

  Index first;
  typename F::Cells kept[kKept ? S::kItems : 1];

  __device__ __forceinline__ RowCells(const F& f, const typename F::Row& row, Index lane)
      : first(lane * F::kVector) {
    if constexpr (kKept) {
#pragma unroll
      for (int i = 0; i < S::kItems; ++i) {
        const Index column = first + i * kStep;
        if (column < F::kLength) kept[i] = f.load(row, column);
      }
    }
  }

  // The totals of pass P over this thread's groups.
  template <int P, class T>
  __device__ __forceinline__ void take(const F& f, const typename F::Row& row, T& totals) const {
    if constexpr (kKept) {
      for_each(f, row, [&](const typename F::Cells& group, Index column) {
        f.template take<P>(row, group, column, totals);
      });
    } else {
      // Passes turn back at the row's end, where the cache still holds what was read last.
      const Index turn = P % 2 == 1 ? first + last() : 0;
      take_runs<4>(first, kStep, F::kLength, totals, [&](Index at, T& run) {
        const Index column = P % 2 == 1 ? turn - at : at;
        f.template take<P>(row, f.load(row, column), column, run);
      });
    }
  }

  // Calls body(cells, column) for every group of this thread.
  template <class Body>
  __device__ __forceinline__ void for_each(const F& f, const typename F::Row& row, Body body) const {
    if constexpr (kKept) {
#pragma unroll
      for (int i = 0; i < S::kItems; ++i) {
        const Index column = first + i * kStep;
        if (column < F::kLength) body(kept[i], column);
      }
    } else {
      const Index turn = first + last();
      for (Index at = first; at < F::kLength; at += kStep) {
        const Index column = F::kPasses % 2 == 1 ? turn - at : at;
        body(f.load(row, column), column);
      }
    }
  }

 private:
  // The last column of this thread; only where it has one.
  __device__ __forceinline__ Index last() const { return first + (F::kLength - 1 - first) / kStep * kStep; }
};

template <int P, class F, class S>
__device__ __forceinline__ void row_passes(const F& f, typename F::Row& row, const RowCells<F, S>& cells) {
  if constexpr (P < F::kPasses) {
    using T = typename F::template Totals<P>;
    T totals;
    cells.template take<P>(f, row, totals);
    if constexpr (S::kLanes <= kWarp) {
      reduce_lanes<S::kLanes>(totals);
    } else {
      // One set of slots for each pass: reuse would need another barrier.
      __shared__ alignas(16) char slots[sizeof(T) * (S::kThreads / kWarp)];
      reduce_block<S::kThreads>(totals, reinterpret_cast<T*>(slots));
    }
    f.template finish<P>(totals, row);
    row_passes<P + 1, F, S>(f, row, cells);
  }
}

template <class F, class S>
__global__ void __launch_bounds__(S::kThreads) row_kernel(const F f) {
  using Index = typename F::Index;
  const Index lane = threadIdx.x % S::kLanes;
  const Index wanted = static_cast<Index>(blockIdx.x) * S::kRowsPerBlock + threadIdx.x / S::kLanes;
  // Threads without a row repeat the last one and store nothing: shuffles need every lane of the warp.
  const bool real = wanted < F::kRows;
  const Index number = real ? wanted : F::kRows - 1;
  typename F::Row row;
  f.begin(number, row);
  const RowCells<F, S> cells(f, row, lane);
  row_passes<0, F, S>(f, row, cells);
  if (!real) return;
  cells.for_each(f, row, [&](const typename F::Cells& group, Index column) { f.put(row, group, column); });
  if (lane == 0) f.put_row(number, row);
}

template <class S, class F>
int32_t rows(const char* name, const F& f, const Call& call) {
  static_assert(F::kLength % F::kVector == 0, "groups must not reach beyond the row");
  if (F::kRows == 0) return STITCH_OK;
  static_assert(ceil_div(F::kRows, S::kRowsPerBlock) <= kMostBlocks,
                "more rows than a grid can have blocks for");
  const unsigned blocks = static_cast<unsigned>(ceil_div(F::kRows, S::kRowsPerBlock));
  row_kernel<F, S><<<blocks, S::kThreads, 0, call.stream>>>(f);
  return call.launched(name);
}

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_ROWS_CUH_
