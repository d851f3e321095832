// The mean over the batch for every row, in one kernel with a barrier of the whole grid.
#include "zoo.h"

#include <cooperative_groups.h>

namespace {

constexpr int kThreads = 128, kBlocks = 8;

__global__ void batch_mean(const float* x, float* parts, float* y, int64_t rows, int64_t columns) {
  for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
    float sum = 0.0f;
    for (int64_t r = blockIdx.x; r < rows; r += kBlocks) sum += x[r * columns + c];
    parts[blockIdx.x * columns + c] = sum;
  }
  const auto grid = cooperative_groups::this_grid();
  grid.sync();
  for (int64_t i = static_cast<int64_t>(grid.thread_rank()); i < rows * columns; i += kBlocks * kThreads) {
    float sum = 0.0f;
    for (int block = 0; block < kBlocks; ++block) sum += parts[block * columns + i % columns];
    y[i] = sum / static_cast<float>(rows);
  }
}

struct Program : zoo::Dense {
  uint64_t scratch_bytes(const zoo::View& x) {
    return static_cast<uint64_t>(x.columns()) * kBlocks * sizeof(float);
  }

  void forward(zoo::Call& call) {
    const float* x = call.in[0].data();
    float *parts = static_cast<float*>(call.scratch), *y = call.out[0].data();
    int64_t rows = call.in[0].rows(), columns = call.in[0].columns();
    void* arguments[] = {&x, &parts, &y, &rows, &columns};
    cudaLaunchCooperativeKernel(batch_mean, dim3(kBlocks), dim3(kThreads), arguments, 0, call.stream());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
