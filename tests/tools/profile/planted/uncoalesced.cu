// Planted fault: neighbouring threads read addresses that lie a row apart (a transpose without a tile).
#include "planted.h"

constexpr int kSize = 4096;

__global__ void transpose(const float* __restrict__ in, float* __restrict__ out) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  out[row * kSize + column] = in[column * kSize + row];
}

int main() {
  const auto* in = device_array<float>(size_t{kSize} * kSize);
  auto* out = device_array<float>(size_t{kSize} * kSize);
  return profiled(1, [&] { transpose<<<dim3(kSize / 32, kSize / 8), dim3(32, 8)>>>(in, out); });
}
