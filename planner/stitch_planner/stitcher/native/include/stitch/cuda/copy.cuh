// Copies a tensor of any strides into dense memory: for inputs and parameters that do not lie as kernels
// expect them.
#ifndef STITCH_CUDA_COPY_CUH_
#define STITCH_CUDA_COPY_CUH_

#include "stitch/cuda/launch.cuh"

namespace stitch::cuda {

struct Strided {
  int32_t ndim = 0;
  int64_t numel = 0;
  int64_t shape[STITCH_MAX_DIMS] = {};
  int64_t strides[STITCH_MAX_DIMS] = {};
};

template <class T>
__device__ __forceinline__ void copy_element(const T* from, T* to, const Strided& layout, int64_t i) {
  int64_t rest = i, offset = 0;
  for (int dim = layout.ndim - 1; dim >= 0; --dim) {
    offset += rest % layout.shape[dim] * layout.strides[dim];
    rest /= layout.shape[dim];
  }
  to[i] = from[offset];
}

#if defined(STITCH_ON_HOST)

template <class T>
int32_t copy_elements(const T* from, T* to, const Strided& layout, const Call&) {
  for (int64_t i = 0; i < layout.numel; ++i) copy_element(from, to, layout, i);
  return STITCH_OK;
}

#else

template <class T>
__global__ void copy_kernel(const T* __restrict__ from, T* __restrict__ to, const Strided layout) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < layout.numel; i += step) {
    copy_element(from, to, layout, i);
  }
}

template <class T>
int32_t copy_elements(const T* from, T* to, const Strided& layout, const Call& call) {
  constexpr int kThreads = 256;
  const int64_t wanted = ceil_div(layout.numel, kThreads), most = int64_t{call.multiprocessors} * 16;
  const unsigned blocks = static_cast<unsigned>(wanted < most ? wanted : most);
  copy_kernel<<<blocks, kThreads, 0, call.stream>>>(from, to, layout);
  return call.launched("copy a strided tensor");
}

#endif  // STITCH_ON_HOST

// `element_bytes`: 1, 2, 4 or 8.
inline int32_t copy_strided(const void* from, void* to, const Strided& layout, int element_bytes,
                            const Call& call) {
  if (layout.numel == 0) return STITCH_OK;
  const auto copy = [&](auto zero) {
    using T = decltype(zero);
    return copy_elements(static_cast<const T*>(from), static_cast<T*>(to), layout, call);
  };
  switch (element_bytes) {
    case 1:
      return copy(uint8_t{});
    case 2:
      return copy(uint16_t{});
    case 4:
      return copy(uint32_t{});
    default:
      return copy(uint64_t{});
  }
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_COPY_CUH_
