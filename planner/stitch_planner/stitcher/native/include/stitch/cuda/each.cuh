// A grid-stride loop over a count that is known at run time only: what libraries' classes use beside the
// library, where generated kernels have their sizes as constants. And memory that lives with its owner.
#ifndef STITCH_CUDA_EACH_CUH_
#define STITCH_CUDA_EACH_CUH_

#include <stdint.h>

#include "stitch/cuda/launch.cuh"

namespace stitch::cuda {

inline constexpr int kEachThreads = 256;
// 2048 threads fit on one multiprocessor; twice that many blocks even out the ends.
inline constexpr int kEachBlocksPerMultiprocessor = 2 * 2048 / kEachThreads;

#if defined(STITCH_ON_HOST)

template <class F>
int32_t each(const char*, int64_t count, const F& work, const Call&) {
  for (int64_t i = 0; i < count; ++i) work(i);
  return STITCH_OK;
}

#else

template <class F>
__global__ void __launch_bounds__(kEachThreads) each_kernel(int64_t count, const F work) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kEachThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kEachThreads + threadIdx.x; i < count; i += step) {
    work(i);
  }
}

// work(i) for each i below `count`, on call.stream.
template <class F>
int32_t each(const char* name, int64_t count, const F& work, const Call& call) {
  if (count == 0) return STITCH_OK;
  const int64_t wanted = ceil_div(count, kEachThreads);
  const int64_t useful = static_cast<int64_t>(call.multiprocessors) * kEachBlocksPerMultiprocessor;
  const unsigned blocks = static_cast<unsigned>(wanted < useful ? wanted : useful);
  each_kernel<<<blocks, kEachThreads, 0, call.stream>>>(count, work);
  return call.launched(name);
}

#endif  // STITCH_ON_HOST

// Device memory that only init may ask for.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { release(); }

  // False without memory; then nothing is held.
  bool reserve(size_t bytes) {
    if (bytes <= bytes_) return true;
    release();
    if (cudaMalloc(&memory_, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      memory_ = nullptr;
      return false;
    }
    bytes_ = bytes;
    return true;
  }

  void release() {
    if (memory_ != nullptr) cudaFree(memory_);
    memory_ = nullptr;
    bytes_ = 0;
  }

  void* get() const { return memory_; }
  float* floats() const { return static_cast<float*>(memory_); }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_EACH_CUH_
