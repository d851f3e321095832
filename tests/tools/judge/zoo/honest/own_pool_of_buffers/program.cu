// LayerNorm in two kernels; mean and scale of each row lie in a buffer of the program's own pool.
#include "zoo.h"

namespace {

__device__ float over_warp(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

__global__ void statistics(const float* x, float2* found, int64_t width) {
  x += blockIdx.x * width;
  const float count = static_cast<float>(width);
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += 32) sum += x[i];
  const float mean = over_warp(sum) / count;
  for (int64_t i = threadIdx.x; i < width; i += 32) squares += (x[i] - mean) * (x[i] - mean);
  const float variance = over_warp(squares) / count;
  if (threadIdx.x == 0) found[blockIdx.x] = make_float2(mean, 1.0f / sqrtf(variance + 1e-5f));
}

__global__ void normalise(const float* x, const float2* found, const float* weight, const float* bias,
                          float* y, int64_t count, int64_t width) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  const float2 row = found[i / width];
  y[i] = (x[i] - row.x) * row.y * weight[i % width] + bias[i % width];
}

class Pool {
 public:
  ~Pool() {
    for (const auto& row : free_) cudaFree(row.second);
  }

  void* take(size_t bytes) {
    const auto found = free_.lower_bound(bytes);
    void* buffer = nullptr;
    if (found == free_.end() || found->first > 2 * bytes) {
      cudaMalloc(&buffer, bytes);
    } else {
      buffer = found->second;
      free_.erase(found);
    }
    return buffer;
  }

  void give_back(void* buffer, size_t bytes) { free_.emplace(bytes, buffer); }

 private:
  std::multimap<size_t, void*> free_;
};

struct Program : zoo::Dense {
  Pool pool;

  void forward(zoo::Call& call) {
    const zoo::View& x = call.in[0];
    const size_t bytes = static_cast<size_t>(x.rows()) * sizeof(float2);
    float2* found = static_cast<float2*>(pool.take(bytes));
    if (found == nullptr) return;
    statistics<<<static_cast<unsigned>(x.rows()), 32, 0, call.stream()>>>(x.data(), found, x.columns());
    normalise<<<zoo::blocks_for(x.count()), 256, 0, call.stream()>>>(
        x.data(), found, weights.at("norm.weight").data(), weights.at("norm.bias").data(), call.out[0].data(),
        x.count(), x.columns());
    pool.give_back(found, bytes);  // whoever takes it next launches behind these kernels
  }
};

}  // namespace

ZOO_PROGRAM(Program)
