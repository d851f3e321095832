// What the planted programs share: checked calls, device memory, and a profiled region of a few iterations.
#ifndef STITCH_TESTS_PLANTED_H_
#define STITCH_TESTS_PLANTED_H_

#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(3);
}

template <typename T>
T* device_array(size_t count) {
  T* data = nullptr;
  check(cudaMalloc(&data, count * sizeof(T)));
  check(cudaMemset(data, 0, count * sizeof(T)));
  return data;
}

// Runs `iteration` once to warm up, then `count` times inside of the profiled region.
template <typename Iteration>
int profiled(int count, Iteration iteration) {
  iteration();
  check(cudaDeviceSynchronize());
  check(cudaProfilerStart());
  for (int i = 0; i < count; ++i) {
    // The names that our own runner gives: what is inside of the call is the program's.
    nvtxRangePushA("stitch:iteration");
    nvtxRangePushA("stitch:call");
    iteration();
    nvtxRangePop();
    check(cudaDeviceSynchronize());
    nvtxRangePop();
  }
  check(cudaGetLastError());
  check(cudaProfilerStop());
  std::printf("done\n");
  return 0;
}

#endif  // STITCH_TESTS_PLANTED_H_
