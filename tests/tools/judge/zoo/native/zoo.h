// What the native programs of the zoo share: reading tensors, and the six functions of the ABI around a
// `Program` with `forward`. A program ends with ZOO_PROGRAM(Program).
#pragma once
#include <stitch/abi.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

namespace zoo {

struct View {
  DLTensor tensor;

  template <typename T = float>
  T* data() const {
    return reinterpret_cast<T*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
  }
  int64_t size(int dim) const { return tensor.shape[dim < 0 ? dim + tensor.ndim : dim]; }
  int64_t count() const {
    int64_t count = 1;
    for (int dim = 0; dim < tensor.ndim; ++dim) count *= tensor.shape[dim];
    return count;
  }
  int64_t columns() const { return size(-1); }
  int64_t rows() const { return columns() ? count() / columns() : 0; }
  std::vector<int64_t> shape() const { return {tensor.shape, tensor.shape + tensor.ndim}; }
};

struct Call {
  std::vector<View> in, out, state;
  void* scratch;
  uint64_t scratch_bytes;
  void* raw_stream;
#ifdef __CUDACC__
  cudaStream_t stream() const { return static_cast<cudaStream_t>(raw_stream); }
#endif
};

#ifdef __CUDACC__
inline unsigned blocks_for(int64_t count, int threads = 256) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}
#endif

// A launch that failed is an error of the whole call; a CPU has none.
inline int32_t status_of_launches() {
#ifdef __CUDACC__
  return cudaGetLastError() == cudaSuccess ? STITCH_OK : STITCH_ERROR;
#else
  return STITCH_OK;
#endif
}

// What a program may override; the defaults are one float output of the first input's shape.
struct Base {
  std::map<std::string, View> weights;
  void* raw_stream = nullptr;  // of stitch_init
  std::vector<int64_t> out_shape(const View& x) { return x.shape(); }
  DLDataType out_type() { return {2, 32, 1}; }
  uint64_t scratch_bytes(const View&) { return 0; }
  uint32_t flags() { return 0; }
  const char* refusal(const View&) { return nullptr; }
  void prepare() {}
};

// A program that reads its input row by row, and says so where it is asked for another layout.
struct Dense : Base {
  const char* refusal(const View& x) { return x.tensor.strides ? "only dense inputs" : nullptr; }
};

inline std::vector<int64_t> without_last(const View& x) {
  return {x.tensor.shape, x.tensor.shape + x.tensor.ndim - 1};
}

}  // namespace zoo

#define ZOO_PROGRAM(Type)                                                                            \
  struct StitchHandle {                                                                              \
    Type program;                                                                                    \
    std::string error;                                                                               \
  };                                                                                                 \
  extern "C" {                                                                                       \
  STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }                      \
  STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {             \
    *handle = new StitchHandle();                                                                    \
    for (int64_t i = 0; i < args->num_params; ++i)                                                   \
      (*handle)->program.weights[args->params[i].name] = zoo::View{args->params[i].tensor};          \
    (*handle)->program.raw_stream = args->stream;                                                    \
    (*handle)->program.prepare();                                                                    \
    return zoo::status_of_launches();                                                                \
  }                                                                                                  \
  STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t,           \
                                    StitchPlan* plan) {                                              \
    const zoo::View x{inputs[0]};                                                                    \
    if (const char* refusal = handle->program.refusal(x)) {                                          \
      handle->error = refusal;                                                                       \
      return STITCH_UNSUPPORTED;                                                                     \
    }                                                                                                \
    const std::vector<int64_t> shape = handle->program.out_shape(x);                                 \
    plan->num_outputs = 1;                                                                           \
    plan->outputs[0].ndim = static_cast<int32_t>(shape.size());                                      \
    plan->outputs[0].dtype = handle->program.out_type();                                             \
    for (size_t dim = 0; dim < shape.size(); ++dim) plan->outputs[0].shape[dim] = shape[dim];        \
    plan->workspace_bytes = handle->program.scratch_bytes(x);                                        \
    plan->flags = handle->program.flags();                                                           \
    return STITCH_OK;                                                                                \
  }                                                                                                  \
  STITCH_EXPORT int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {        \
    zoo::Call call;                                                                                  \
    for (int32_t i = 0; i < args->num_inputs; ++i) call.in.push_back(zoo::View{args->inputs[i]});    \
    for (int32_t i = 0; i < args->num_outputs; ++i) call.out.push_back(zoo::View{args->outputs[i]}); \
    for (int32_t i = 0; i < args->num_state; ++i) call.state.push_back(zoo::View{args->state[i]});   \
    call.scratch = args->workspace;                                                                  \
    call.scratch_bytes = args->workspace_bytes;                                                      \
    call.raw_stream = args->stream;                                                                  \
    handle->program.forward(call);                                                                   \
    return zoo::status_of_launches();                                                                \
  }                                                                                                  \
  STITCH_EXPORT const char* stitch_last_error(StitchHandle* handle) {                                \
    return handle ? handle->error.c_str() : "";                                                      \
  }                                                                                                  \
  STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }                            \
  }
