// Planted fault: launch bounds that leave 32 registers a thread to a kernel with 96 live values.
#include "planted.h"

constexpr int kValues = 96;
constexpr int kSteps = 32;

__global__ void __launch_bounds__(256, 8)
    recurrence(const float* __restrict__ in, float* __restrict__ out, int count) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  float values[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] = in[(thread + i * 32) & (count - 1)];
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = values[(i * 7 + 5) % kValues] * 0.5f + values[i];
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kValues; ++i) sum += values[i];
  out[thread] = sum;
}

int main() {
  constexpr int kCount = 1 << 20;
  const auto* in = device_array<float>(kCount);
  auto* out = device_array<float>(kCount);
  return profiled(1, [&] { recurrence<<<kCount / 256, 256>>>(in, out, kCount); });
}
