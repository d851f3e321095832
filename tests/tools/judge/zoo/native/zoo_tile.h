// y = relu(x W^T + b) on tensor cores, one warp for a tile of 16 x 16 outputs. A `Format` says what the
// factors are rounded to and what the sums are kept in: Factor of the fragments, Stored in shared memory,
// Sum, kDepth.
#pragma once
#include <mma.h>

#include "zoo.h"

namespace zoo {

constexpr int kTile = 16;

template <typename Format>
__global__ void linear_relu(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                            int64_t in, int64_t out) {
  namespace wmma = nvcuda::wmma;
  constexpr int kDepth = Format::kDepth;
  using Factor = typename Format::Factor;
  using Sum = typename Format::Sum;
  __shared__ typename Format::Stored left[kTile * kDepth], right[kTile * kDepth];
  __shared__ Sum tile[kTile * kTile];
  const int64_t row = blockIdx.y * int64_t{kTile}, column = blockIdx.x * int64_t{kTile};
  for (int i = threadIdx.x; i < kTile * kTile; i += 32) {
    const int64_t c = column + i % kTile;
    tile[i] = Sum(c < out ? bias[c] : 0.0f);
  }
  __syncwarp();
  wmma::fragment<wmma::accumulator, kTile, kTile, kDepth, Sum> sum;
  wmma::load_matrix_sync(sum, tile, kTile, wmma::mem_row_major);
  for (int64_t first = 0; first < in; first += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += 32) {
      const int64_t line = i / kDepth, k = first + i % kDepth;
      left[i] = Format::rounded(row + line < rows && k < in ? x[(row + line) * in + k] : 0.0f);
      right[i] = Format::rounded(column + line < out && k < in ? weight[(column + line) * in + k] : 0.0f);
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, kTile, kTile, kDepth, Factor, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, kTile, kTile, kDepth, Factor, wmma::col_major> b;
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
    const float value = static_cast<float>(tile[i]);
    y[r * out + c] = value < 0.0f ? 0.0f : value;
  }
}

template <typename Format, typename Parent>
struct LinearRelu : Parent {
  std::vector<int64_t> out_shape(const View& x) { return {x.size(0), this->weights.at("fc.weight").size(0)}; }

  void forward(Call& call) {
    const View &x = call.in[0], &y = call.out[0];
    const dim3 grid(blocks_for(y.columns(), kTile), blocks_for(x.rows(), kTile));
    linear_relu<Format><<<grid, 32, 0, call.stream()>>>(x.data(), this->weights.at("fc.weight").data(),
                                                        this->weights.at("fc.bias").data(), y.data(),
                                                        x.rows(), x.columns(), y.columns());
  }
};

}  // namespace zoo
