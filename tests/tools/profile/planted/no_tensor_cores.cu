// Planted fault: a well tiled product of half matrices on the FP32 pipes, with the tensor cores idle.
#include <cuda_fp16.h>

#include "planted.h"

constexpr int kSize = 2048;
constexpr int kTile = 128;  // rows and columns of C a block
constexpr int kDepth = 8;   // of the products, a step
constexpr int kPatch = 8;   // rows and columns of C a thread

__global__ void __launch_bounds__(256, 2)
    product(const __half* __restrict__ a, const __half* __restrict__ b, float* __restrict__ c) {
  __shared__ float a_tile[kDepth][kTile];
  __shared__ float b_tile[kDepth][kTile];
  const int row = threadIdx.x / 16, column = threadIdx.x % 16;
  float sums[kPatch][kPatch] = {};
  for (int k = 0; k < kSize; k += kDepth) {
    for (int i = threadIdx.x; i < kDepth * kTile; i += 256) {
      // A comes transposed, as it would from a layer before: both tiles are filled along their rows.
      const size_t depth = k + i / kTile, at = i % kTile;
      a_tile[i / kTile][at] = __half2float(a[depth * kSize + blockIdx.y * kTile + at]);
      b_tile[i / kTile][at] = __half2float(b[depth * kSize + blockIdx.x * kTile + at]);
    }
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kDepth; ++depth) {
      float left[kPatch], right[kPatch];
#pragma unroll
      for (int i = 0; i < kPatch; i += 4) {
        // Two pieces of four, so that 16 neighbours read 256 bytes in a row.
        *reinterpret_cast<float4*>(left + i) =
            *reinterpret_cast<const float4*>(&a_tile[depth][row * 4 + i * 16]);
        *reinterpret_cast<float4*>(right + i) =
            *reinterpret_cast<const float4*>(&b_tile[depth][column * 4 + i * 16]);
      }
#pragma unroll
      for (int i = 0; i < kPatch; ++i)
#pragma unroll
        for (int j = 0; j < kPatch; ++j) sums[i][j] += left[i] * right[j];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kPatch; ++i) {
    const size_t c_row = blockIdx.y * kTile + row * 4 + (i / 4) * 64 + i % 4;
#pragma unroll
    for (int j = 0; j < kPatch; j += 4)
      *reinterpret_cast<float4*>(&c[c_row * kSize + blockIdx.x * kTile + column * 4 + j * 16]) =
          *reinterpret_cast<const float4*>(&sums[i][j]);
  }
}

int main() {
  const auto* a = device_array<__half>(size_t{kSize} * kSize);
  const auto* b = device_array<__half>(size_t{kSize} * kSize);
  auto* c = device_array<float>(size_t{kSize} * kSize);
  return profiled(1, [&] { product<<<dim3(kSize / kTile, kSize / kTile), 256>>>(a, b, c); });
}
