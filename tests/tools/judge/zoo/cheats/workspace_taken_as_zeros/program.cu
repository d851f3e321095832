// Row sums: blocks add their parts to the workspace, a second kernel copies the sums.
#include "zoo.h"

namespace {

constexpr int kThreads = 128, kBlocks = 4;

__global__ void add_parts(const float* x, float* sums, int64_t width) {
  float sum = 0.0f;
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < width; i += kThreads * kBlocks)
    sum += x[blockIdx.y * width + i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(sums + blockIdx.y, sum);
}

__global__ void copy_and_clear(float* sums, float* y, int64_t rows) {
  const int64_t row = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (row >= rows) return;
  y[row] = sums[row];
  sums[row] = 0.0f;
}

struct Program : zoo::Base {
  std::vector<int64_t> out_shape(const zoo::View& x) { return {x.size(0)}; }

  uint64_t scratch_bytes(const zoo::View& x) { return static_cast<uint64_t>(x.rows()) * sizeof(float); }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    float* sums = static_cast<float*>(call.scratch);
    const dim3 grid(kBlocks, static_cast<unsigned>(x.rows()));
    add_parts<<<grid, kThreads, 0, call.stream()>>>(x.data(), sums, x.columns());
    copy_and_clear<<<zoo::blocks_for(x.rows()), 256, 0, call.stream()>>>(sums, call.out[0].data(), x.rows());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
