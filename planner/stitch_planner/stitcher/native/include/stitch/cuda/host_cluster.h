// Thread-block clusters on a CPU, for tests (STITCH_ON_HOST): a thread for each thread, so that exchange,
// flags and barriers of a cluster kernel run as on a GPU, in any interleaving that the machine comes up with.
// Only for small shapes: a warp shuffle is a meeting of 32 threads. Waits that the kernel would end with a
// trap end the process after some seconds.
#ifndef STITCH_CUDA_HOST_CLUSTER_H_
#define STITCH_CUDA_HOST_CLUSTER_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "stitch/cuda/host_shim.h"

namespace stitch::cuda {

using SharedAddress = uintptr_t;

namespace host {

// Where threads meet, again and again.
class Meeting {
 public:
  explicit Meeting(int count) : count_(count) {}

  void arrive_and_wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int64_t round = round_;
    if (++arrived_ == count_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return round_ != round; })) stuck();
  }

  [[noreturn]] static void stuck() {
    fprintf(stderr, "a cluster on the host waits for ever\n");
    abort();
  }

 private:
  const int count_;
  int arrived_ = 0;
  int64_t round_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

struct Warp {
  Meeting meeting{32};
  uint32_t slots[32];
};

struct Block {
  Block(int threads, int computing, size_t bytes) : computing_threads(computing), memory(bytes / 8 + 1) {
    for (int i = 0; i < threads / 32; ++i) warps.push_back(std::make_unique<Warp>());
  }
  char* base() { return reinterpret_cast<char*>(memory.data()); }

  Meeting computing_threads;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<uint64_t> memory;  // one arena: what lies at an offset here lies there in every block
};

struct Cluster {
  explicit Cluster(int threads) : everybody(threads) {}
  Meeting everybody;
  std::vector<std::unique_ptr<Block>> blocks;
};

struct Index {
  int x = 0;
};

// Barriers of all clusters share a lock: tests have few.
inline std::mutex barrier_mutex;
inline std::condition_variable barrier_changed;

struct BarrierState {
  int32_t bytes;
  int16_t pending;
  int16_t phase;
};
static_assert(sizeof(BarrierState) == sizeof(uint64_t), "a barrier is 8 bytes");

inline thread_local Cluster* cluster = nullptr;
inline thread_local int rank = 0;

inline Block& block() { return *cluster->blocks[static_cast<size_t>(rank)]; }

inline void change_barrier(void* barrier, int32_t bytes, int arrivals) {
  const std::lock_guard<std::mutex> lock(barrier_mutex);
  auto* state = static_cast<BarrierState*>(barrier);
  state->bytes += bytes;
  state->pending = static_cast<int16_t>(state->pending - arrivals);
  if (state->pending == 0 && state->bytes == 0) {
    state->pending = 1;
    state->phase ^= 1;
    barrier_changed.notify_all();
  }
}

}  // namespace host

inline thread_local host::Index threadIdx, blockIdx;

class Patience {
 public:
  void lose() {
    if (++rounds_ > 10'000'000) host::Meeting::stuck();
    std::this_thread::yield();
  }
  void renew() { rounds_ = 0; }

 private:
  int64_t rounds_ = 0;
};

inline host::Warp& own_warp() { return *host::block().warps[static_cast<size_t>(threadIdx.x / 32)]; }
inline void __syncwarp() { own_warp().meeting.arrive_and_wait(); }

inline uint32_t exchange(uint32_t value, int from) {
  host::Warp& warp = own_warp();
  warp.slots[threadIdx.x % 32] = value;
  warp.meeting.arrive_and_wait();
  const uint32_t other = warp.slots[from];
  warp.meeting.arrive_and_wait();
  return other;
}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = exchange(bits, lane);
  memcpy(&value, &bits, sizeof bits);
  return value;
}

template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int mask) {
  return __shfl_sync(lanes, value, (threadIdx.x % 32) ^ mask);
}

inline int32_t __reduce_min_sync(unsigned lanes, int32_t value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const int32_t other = __shfl_xor_sync(lanes, value, mask);
    value = other < value ? other : value;
  }
  return value;
}

inline int32_t atomicAdd(int32_t* address, int32_t value) {
  return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}

inline SharedAddress shared_address(const void* address) { return reinterpret_cast<SharedAddress>(address); }
inline uint32_t cluster_rank() { return static_cast<uint32_t>(host::rank); }
inline void cluster_sync() { host::cluster->everybody.arrive_and_wait(); }
template <int kThreads>
void sync_threads() {
  host::block().computing_threads.arrive_and_wait();
}

inline SharedAddress remote_address(SharedAddress address, uint32_t rank) {
  return address - shared_address(host::block().base()) + shared_address(host::cluster->blocks[rank]->base());
}
inline int32_t load_remote(SharedAddress remote) { return *reinterpret_cast<const int32_t*>(remote); }

inline void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  *reinterpret_cast<host::BarrierState*>(barrier) = {0, static_cast<int16_t>(arrivals), 0};
}
inline void barrier_init_fence() {}
inline void async_fence() {}
inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  host::change_barrier(barrier, static_cast<int32_t>(bytes), 1);
}
inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  std::unique_lock<std::mutex> lock(host::barrier_mutex);
  const auto* state = reinterpret_cast<const host::BarrierState*>(barrier);
  const auto passed = [&] { return state->phase != static_cast<int16_t>(parity); };
  if (!host::barrier_changed.wait_for(lock, std::chrono::seconds(60), passed)) host::Meeting::stuck();
}

template <int kCount>
void send(SharedAddress remote, const float* values, SharedAddress remote_barrier) {
  memcpy(reinterpret_cast<void*>(remote), values, kCount * sizeof(float));
  host::change_barrier(reinterpret_cast<void*>(remote_barrier), -kCount * int32_t{sizeof(float)}, 0);
}
inline void copy_in(void* target, const void* source, uint32_t bytes, uint64_t* barrier) {
  memcpy(target, source, bytes);
  host::change_barrier(barrier, -static_cast<int32_t>(bytes), 0);
}

inline void store_release(int32_t* address, int32_t value) {
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
}
inline int32_t load_acquire(const int32_t* address) { return __atomic_load_n(address, __ATOMIC_ACQUIRE); }
inline void count_up(int32_t* counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELEASE); }
inline int32_t counted(const int32_t* counter) { return __atomic_load_n(counter, __ATOMIC_ACQUIRE); }

namespace host {

// Calls body(memory) in every thread of `clusters` clusters, all at the same time.
template <class Body>
void run_clusters(int clusters, int blocks, int threads, int computing, size_t bytes, const Body& body) {
  std::vector<std::unique_ptr<Cluster>> all;
  std::vector<std::thread> running;
  for (int c = 0; c < clusters; ++c) {
    all.push_back(std::make_unique<Cluster>(blocks * threads));
    for (int b = 0; b < blocks; ++b) {
      all.back()->blocks.push_back(std::make_unique<Block>(threads, computing, bytes));
    }
  }
  for (int c = 0; c < clusters; ++c) {
    for (int b = 0; b < blocks; ++b) {
      for (int t = 0; t < threads; ++t) {
        running.emplace_back([&, c, b, t] {
          cluster = all[static_cast<size_t>(c)].get();
          rank = b;
          blockIdx.x = c * blocks + b;
          threadIdx.x = t;
          body(block().base());
        });
      }
    }
  }
  for (std::thread& one : running) one.join();
}

}  // namespace host

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_HOST_CLUSTER_H_
