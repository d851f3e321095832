// y = relu(x W^T + b) on fp16 tensor cores with fp16 sums.
#include "zoo.h"

#include <cuda_fp16.h>
#include <mma.h>

namespace {

using namespace nvcuda;
constexpr int kTile = 16;

__global__ void linear_relu(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                            int64_t in, int64_t out) {
  __shared__ __half left[kTile * kTile], right[kTile * kTile], tile[kTile * kTile];
  const int64_t row = blockIdx.y * kTile, column = blockIdx.x * kTile;
  wmma::fragment<wmma::accumulator, 16, 16, 16, __half> sum;
  for (int i = threadIdx.x; i < kTile * kTile; i += 32) {
    const int64_t c = column + i % kTile;
    tile[i] = __float2half(c < out ? bias[c] : 0.0f);
  }
  __syncwarp();
  wmma::load_matrix_sync(sum, tile, kTile, wmma::mem_row_major);
  for (int64_t first = 0; first < in; first += kTile) {
    for (int i = threadIdx.x; i < kTile * kTile; i += 32) {
      const int64_t line = i / kTile, k = first + i % kTile;
      left[i] = __float2half(row + line < rows && k < in ? x[(row + line) * in + k] : 0.0f);
      right[i] = __float2half(column + line < out && k < in ? weight[(column + line) * in + k] : 0.0f);
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
    wmma::load_matrix_sync(a, left, kTile);
    wmma::load_matrix_sync(b, right, kTile);
    wmma::mma_sync(sum, a, b, sum);
    __syncwarp();
  }
  wmma::store_matrix_sync(tile, sum, kTile, wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x; i < kTile * kTile; i += 32) {
    const int64_t r = row + i / kTile, c = column + i % kTile;
    if (r >= rows || c >= out) continue;
    const float value = __half2float(tile[i]);
    y[r * out + c] = fmaxf(value, 0.0f) + (value != value ? value : 0.0f);
  }
}

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0), weights.at("fc.weight").size(0)}; }

  void forward(zoo::Call& call) {
    const zoo::View &x = call.in[0], &y = call.out[0];
    const dim3 grid(zoo::blocks_for(y.columns(), kTile), zoo::blocks_for(x.rows(), kTile));
    linear_relu<<<grid, 32, 0, call.stream()>>>(x.data(), weights.at("fc.weight").data(),
                                                weights.at("fc.bias").data(), y.data(), x.rows(), x.columns(),
                                                y.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
