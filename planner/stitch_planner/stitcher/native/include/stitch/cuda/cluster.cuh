// What blocks of one thread-block cluster need to pass data to each other: barriers in shared memory that
// count bytes, stores into another block's shared memory, and flags in global memory between clusters.
//
// Every wait is bounded: a kernel that would wait for ever ends with a trap, which the caller sees as an
// error.
#ifndef STITCH_CUDA_CLUSTER_CUH_
#define STITCH_CUDA_CLUSTER_CUH_

#if defined(STITCH_ON_HOST)
#include "stitch/cuda/host_cluster.h"
#else
#include <cuda_runtime.h>
#include <stdint.h>
#endif

// Whether code for clusters is compiled here.
#if defined(STITCH_ON_HOST) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
#define STITCH_CLUSTERS 1
#endif

namespace stitch::cuda {

#if defined(STITCH_CLUSTERS) && !defined(STITCH_ON_HOST)

// In the shared memory of a cluster's blocks.
using SharedAddress = uint32_t;

// A wait that lasts longer is taken for a fault: some seconds, where a whole forward takes milliseconds.
inline constexpr int64_t kLongestWaitClocks = int64_t{1} << 34;

// The end of a wait that seems not to end.
class Patience {
 public:
  __device__ __forceinline__ void lose() {
    const int64_t now = clock64();
    if (since_ == 0) since_ = now;
    if (now - since_ > kLongestWaitClocks) __trap();
  }
  __device__ __forceinline__ void renew() { since_ = 0; }

 private:
  int64_t since_ = 0;
};

__device__ __forceinline__ SharedAddress shared_address(const void* address) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(address));
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster; orders their memory accesses.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// The first kThreads threads of a block, a multiple of a warp; may be used once.
template <int kThreads>
__device__ __forceinline__ void sync_threads() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// The address of the same variable in another block's shared memory.
__device__ __forceinline__ SharedAddress remote_address(SharedAddress address, uint32_t rank) {
  SharedAddress remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

__device__ __forceinline__ int32_t load_remote(SharedAddress remote) {
  int32_t value;
  asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(value) : "r"(remote) : "memory");
  return value;
}

// ---- barriers that count arrivals and bytes -----------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

// Makes initialised barriers visible to other blocks and to asynchronous copies; before a cluster_sync.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// The one arrival of a phase, which ends when `bytes` have come as well.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// One arrival of a phase.
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ bool barrier_passed(SharedAddress barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred passed;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 passed, [%1], %2;\n"
      "selp.u32 %0, 1, 0, passed;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  const SharedAddress address = shared_address(barrier);
  for (Patience patience; !barrier_passed(address, parity);) patience.lose();
}

// ---- data ---------------------------------------------------------------------------------------------

// Stores kCount floats of this block at a remote address; the remote barrier counts their bytes.
template <int kCount>
__device__ __forceinline__ void send(SharedAddress remote, const float* values,
                                     SharedAddress remote_barrier) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4, "one store");
  if constexpr (kCount == 4) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(remote),
        "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(remote_barrier)
        : "memory");
  } else if constexpr (kCount == 2) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
            remote),
        "f"(values[0]), "f"(values[1]), "r"(remote_barrier)
        : "memory");
  } else {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(remote),
        "f"(values[0]), "r"(remote_barrier)
        : "memory");
  }
}

// Starts a copy of `bytes` (a multiple of 16) from global to this block's shared memory.
__device__ __forceinline__ void copy_in(void* target, const void* source, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(target)),
      "l"(source), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Orders ordinary accesses of this thread, and those that it has seen, with asynchronous copies.
__device__ __forceinline__ void async_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

// ---- flags between clusters, and counters inside a block ----------------------------------------------

__device__ __forceinline__ void store_release(int32_t* address, int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ int32_t load_acquire(const int32_t* address) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void count_up(int32_t* counter) {
  asm volatile("red.release.cta.shared::cta.add.s32 [%0], 1;" ::"r"(shared_address(counter)) : "memory");
}

__device__ __forceinline__ int32_t counted(const int32_t* counter) {
  int32_t value;
  asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];"
               : "=r"(value)
               : "r"(shared_address(counter))
               : "memory");
  return value;
}

#endif  // STITCH_CLUSTERS

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_CLUSTER_CUH_
