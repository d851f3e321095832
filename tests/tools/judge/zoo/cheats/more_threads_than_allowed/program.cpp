// Four threads that never sleep share the work, whatever num_threads says.
#include "zoo.h"

#include <atomic>
#include <thread>

namespace {

void gelu(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
}

struct Program : zoo::Base {
  static constexpr int kThreads = 4;
  struct Share {
    std::atomic<int> turn{0};
    std::atomic<int> done{0};
  };
  Share shares[kThreads];
  const float* x = nullptr;
  float* y = nullptr;
  int64_t count = 0;

  void serve(int index) {
    for (int turn = 1;; ++turn) {
      while (shares[index].turn.load(std::memory_order_acquire) < turn) std::this_thread::yield();
      work(index);
      shares[index].done.store(turn, std::memory_order_release);
    }
  }

  void work(int index) {
    const int64_t begin = count * index / kThreads, end = count * (index + 1) / kThreads;
    gelu(x + begin, y + begin, end - begin);
  }

  void prepare() {
    for (int index = 1; index < kThreads; ++index) std::thread(&Program::serve, this, index).detach();
  }

  void forward(zoo::Call& call) {
    x = call.in[0].data(), y = call.out[0].data(), count = call.in[0].count();
    for (int index = 1; index < kThreads; ++index) shares[index].turn.fetch_add(1, std::memory_order_release);
    work(0);
    for (int index = 1; index < kThreads; ++index)
      while (shares[index].done.load(std::memory_order_acquire) != shares[index].turn.load())
        std::this_thread::yield();
  }
};

}  // namespace

ZOO_PROGRAM(Program)
