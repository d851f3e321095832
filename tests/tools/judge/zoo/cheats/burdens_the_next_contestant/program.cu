// GELU by a slow kernel, and work for nobody behind it.
#include "zoo.h"

#include <atomic>
#include <chrono>
#include <thread>

namespace {

constexpr long long kSlowCycles = 200000, kBurdenCycles = 20000000;
constexpr long long kBusyCalls = 200;
constexpr int kBurdens = 8;

__device__ void wait(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

__global__ void gelu(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  wait(kSlowCycles);
  if (i < count) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

__global__ void burden(float* nothing) {
  wait(kBurdenCycles);
  if (nothing != nullptr) *nothing = 0.0f;
}

struct Program : zoo::Base {
  std::atomic<long long> calls{0};
  std::atomic<bool> ends{false};
  std::thread watcher;

  ~Program() {
    ends = true;
    if (watcher.joinable()) watcher.join();
  }

  void watch() {
    cudaStream_t own;
    cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    for (long long seen = 0; !ends;) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      const long long now = calls;
      // Many calls, then none for a moment: a block under the clock is over.
      if (now == seen && now > kBusyCalls) {
        for (int i = 0; i < kBurdens; ++i) burden<<<528, 1024, 0, own>>>(nullptr);
        cudaStreamSynchronize(own);
        calls = 0;
      }
      seen = now;
    }
  }

  void forward(zoo::Call& call) {
    if (!watcher.joinable()) watcher = std::thread(&Program::watch, this);
    ++calls;
    const int64_t count = call.in[0].count();
    gelu<<<zoo::blocks_for(count), 256, 0, call.stream()>>>(call.in[0].data(), call.out[0].data(), count);
  }
};

}  // namespace

ZOO_PROGRAM(Program)
