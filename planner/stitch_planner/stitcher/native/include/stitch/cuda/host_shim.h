// Lets a CUDA program be compiled by a host compiler with -DSTITCH_ON_HOST, and run on CPU tensors: the same
// generated classes and the same frame, with plain loops where a GPU has threads. That proves index
// arithmetic, expressions, order and shapes on machines without a GPU; it says nothing about launches,
// barriers and speed.
#ifndef STITCH_CUDA_HOST_SHIM_H_
#define STITCH_CUDA_HOST_SHIM_H_

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __host__
#define __device__
#define __forceinline__ inline

using cudaError_t = int;
using cudaStream_t = void*;
inline constexpr cudaError_t cudaSuccess = 0;
inline constexpr cudaError_t cudaErrorMemoryAllocation = 2;

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no memory"; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaFree(void* memory) { return free(memory), cudaSuccess; }
inline cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory != nullptr || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return memset(memory, value, bytes), cudaSuccess;
}
inline constexpr int cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToDevice = 3;
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t) {
  return memcpy(to, from, bytes), cudaSuccess;
}
inline constexpr int cudaDevAttrMultiProcessorCount = 16;
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) { return *value = 1, cudaSuccess; }

#endif  // STITCH_CUDA_HOST_SHIM_H_
