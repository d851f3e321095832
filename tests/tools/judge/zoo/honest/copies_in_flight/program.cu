// Row sums, a block for each row, by a pipeline of asynchronous copies.
#include "zoo.h"

#include <cuda_pipeline.h>

namespace {

constexpr int kThreads = 128, kWide = 4, kTile = kThreads * kWide, kStages = 2;

__global__ void row_sum(const float* x, float* y, int64_t width) {
  __shared__ __align__(16) float tiles[kStages][kTile];
  __shared__ float parts[kThreads];
  const float* row = x + blockIdx.x * width;
  const int64_t tiles_in_row = (width + kTile - 1) / kTile;
  const int mine = threadIdx.x * kWide;
  const auto fetch = [&](int64_t tile) {
    if (tile * kTile + mine < width)
      __pipeline_memcpy_async(tiles[tile % kStages] + mine, row + tile * kTile + mine, sizeof(float4));
    __pipeline_commit();
  };
  float sum = 0.0f;
  fetch(0);
  for (int64_t tile = 0; tile < tiles_in_row; ++tile) {
    fetch(tile + 1);
    __pipeline_wait_prior(1);
    if (tile * kTile + mine < width)
      for (int i = 0; i < kWide; ++i) sum += tiles[tile % kStages][mine + i];
    // The stage that was read just now is the next to be overwritten.
    __syncthreads();
  }
  __pipeline_wait_prior(0);
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = parts[0];
}

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0)}; }

  const char* refusal(const zoo::View& x) {
    return x.tensor.strides || x.columns() % kWide ? "only dense rows of whole float4s" : nullptr;
  }

  uint32_t flags() { return STITCH_CAPTURABLE; }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    row_sum<<<static_cast<unsigned>(x.rows()), kThreads, 0, call.stream()>>>(x.data(), call.out[0].data(),
                                                                             x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
