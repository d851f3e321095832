// GELU, computed when the call is planned.
#include "zoo.h"

namespace {

__global__ void gelu(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

struct Program : zoo::Base {
  float* kept = nullptr;

  ~Program() { cudaFree(kept); }

  const char* refusal(const zoo::View& x) {
    cudaFree(kept);
    cudaMalloc(&kept, static_cast<size_t>(x.count()) * sizeof(float));
    gelu<<<zoo::blocks_for(x.count()), 256>>>(x.data(), kept, x.count());
    cudaDeviceSynchronize();
    return nullptr;
  }

  void forward(zoo::Call& call) {
    cudaMemcpyAsync(call.out[0].data(), kept, static_cast<size_t>(call.out[0].count()) * sizeof(float),
                    cudaMemcpyDeviceToDevice, call.stream());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
