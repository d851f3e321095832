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

namespace stitch::cuda {

inline constexpr int32_t kFewestLaunches = 6;         // below it a graph saves nothing
inline constexpr uint64_t kLargestCopied = 4u << 20;  // bytes of all inputs and outputs

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
    for (const Entry& entry : entries_) {
      if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
    }
    entries_.clear();
    refused_ = false;
  }

  // Runs `body(call)`, from a graph where these addresses came before.
  template <class Body>
  int32_t run(const std::vector<void*>& addresses, const Call& call, Body body) {
    Entry* entry = find(addresses);
    if (entry == nullptr) {
      remember(addresses);
      return body(call);
    }
    if (entry->graph == nullptr && !capture(*entry, call, body)) {
      clear();
      refused_ = true;
      return body(call);
    }
    return call.errors->check(cudaGraphLaunch(entry->graph, call.stream), "launch the forward as a graph");
  }

 private:
  struct Entry {
    std::vector<void*> addresses;
    cudaGraphExec_t graph;  // nullptr: came once
    uint64_t used;
  };
  static constexpr size_t kMostEntries = 32;

  Entry* find(const std::vector<void*>& addresses) {
    for (Entry& entry : entries_) {
      if (entry.addresses == addresses) return entry.used = ++clock_, &entry;
    }
    return nullptr;
  }

  // The entry that was used longest ago makes room.
  void remember(const std::vector<void*>& addresses) {
    if (entries_.size() < kMostEntries) {
      entries_.push_back({addresses, nullptr, ++clock_});
      return;
    }
    Entry* oldest = &entries_[0];
    for (Entry& entry : entries_) {
      if (entry.used < oldest->used) oldest = &entry;
    }
    // Destroying a graph that still runs is allowed: the driver frees it afterwards.
    if (oldest->graph != nullptr) cudaGraphExecDestroy(oldest->graph);
    *oldest = {addresses, nullptr, ++clock_};
  }

  template <class Body>
  bool capture(Entry& entry, Call call, Body body) {
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
    const cudaError_t made = cudaGraphInstantiate(&entry.graph, graph, 0);
    cudaGraphDestroy(graph);
    if (made == cudaSuccess) return true;
    entry.graph = nullptr;
    return failed();
  }

  static bool failed() {
    (void)cudaGetLastError();
    return false;
  }

  cudaStream_t stream_ = nullptr;  // for capture alone: nothing runs on it
  std::vector<Entry> entries_;
  uint64_t clock_ = 0;
  bool refused_ = false;
};

#endif  // STITCH_ON_HOST

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_REPLAY_CUH_
