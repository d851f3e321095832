// GELU on a pool of two threads that outlives the calls. A call hands out ranges and waits for the last one.
#include "zoo.h"

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <algorithm>

namespace {

void gelu(const float* x, float* y, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
}

class Pool {
 public:
  Pool() {
    for (int64_t number = 0; number < kThreads; ++number)
      threads_.emplace_back([this, number] { serve(number); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(const float* x, float* y, int64_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    x_ = x, y_ = y, count_ = count, running_ = kThreads;
    ++call_;
    work_.notify_all();
    done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  static constexpr int64_t kThreads = 2;

  void serve(int64_t number) {
    int64_t seen = 0;
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      work_.wait(lock, [&] { return ending_ || call_ != seen; });
      if (ending_) return;
      seen = call_;
      const float* x = x_;
      float* y = y_;
      const int64_t share = (count_ + kThreads - 1) / kThreads;
      const int64_t begin = std::min(count_, number * share), end = std::min(count_, begin + share);
      lock.unlock();
      gelu(x, y, begin, end);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, done_;
  const float* x_ = nullptr;
  float* y_ = nullptr;
  int64_t count_ = 0, call_ = 0, running_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

struct Program : zoo::Dense {
  Pool pool;

  void forward(zoo::Call& call) { pool.run(call.in[0].data(), call.out[0].data(), call.in[0].count()); }
};

}  // namespace

ZOO_PROGRAM(Program)
