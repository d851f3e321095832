// Planted fault: a grid one sixteenth larger than what the device holds at once: a second wave, nearly empty.
#include "planted.h"

constexpr int kSteps = 4096;

__global__ void __launch_bounds__(1024) mix(const float* __restrict__ in, float* __restrict__ out) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  float value = in[thread];
  for (int i = 0; i < kSteps; ++i) value = __sinf(value) + 0.1f;
  out[thread] = value;
}

int main() {
  int multiprocessors = 0, blocks = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, mix, 1024, 0));
  const int grid = multiprocessors * blocks * 17 / 16;
  const auto* in = device_array<float>(size_t{1024} * grid);
  auto* out = device_array<float>(size_t{1024} * grid);
  return profiled(1, [&] { mix<<<grid, 1024>>>(in, out); });
}
