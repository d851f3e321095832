// A forward of many kernels as CUDA graphs: what the host would launch one by one is then one launch.
//
// A graph holds the addresses that its kernels were captured with. Small tensors are therefore copied into
// and out of memory of the handle, so that one graph serves every caller; where copies would cost more than
// the launches do, there is a graph for each set of addresses that came twice.
#ifndef STITCH_CUDA_REPLAY_CUH_
#define STITCH_CUDA_REPLAY_CUH_

#include <stdint.h>

#include <vector>

#include "stitch/cuda/launch.cuh"
#include "stitch/cuda/seen_addresses.cuh"

namespace stitch::cuda {

inline constexpr int32_t kFewestLaunches = 6;  // below it a graph saves nothing

// Bytes of all inputs and outputs that are copied: a launch from a graph takes a microsecond and more, in
// which several times kCopiedPerLaunch are read and written.
inline constexpr uint64_t kAlwaysCopied = 4u << 20, kCopiedPerLaunch = 256u << 10;

inline uint64_t most_copied(int32_t launches) {
  const uint64_t paid = launches * kCopiedPerLaunch;
  return paid > kAlwaysCopied ? paid : kAlwaysCopied;
}

#if defined(STITCH_ON_HOST)

// There are no graphs on a host: every forward runs as it is.
class Replay {
 public:
  bool usable(cudaStream_t) const { return false; }
  void clear() {}
  template <class Body>
  int32_t run(const std::vector<void*>&, const Call& call, Body body) {
    return body(call);
  }
};

#else

class Replay {
 public:
  Replay() = default;
  ~Replay() {
    clear();
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Whether a graph may be launched on the stream now: a caller who captures one himself wants our kernels.
  bool usable(cudaStream_t stream) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (!refused_ && cudaStreamIsCapturing(stream, &status) == cudaSuccess) {
      return status == cudaStreamCaptureStatusNone;
    }
    (void)cudaGetLastError();
    return false;
  }

  // Graphs of older weights are of no use.
  void clear() {
    for (const SeenAddresses::Entry& entry : seen_.entries()) destroy(entry.prepared);
    seen_.clear();
    refused_ = false;
  }

  // Runs `body(call)`, from a graph where these addresses came before.
  template <class Body>
  int32_t run(const std::vector<void*>& addresses, const Call& call, Body body) {
    SeenAddresses::Entry* const entry = seen_.find(addresses);
    if (entry == nullptr) {
      destroy(seen_.remember(addresses));
      return body(call);
    }
    if (entry->prepared == nullptr && !capture(*entry, call, body)) {
      clear();
      refused_ = true;
      return body(call);
    }
    const auto graph = static_cast<cudaGraphExec_t>(entry->prepared);
    return call.errors->check(cudaGraphLaunch(graph, call.stream), "launch the forward as a graph");
  }

 private:
  // Of a graph that still runs the driver frees the memory afterwards.
  static void destroy(void* graph) {
    if (graph != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
  }

  template <class Body>
  bool capture(SeenAddresses::Entry& entry, Call call, Body body) {
    if (stream_ == nullptr && cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) != cudaSuccess) {
      return failed();
    }
    call.stream = stream_;
    // Relaxed: other threads may allocate meanwhile, and nothing that was captured depends on it.
    if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed) != cudaSuccess) return failed();
    const int32_t status = body(call);
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (status != STITCH_OK || ended != cudaSuccess || graph == nullptr) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      return failed();
    }
    cudaGraphExec_t ready = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    if (made != cudaSuccess) return failed();
    entry.prepared = ready;
    return true;
  }

  static bool failed() {
    (void)cudaGetLastError();
    return false;
  }

  cudaStream_t stream_ = nullptr;  // for capture alone: nothing runs on it
  SeenAddresses seen_;
  bool refused_ = false;
};

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_REPLAY_CUH_
