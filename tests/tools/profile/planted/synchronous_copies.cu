// Planted fault: every iteration carries its input and output over the bus with calls that wait (memory is
// pinned, so that the copies are as fast as they can be).
#include "planted.h"

__global__ void scale(float* data) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  data[thread] = data[thread] * 2.0f + 1.0f;
}

int main() {
  constexpr int kCount = 1 << 23;
  auto* data = device_array<float>(kCount);
  float* host = nullptr;
  check(cudaMallocHost(&host, kCount * sizeof(float)));
  return profiled(5, [&] {
    check(cudaMemcpy(data, host, kCount * sizeof(float), cudaMemcpyHostToDevice));
    scale<<<kCount / 256, 256>>>(data);
    check(cudaMemcpy(host, data, kCount * sizeof(float), cudaMemcpyDeviceToHost));
  });
}
