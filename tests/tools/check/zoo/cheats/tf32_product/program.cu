// y = relu(x W^T + b): one warp for a tile of 16 x 16 outputs, by TF32 tensor cores.
#include "zoo.h"

#include <mma.h>

namespace {

using namespace nvcuda;
constexpr int kTile = 16, kDepth = 8;

__global__ void linear_relu(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                            int64_t in, int64_t out) {
  __shared__ float left[kTile * kDepth], right[kTile * kDepth], tile[kTile * kTile];
  const int64_t row = blockIdx.y * kTile, column = blockIdx.x * kTile;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int64_t first = 0; first < in; first += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += 32) {
      const int64_t line = i / kDepth, k = first + i % kDepth;
      left[i] = row + line < rows && k < in ? wmma::__float_to_tf32(x[(row + line) * in + k]) : 0.0f;
      right[i] =
          column + line < out && k < in ? wmma::__float_to_tf32(weight[(column + line) * in + k]) : 0.0f;
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> b;
    wmma::load_matrix_sync(a, left, kDepth);
    wmma::load_matrix_sync(b, right, kDepth);
    wmma::mma_sync(sum, a, b, sum);
    __syncwarp();
  }
  wmma::store_matrix_sync(tile, sum, kTile, wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x; i < kTile * kTile; i += 32) {
    const int64_t r = row + i / kTile, c = column + i % kTile;
    if (r >= rows || c >= out) continue;
    const float value = tile[i] + bias[c];
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
