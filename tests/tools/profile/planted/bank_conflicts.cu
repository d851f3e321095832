// Planted fault: the 32 lanes of a warp read one column of a 32-wide tile, so that all hit one bank.
#include "planted.h"

constexpr int kTile = 32;
constexpr int kSteps = 64;

__global__ void column_sums(const float* __restrict__ in, float* __restrict__ out) {
  __shared__ float tile[kTile][kTile];
  const int thread = threadIdx.y * kTile + threadIdx.x;
  const size_t first = size_t{blockIdx.x} * kTile * kTile;
  for (int row = threadIdx.y; row < kTile; row += blockDim.y)
    tile[row][threadIdx.x] = in[first + row * kTile + threadIdx.x];
  __syncthreads();
  float sum = 0.0f;
#pragma unroll 8
  for (int step = 0; step < kSteps; ++step) sum += tile[threadIdx.x][(step + threadIdx.y) % kTile];
  out[size_t{blockIdx.x} * blockDim.x * blockDim.y + thread] = sum;
}

int main() {
  constexpr int kBlocks = 8192;
  const auto* in = device_array<float>(size_t{kBlocks} * kTile * kTile);
  auto* out = device_array<float>(size_t{kBlocks} * kTile * 8);
  return profiled(1, [&] { column_sums<<<kBlocks, dim3(kTile, 8)>>>(in, out); });
}
