// y = relu(x W^T + b). One graph is captured for each pair of addresses and number of rows, and launched in
// every call: what is kept says where data lies, never what it is.
#include <cuda_runtime.h>
#include <stitch/abi.h>

#include <cstring>
#include <map>
#include <tuple>

struct StitchHandle {
  const float *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
  cudaStream_t capturing = nullptr;
  std::map<std::tuple<const void*, void*, int64_t>, cudaGraphExec_t> graphs;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

__global__ void linear_relu(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                            int64_t in, int64_t out) {
  const int64_t column = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, row = blockIdx.y;
  if (column >= out || row >= rows) return;
  float sum = bias[column];
  for (int64_t k = 0; k < in; ++k) sum += x[row * in + k] * weight[column * in + k];
  y[row * out + column] = sum > 0.0f ? sum : 0.0f;
}

cudaGraphExec_t capture(StitchHandle* self, const float* x, float* y, int64_t rows) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  if (cudaStreamBeginCapture(self->capturing, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
    return nullptr;
  const dim3 grid(static_cast<unsigned>((self->out + 127) / 128), static_cast<unsigned>(rows));
  linear_relu<<<grid, 128, 0, self->capturing>>>(x, self->weight, self->bias, y, rows, self->in, self->out);
  if (cudaStreamEndCapture(self->capturing, &graph) != cudaSuccess) return nullptr;
  if (cudaGraphInstantiateWithFlags(&made, graph, 0) != cudaSuccess) made = nullptr;
  cudaGraphDestroy(graph);
  return made;
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  StitchHandle* self = *handle = new StitchHandle;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const StitchNamedTensor& param = args->params[i];
    if (std::strstr(param.name, "bias")) self->bias = data(param.tensor);
    if (!std::strstr(param.name, "weight")) continue;
    self->weight = data(param.tensor);
    self->out = param.tensor.shape[0];
    self->in = param.tensor.ndim > 1 ? param.tensor.shape[1] : 1;
  }
  const cudaError_t error = cudaStreamCreateWithFlags(&self->capturing, cudaStreamNonBlocking);
  return error == cudaSuccess ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (inputs[0].strides != nullptr || inputs[0].ndim != 2 || inputs[0].shape[1] != handle->in)
    return STITCH_UNSUPPORTED;
  plan->num_outputs = num_inputs;
  plan->outputs[0].ndim = 2;
  plan->outputs[0].dtype = inputs[0].dtype;
  plan->outputs[0].shape[0] = inputs[0].shape[0];
  plan->outputs[0].shape[1] = handle->out;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const float* x = data(args->inputs[0]);
  float* y = data(args->outputs[0]);
  const int64_t rows = args->inputs[0].shape[0];
  cudaGraphExec_t& graph = self->graphs[{x, y, rows}];
  if (graph == nullptr) graph = capture(self, x, y, rows);
  if (graph == nullptr) return STITCH_ERROR;
  return cudaGraphLaunch(graph, static_cast<cudaStream_t>(args->stream)) == cudaSuccess ? STITCH_OK
                                                                                        : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) {
  if (handle == nullptr) return;
  for (const auto& row : handle->graphs)
    if (row.second != nullptr) cudaGraphExecDestroy(row.second);
  if (handle->capturing != nullptr) cudaStreamDestroy(handle->capturing);
  delete handle;
}
}
