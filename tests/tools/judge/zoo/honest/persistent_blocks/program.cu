// Softmax by persistent blocks, which take the next row from a counter.
#include "zoo.h"

namespace {

constexpr int kThreads = 128;

__device__ float over_block(float value, float* parts, bool is_sum) {
  __syncthreads();
  parts[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      const float other = parts[threadIdx.x + half];
      parts[threadIdx.x] = is_sum ? parts[threadIdx.x] + other : fmaxf(parts[threadIdx.x], other);
    }
    __syncthreads();
  }
  return parts[0];
}

__global__ void softmax(const float* x, float* y, unsigned* next, int64_t rows, int64_t width) {
  __shared__ float parts[kThreads];
  __shared__ unsigned row;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) row = atomicAdd(next, 1u);
    __syncthreads();
    if (row >= rows) return;
    const float* from = x + row * width;
    float* to = y + row * width;
    float most = -INFINITY, sum = 0.0f;
    for (int64_t i = threadIdx.x; i < width; i += kThreads) most = fmaxf(most, from[i]);
    most = over_block(most, parts, false);
    for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += expf(from[i] - most);
    sum = over_block(sum, parts, true);
    for (int64_t i = threadIdx.x; i < width; i += kThreads) to[i] = expf(from[i] - most) / sum;
  }
}

struct Program : zoo::Dense {
  unsigned* next = nullptr;
  int processors = 1;

  ~Program() { cudaFree(next); }

  void prepare() {
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaMalloc(&next, sizeof *next);
  }

  uint32_t flags() { return STITCH_CAPTURABLE; }

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    cudaMemsetAsync(next, 0, sizeof *next, call.stream());
    softmax<<<static_cast<unsigned>(processors), kThreads, 0, call.stream()>>>(x.data(), call.out[0].data(),
                                                                               next, x.rows(), x.columns());
  }
};

}  // namespace

ZOO_PROGRAM(Program)
