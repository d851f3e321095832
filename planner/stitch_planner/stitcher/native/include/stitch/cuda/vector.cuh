// Groups of consecutive elements that one thread loads, computes and stores together.
//
// A GPU moves memory fastest in 16-byte accesses. `Group<float, 4>` is one such access; for narrower types it
// is a narrower one, for 8-byte types two. Whoever chooses N > 1 has made sure that every address is a
// multiple of the group's size; the program's entry refuses or copies tensors that are not.
#ifndef STITCH_CUDA_VECTOR_CUH_
#define STITCH_CUDA_VECTOR_CUH_

#include <stdint.h>

#include "stitch/cuda/constants.cuh"

namespace stitch::cuda {

inline constexpr int kWidestAccess = 16;  // bytes

constexpr int group_alignment(int bytes) { return bytes < kWidestAccess ? bytes : kWidestAccess; }

template <class T, int N>
struct alignas(group_alignment(sizeof(T) * N)) Group {
  T values[N];

  __device__ __forceinline__ T& operator[](int i) { return values[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return values[i]; }
};

// N neighbours in memory.
template <int N, class T>
__device__ __forceinline__ Group<T, N> load(const T* address) {
  return *reinterpret_cast<const Group<T, N>*>(address);
}

// One element for all N: the operand does not vary along the innermost dim.
template <int N, class T>
__device__ __forceinline__ Group<T, N> splat(const T* address) {
  Group<T, N> group;
  const T value = *address;
#pragma unroll
  for (int i = 0; i < N; ++i) group[i] = value;
  return group;
}

// N elements `stride` apart.
template <int N, class T>
__device__ __forceinline__ Group<T, N> gather(const T* address, int64_t stride) {
  Group<T, N> group;
#pragma unroll
  for (int i = 0; i < N; ++i) group[i] = address[i * stride];
  return group;
}

template <int N, class T>
__device__ __forceinline__ void store(T* address, const Group<T, N>& group) {
  *reinterpret_cast<Group<T, N>*>(address) = group;
}

template <int N, class T>
__device__ __forceinline__ void scatter(T* address, int64_t stride, const Group<T, N>& group) {
#pragma unroll
  for (int i = 0; i < N; ++i) address[i * stride] = group[i];
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_VECTOR_CUH_
