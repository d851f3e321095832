// Element-wise kernels of any expression: one thread computes `kVector` neighbours at a time, of large
// tensors four elements. Blocks follow one another through memory, as eager mode's do. A loop over the whole
// grid, which lets them drift apart, had 92 to 96 % of eager mode's bandwidth.
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
// From so many groups on, narrow ones are taken several at a time: one for each thread of a large GPU, and
// again.
inline constexpr int64_t kManyGroups = int64_t{1} << 20;

#if defined(STITCH_ON_HOST)

template <class F>
int32_t pointwise(const char*, const F& compute, const Call&) {
  for (typename F::Index i = 0; i < F::kElements; i += F::kVector) compute(i);
  return STITCH_OK;
}

#else

// Groups of a thread.
template <class F>
constexpr int kGroupsOfThread =
    F::kElements / F::kVector >= kManyGroups && F::kVector < 4 ? 4 / F::kVector : 1;

template <class F>
__global__ void __launch_bounds__(kPointwiseThreads) pointwise_kernel(const F compute) {
  using Index = typename F::Index;
  constexpr Index kGroups = F::kElements / F::kVector;
  constexpr int kEach = kGroupsOfThread<F>;
  const Index first = static_cast<Index>(blockIdx.x) * (kPointwiseThreads * kEach) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Index group = first + i * kPointwiseThreads;
    if (group < kGroups) compute(group * F::kVector);
  }
}

template <class F>
int32_t pointwise(const char* name, const F& compute, const Call& call) {
  static_assert(F::kElements % F::kVector == 0, "groups must not reach beyond the space");
  if (F::kElements == 0) return STITCH_OK;
  constexpr int64_t kBlocks =
      ceil_div(F::kElements / F::kVector, int64_t{kPointwiseThreads} * kGroupsOfThread<F>);
  static_assert(kBlocks <= kMostBlocks, "more elements than a grid can have blocks for");
  pointwise_kernel<<<static_cast<unsigned>(kBlocks), kPointwiseThreads, 0, call.stream>>>(compute);
  return call.launched(name);
}

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_POINTWISE_CUH_
