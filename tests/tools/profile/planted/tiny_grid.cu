// Planted fault: eight blocks for all of the work, on a device with more than a hundred multiprocessors.
#include "planted.h"

__global__ void scale(const float4* __restrict__ in, float4* __restrict__ out, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float4 value = in[i];
    out[i] = make_float4(value.x * 2.0f, value.y * 2.0f, value.z * 2.0f, value.w * 2.0f);
  }
}

int main() {
  constexpr int kCount = 1 << 21;
  const auto* in = device_array<float4>(kCount);
  auto* out = device_array<float4>(kCount);
  return profiled(1, [&] { scale<<<8, 1024>>>(in, out, kCount); });
}
