// How long something takes on the GPU, for a choice among ways at initialisation.
//
// A short kernel is done before the host has launched the next: what events see then is the host, and on a
// busy machine the way with the cheapest call wins, not the one with the fastest kernel. Forwards are
// replayed as graphs, where the host does not count; so short ways are measured as a graph of several runs.
#ifndef STITCH_CUDA_MEASURED_CUH_
#define STITCH_CUDA_MEASURED_CUH_

#include "stitch/cuda/launch.cuh"

namespace stitch::cuda {

inline constexpr int kMeasuredRuns = 3;   // launched one by one
inline constexpr int kReplayedRuns = 8;   // of a graph
inline constexpr float kShortMs = 0.25f;  // below it, a launch may take as long as the kernel

class EventPair {
 public:
  EventPair() { made_ = cudaEventCreate(&begin_) == cudaSuccess && cudaEventCreate(&end_) == cudaSuccess; }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;
  ~EventPair() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }
  bool begin(cudaStream_t stream) const { return made_ && cudaEventRecord(begin_, stream) == cudaSuccess; }
  // Waits for the end.
  bool end(cudaStream_t stream, float* ms) const {
    return cudaEventRecord(end_, stream) == cudaSuccess && cudaEventSynchronize(end_) == cudaSuccess &&
           cudaEventElapsedTime(ms, begin_, end_) == cudaSuccess;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  bool made_ = false;
};

#if !defined(STITCH_ON_HOST)

// Runs captured into a graph, and replayed on a stream of its own: a caller's may be one that cannot capture.
template <class F>
class ReplayedRuns {
 public:
  explicit ReplayedRuns(const F& run) : run_(run) {}
  ReplayedRuns(const ReplayedRuns&) = delete;
  ReplayedRuns& operator=(const ReplayedRuns&) = delete;
  ~ReplayedRuns() {
    if (made_ != nullptr) cudaGraphExecDestroy(made_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  bool measure(const Call& call, float* ms) {
    const EventPair events;
    float all = 0.0f;
    // The first replay keeps the GPU busy while the host launches the second.
    const bool done = capture(call) && cudaGraphLaunch(made_, stream_) == cudaSuccess &&
                      events.begin(stream_) && cudaGraphLaunch(made_, stream_) == cudaSuccess &&
                      events.end(stream_, &all);
    if (done) *ms = all / kReplayedRuns;
    return done;
  }

 private:
  bool capture(const Call& call) {
    if (cudaStreamSynchronize(call.stream) != cudaSuccess ||
        cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) != cudaSuccess ||
        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
      return false;
    }
    Call inner = call;
    inner.stream = stream_;
    bool done = true;
    for (int i = 0; done && i < kReplayedRuns; ++i) done = run_(inner) == STITCH_OK;
    return cudaStreamEndCapture(stream_, &graph_) == cudaSuccess && done &&
           cudaGraphInstantiate(&made_, graph_, 0) == cudaSuccess;
  }

  const F& run_;
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t made_ = nullptr;
};

#endif

// Milliseconds of one run; false where a run fails. `run` takes the call whose stream it is to use.
template <class F>
bool measured_ms(const Call& call, const F& run, float* ms) {
  const EventPair events;
  float all = 0.0f;
  // The first run loads what has to be loaded.
  bool done = run(call) == STITCH_OK && events.begin(call.stream);
  for (int i = 0; done && i < kMeasuredRuns; ++i) done = run(call) == STITCH_OK;
  done = done && events.end(call.stream, &all);
  *ms = all / kMeasuredRuns;
#if !defined(STITCH_ON_HOST)
  if (done && *ms < kShortMs) ReplayedRuns<F>(run).measure(call, ms);  // where that fails, the time stays
#endif
  (void)cudaGetLastError();
  return done;
}

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_MEASURED_CUH_
