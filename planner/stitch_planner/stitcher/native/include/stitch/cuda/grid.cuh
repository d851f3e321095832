// How the hand-written kernels run: as classes whose code is the same on a GPU and on the host.
//
//   each(name, count, f, call)     f(i) for i in [0, count), one thread a number, in a grid-stride loop
//   blocks(name, count, f, call)   `count` blocks of F::kThreads threads that share memory:
//
//     kThreads       threads of a block
//     kPhases        steps of a block; every thread is through a step before any begins the next
//     struct Shared  what the threads of a block share
//     struct Thread  what a thread keeps from one step to the next (registers on a GPU)
//     phase<P>(int64_t block, int thread, Shared&, Thread&)
//
// A barrier stands between two phases and nowhere else, so that the host can run a block as loops over its
// threads, phase by phase: tests without a GPU execute the very index arithmetic that a GPU does.
#ifndef STITCH_CUDA_GRID_CUH_
#define STITCH_CUDA_GRID_CUH_

#include <memory>
#include <vector>

#include "stitch/cuda/launch.cuh"
#include "stitch/cuda/vector.cuh"

namespace stitch::cuda {

inline constexpr int kEachThreads = 256;
// 2048 threads fit on one multiprocessor; twice that many blocks even out the ends.
inline constexpr int kEachBlocksPerMultiprocessor = 2 * 2048 / kEachThreads;

// Division by a number that is known before the launch: a multiplication and a shift for the 20 to 40
// instructions of an integer division. For dividends in [0, 2^31).
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int64_t divisor) : divisor_(static_cast<uint32_t>(divisor)) {
    while ((int64_t{1} << shift_) < divisor) ++shift_;
    // ceil(2^(31 + shift) / divisor): its excess, below 1 / 2^31 of a quotient, reaches no whole number.
    const uint64_t one = uint64_t{1} << (31 + shift_);
    factor_ = static_cast<uint32_t>((one + divisor_ - 1) / divisor_);
  }

  __host__ __device__ __forceinline__ uint32_t quotient(uint32_t x) const {
    return static_cast<uint32_t>((static_cast<uint64_t>(x) * factor_) >> (31 + shift_));
  }
  // Quotient, and the remainder in `rest`.
  __host__ __device__ __forceinline__ uint32_t split(uint32_t x, uint32_t& rest) const {
    const uint32_t whole = quotient(x);
    rest = x - whole * divisor_;
    return whole;
  }

 private:
  uint32_t divisor_ = 1, factor_ = 0x80000000u;
  int shift_ = 0;
};

// What dividends of a Divisor have to be below.
inline constexpr int64_t kMostDividend = int64_t{1} << 31;

#if defined(STITCH_ON_HOST)

inline void publish() {}
inline unsigned take_ticket(unsigned* counter) { return (*counter)++; }

template <class F>
int32_t each(const char*, int64_t count, const F& f, const Call&) {
  for (int64_t i = 0; i < count; ++i) f(i);
  return STITCH_OK;
}

template <int P, class F>
void phases_on_host(const F& f, int64_t block, typename F::Shared& shared,
                    std::vector<typename F::Thread>& threads) {
  if constexpr (P < F::kPhases) {
    for (int thread = 0; thread < F::kThreads; ++thread) {
      f.template phase<P>(block, thread, shared, threads[thread]);
    }
    phases_on_host<P + 1>(f, block, shared, threads);
  }
}

template <int P, class F>
void round_on_host(const F& f, int64_t block, int64_t round, typename F::Shared& shared,
                   std::vector<typename F::Thread>& threads) {
  if constexpr (P < F::kPhases) {
    for (int thread = 0; thread < F::kThreads; ++thread) {
      f.template phase<P>(block, round, thread, shared, threads[thread]);
    }
    round_on_host<P + 1>(f, block, round, shared, threads);
  }
}

template <class F>
int32_t rounds(const char*, int64_t count, const F& f, const Call&) {
  auto shared = std::make_unique<typename F::Shared>();
  for (int64_t block = 0; block < count; ++block) {
    std::vector<typename F::Thread> threads(F::kThreads);
    for (int64_t round = 0; round < f.rounds(); ++round) round_on_host<0>(f, block, round, *shared, threads);
  }
  return STITCH_OK;
}

template <class F>
int32_t blocks(const char*, int64_t count, const F& f, const Call&) {
  auto shared = std::make_unique<typename F::Shared>();
  for (int64_t block = 0; block < count; ++block) {
    std::vector<typename F::Thread> threads(F::kThreads);
    phases_on_host<0>(f, block, *shared, threads);
  }
  return STITCH_OK;
}

#else

// Makes what this thread wrote visible to blocks that see a later ticket.
__device__ __forceinline__ void publish() { __threadfence(); }

// Numbers the callers 0, 1, ...
__device__ __forceinline__ unsigned take_ticket(unsigned* counter) { return atomicAdd(counter, 1u); }

template <class F>
__global__ void __launch_bounds__(kEachThreads) each_kernel(const F f, const int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kEachThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kEachThreads + threadIdx.x; i < count; i += step) f(i);
}

template <class F>
int32_t each(const char* name, int64_t count, const F& f, const Call& call) {
  if (count == 0) return STITCH_OK;
  const int64_t wanted = ceil_div(count, kEachThreads);
  const int64_t useful = static_cast<int64_t>(call.multiprocessors) * kEachBlocksPerMultiprocessor;
  each_kernel<<<static_cast<unsigned>(wanted < useful ? wanted : useful), kEachThreads, 0, call.stream>>>(
      f, count);
  return call.launched(name);
}

template <int P, class F>
__device__ __forceinline__ void phases(const F& f, typename F::Shared& shared, typename F::Thread& mine) {
  if constexpr (P < F::kPhases) {
    if constexpr (P > 0) __syncthreads();
    f.template phase<P>(static_cast<int64_t>(blockIdx.x), static_cast<int>(threadIdx.x), shared, mine);
    phases<P + 1>(f, shared, mine);
  }
}

template <class F>
__global__ void __launch_bounds__(F::kThreads) block_kernel(const F f) {
  __shared__ typename F::Shared shared;
  typename F::Thread mine;
  phases<0>(f, shared, mine);
}

template <class F>
int32_t blocks(const char* name, int64_t count, const F& f, const Call& call) {
  if (count == 0) return STITCH_OK;
  if (count > kMostBlocks) return call.errors->fail(STITCH_ERROR, "more blocks than a grid can have");
  block_kernel<<<static_cast<unsigned>(count), F::kThreads, 0, call.stream>>>(f);
  return call.launched(name);
}

template <int P, class F>
__device__ __forceinline__ void one_round(const F& f, int64_t round, typename F::Shared& shared,
                                          typename F::Thread& mine) {
  if constexpr (P < F::kPhases) {
    // The first barrier parts a round from the one before it.
    __syncthreads();
    f.template phase<P>(static_cast<int64_t>(blockIdx.x), round, static_cast<int>(threadIdx.x), shared, mine);
    one_round<P + 1>(f, round, shared, mine);
  }
}

template <class F>
__global__ void __launch_bounds__(F::kThreads) round_kernel(const F f) {
  __shared__ typename F::Shared shared;
  typename F::Thread mine;
  const int64_t count = f.rounds();
  for (int64_t round = 0; round < count; ++round) one_round<0>(f, round, shared, mine);
}

template <class F>
int32_t rounds(const char* name, int64_t count, const F& f, const Call& call) {
  if (count == 0) return STITCH_OK;
  if (count > kMostBlocks) return call.errors->fail(STITCH_ERROR, "more blocks than a grid can have");
  round_kernel<<<static_cast<unsigned>(count), F::kThreads, 0, call.stream>>>(f);
  return call.launched(name);
}

#endif  // STITCH_ON_HOST

// Counters that are 0 before and after every forward, by which the last block of a group knows that it is the
// last: it then joins what all have written, in an order of its own, so that equal inputs give equal bits.
class Tickets {
 public:
  Tickets() = default;
  Tickets(const Tickets&) = delete;
  Tickets& operator=(const Tickets&) = delete;
  ~Tickets() { release(); }

  int32_t init(Errors& errors, int64_t count) {
    release();
    const size_t bytes = sizeof(unsigned) * static_cast<size_t>(count);
    void* memory = nullptr;
    STITCH_TRY(errors.check(cudaMalloc(&memory, bytes), "take memory for counters"));
    counters_ = static_cast<unsigned*>(memory);
    STITCH_TRY(errors.check(cudaMemset(memory, 0, bytes), "clear counters"));
    // The forward may run on a stream that does not wait for this one.
    return errors.check(cudaStreamSynchronize(nullptr), "clear counters");
  }
  unsigned* counters() const { return counters_; }

 private:
  void release() {
    if (counters_ != nullptr) cudaFree(counters_);
    counters_ = nullptr;
  }

  unsigned* counters_ = nullptr;
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_GRID_CUH_
