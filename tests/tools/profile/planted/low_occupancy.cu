// Planted fault: 160 live values a thread leave room for few warps, which cannot hide the latency of a chain
// of dependent loads.
#include "planted.h"

constexpr int kValues = 160;
constexpr int kHops = 48;

__global__ void __launch_bounds__(128)
    chase(const int* __restrict__ next, const float* __restrict__ in, float* __restrict__ out, int count) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  float values[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] = in[(thread + i * 32) & (count - 1)];
  int at = thread;
#pragma unroll 1
  for (int hop = 0; hop < kHops; ++hop) {
    at = next[at];
#pragma unroll
    for (int i = 0; i < kValues; i += 16) values[i] += static_cast<float>(at);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kValues; ++i) sum += values[i] * values[(i * 7 + 3) % kValues];
  out[thread] = sum;
}

__global__ void link(int* next, int count) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  next[thread] = (thread + 65536 + 32) & (count - 1);  // whole warps jump together: loads stay coalesced
}

int main() {
  constexpr int kCount = 1 << 22;
  constexpr int kThreads = 132 * 128 * 12;
  auto* next = device_array<int>(kCount);
  const auto* in = device_array<float>(kCount);
  auto* out = device_array<float>(kThreads);
  link<<<kCount / 256, 256>>>(next, kCount);
  return profiled(1, [&] { chase<<<kThreads / 128, 128>>>(next, in, out, kCount); });
}
