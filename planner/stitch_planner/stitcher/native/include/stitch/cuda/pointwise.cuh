// Element-wise kernels of any expression: one thread computes `kVector` neighbours at a time, in a
// grid-stride loop, so that a launch is never larger than what the GPU runs at once.
//
// The expression is a class F with
//     using Index            32-bit where the space allows: 64-bit address arithmetic costs registers
//     kElements, kVector     size of the space; neighbours a thread takes (divides the innermost dim)
//     operator()(Index i)    loads, computes and stores elements i .. i + kVector - 1
#ifndef STITCH_CUDA_POINTWISE_CUH_
#define STITCH_CUDA_POINTWISE_CUH_

#include "stitch/cuda/launch.cuh"
#include "stitch/cuda/vector.cuh"

namespace stitch::cuda {

inline constexpr int kPointwiseThreads = 256;
// 2048 threads fit on one multiprocessor; twice that many blocks even out the ends.
inline constexpr int kPointwiseBlocksPerMultiprocessor = 2 * 2048 / kPointwiseThreads;

#if defined(STITCH_ON_HOST)

template <class F>
int32_t pointwise(const char*, const F& compute, const Call&) {
  for (typename F::Index i = 0; i < F::kElements; i += F::kVector) compute(i);
  return STITCH_OK;
}

#else

template <class F>
__global__ void __launch_bounds__(kPointwiseThreads) pointwise_kernel(const F compute) {
  using Index = typename F::Index;
  constexpr Index kGroups = F::kElements / F::kVector;
  const Index step = static_cast<Index>(gridDim.x) * kPointwiseThreads;
  for (Index group = static_cast<Index>(blockIdx.x) * kPointwiseThreads + threadIdx.x; group < kGroups;
       group += step) {
    compute(group * F::kVector);
  }
}

template <class F>
int32_t pointwise(const char* name, const F& compute, const Call& call) {
  static_assert(F::kElements % F::kVector == 0, "groups must not reach beyond the space");
  if (F::kElements == 0) return STITCH_OK;
  const int64_t wanted = ceil_div(F::kElements / F::kVector, kPointwiseThreads);
  const int64_t useful = static_cast<int64_t>(call.multiprocessors) * kPointwiseBlocksPerMultiprocessor;
  const unsigned blocks = static_cast<unsigned>(wanted < useful ? wanted : useful);
  pointwise_kernel<<<blocks, kPointwiseThreads, 0, call.stream>>>(compute);
  return call.launched(name);
}

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_POINTWISE_CUH_
