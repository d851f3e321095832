// Lets a CUDA program be compiled by a host compiler with -DSTITCH_ON_HOST, and run on CPU tensors: the same
// generated classes and the same frame, with plain loops where a GPU has threads. That proves index
// arithmetic, expressions, order and shapes on machines without a GPU; it says nothing about launches,
// barriers and speed.
#ifndef STITCH_CUDA_HOST_SHIM_H_
#define STITCH_CUDA_HOST_SHIM_H_

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>

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
inline constexpr int cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3;
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, cudaStream_t) {
  return memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t) {
  return memset(memory, byte, bytes), cudaSuccess;
}

// Events are points of the host's time, which is the time of all work here.
using cudaEvent_t = std::chrono::steady_clock::time_point*;
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new std::chrono::steady_clock::time_point;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *event = std::chrono::steady_clock::now();
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(*end - *begin).count();
  return cudaSuccess;
}
template <class T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address += value;
  return before;
}

inline constexpr int cudaDevAttrMultiProcessorCount = 16;
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) { return *value = 1, cudaSuccess; }

#endif  // STITCH_CUDA_HOST_SHIM_H_
