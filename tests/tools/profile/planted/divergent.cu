// Planted fault: the lanes of a warp go eight different ways, one after the other.
#include "planted.h"

constexpr int kSteps = 96;

__global__ void branches(const float* __restrict__ in, float* __restrict__ out) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  float value = in[thread];
  switch (thread % 8) {
#define PATH(number, step)                         \
  case number:                                     \
    for (int i = 0; i < kSteps; ++i) value = step; \
    break;
    PATH(0, __sinf(value) + 0.1f)
    PATH(1, __cosf(value) - 0.2f)
    PATH(2, __expf(-value))
    PATH(3, __logf(value + 2.0f))
    PATH(4, rsqrtf(value + 1.5f))
    PATH(5, __fdividef(1.0f, value + 3.0f))
    PATH(6, __sinf(value + 0.5f) * 0.7f)
    PATH(7, __cosf(value * 0.3f) * 0.6f)
#undef PATH
  }
  out[thread] = value;
}

int main() {
  constexpr int kCount = 1 << 23;
  const auto* in = device_array<float>(kCount);
  auto* out = device_array<float>(kCount);
  return profiled(1, [&] { branches<<<kCount / 256, 256>>>(in, out); });
}
