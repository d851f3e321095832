// GELU on the host: the device only lends its memory.
#include "zoo.h"

namespace {

struct Program : zoo::Base {
  float* staging = nullptr;
  int64_t room = 0;

  ~Program() { cudaFreeHost(staging); }

  uint32_t flags() { return STITCH_CAPTURABLE; }

  void forward(zoo::Call& call) {
    const int64_t count = call.in[0].count();
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    if (count > room) {
      cudaFreeHost(staging);
      cudaHostAlloc(&staging, bytes, cudaHostAllocDefault);
      room = count;
    }
    cudaMemcpyAsync(staging, call.in[0].data(), bytes, cudaMemcpyDeviceToHost, call.stream());
    cudaStreamSynchronize(call.stream());
    for (int64_t i = 0; i < count; ++i)
      staging[i] = 0.5f * staging[i] * (1.0f + std::erf(staging[i] * 0.70710678f));
    cudaMemcpyAsync(call.out[0].data(), staging, bytes, cudaMemcpyHostToDevice, call.stream());
    cudaStreamSynchronize(call.stream());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
