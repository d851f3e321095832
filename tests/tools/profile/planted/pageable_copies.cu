// Planted fault: the input comes from memory that is not pinned, which is copied twice.
#include <vector>

#include "planted.h"

__global__ void scale(float* data) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  data[thread] = data[thread] * 2.0f + 1.0f;
}

int main() {
  constexpr int kCount = 1 << 23;
  auto* data = device_array<float>(kCount);
  std::vector<float> host(kCount, 1.0f);
  return profiled(5, [&] {
    check(cudaMemcpyAsync(data, host.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
    scale<<<kCount / 256, 256>>>(data);
  });
}
