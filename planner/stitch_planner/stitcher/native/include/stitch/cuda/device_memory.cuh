// Device memory that lives with its owner.
#ifndef STITCH_CUDA_DEVICE_MEMORY_CUH_
#define STITCH_CUDA_DEVICE_MEMORY_CUH_

#include <stdint.h>

#include "stitch/cuda/launch.cuh"

namespace stitch::cuda {

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
#endif  // STITCH_CUDA_DEVICE_MEMORY_CUH_
