// Row and column kernels as plain loops, for programs that are compiled with -DSTITCH_ON_HOST.
#ifndef STITCH_CUDA_HOST_ROWS_CUH_
#define STITCH_CUDA_HOST_ROWS_CUH_

#include "stitch/cuda/launch.cuh"
#include "stitch/cuda/reduce.cuh"

namespace stitch::cuda {

// One row after another: for rows and columns alike.
template <int P, class F>
void passes_on_host(const F& f, typename F::Row& row) {
  if constexpr (P < F::kPasses) {
    using Index = typename F::Index;
    using T = typename F::template Totals<P>;
    T totals;
    for (Index lane = 0; lane < kWarp; ++lane) {  // as the threads of one warp would share the row
      T mine;
      take_runs<1>(lane * F::kVector, Index{kWarp * F::kVector}, Index{F::kLength}, mine,
                   [&](Index column, T& run) { f.template take<P>(row, f.load(row, column), column, run); });
      totals.merge(mine);
    }
    f.template finish<P>(totals, row);
    passes_on_host<P + 1>(f, row);
  }
}

template <class F>
int32_t rows_on_host(const F& f) {
  for (typename F::Index number = 0; number < F::kRows; ++number) {
    typename F::Row row;
    f.begin(number, row);
    passes_on_host<0>(f, row);
    for (typename F::Index column = 0; column < F::kLength; column += F::kVector) {
      f.put(row, f.load(row, column), column);
    }
    f.put_row(number, row);
  }
  return STITCH_OK;
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_HOST_ROWS_CUH_
