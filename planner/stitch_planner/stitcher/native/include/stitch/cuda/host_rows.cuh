// Row and column kernels as plain loops, for programs that are compiled with -DSTITCH_ON_HOST.
#ifndef STITCH_CUDA_HOST_ROWS_CUH_
#define STITCH_CUDA_HOST_ROWS_CUH_

#include "stitch/cuda/launch.cuh"

namespace stitch::cuda {

// One row after another, its elements in order: for rows and columns alike.
template <int P, class F>
void passes_on_host(const F& f, typename F::Row& row) {
  if constexpr (P < F::kPasses) {
    typename F::template Totals<P> totals;
    for (typename F::Index column = 0; column < F::kLength; column += F::kVector) {
      f.template take<P>(row, f.load(row, column), column, totals);
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
