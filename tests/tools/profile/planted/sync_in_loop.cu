// Planted fault: the host waits for each of a hundred short kernels before it launches the next.
#include "planted.h"

__global__ void step(float* data) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  data[thread] = data[thread] * 0.5f + 1.0f;
}

int main() {
  constexpr int kCount = 1 << 16;
  auto* data = device_array<float>(kCount);
  return profiled(5, [&] {
    for (int i = 0; i < 100; ++i) {
      step<<<kCount / 256, 256>>>(data);
      check(cudaDeviceSynchronize());
    }
  });
}
