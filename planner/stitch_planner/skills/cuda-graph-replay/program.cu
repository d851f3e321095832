// Twenty-four small layers, recorded once as a CUDA graph over buffers of the program's own: a call copies
// the input in, replays, and copies the output out, three calls of the runtime in place of twenty-four
// launches.
#include <cuda_runtime.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "stitch/abi.h"

namespace {
constexpr int kThreads = 128;

// What is recorded for one batch size.
struct Recorded {
  float* buffers = nullptr;  // two, which take turns as input and output of a layer
  cudaGraphExec_t graph = nullptr;
};
}  // namespace

struct StitchHandle {
  std::string error;
  int width = 0;
  std::vector<const float*> weights, biases;
  cudaStream_t capture = nullptr;  // the caller's stream may be the default one, which cannot be recorded
  std::map<int64_t, Recorded> recorded;
};

namespace {

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int32_t status_of(StitchHandle* handle, cudaError_t status) {
  if (status == cudaSuccess) return STITCH_OK;
  handle->error = cudaGetErrorString(status);
  return status == cudaErrorMemoryAllocation ? STITCH_OUT_OF_MEMORY : STITCH_ERROR;
}

// A block computes one row; a warp a column at a time, lanes along the inputs.
__global__ void linear_tanh(const float* __restrict__ x, const float* __restrict__ weight,
                            const float* __restrict__ bias, float* __restrict__ out, int width) {
  const float* row = x + int64_t{blockIdx.x} * width;
  const int lane = threadIdx.x % 32;
  for (int column = threadIdx.x / 32; column < width; column += kThreads / 32) {
    float sum = 0.0f;
    for (int k = lane; k < width; k += 32) sum += row[k] * weight[column * width + k];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) out[int64_t{blockIdx.x} * width + column] = tanhf(sum + bias[column]);
  }
}

cudaError_t launch_layers(const StitchHandle& handle, float* buffers, int64_t rows, cudaStream_t stream) {
  float *from = buffers, *to = buffers + rows * handle.width;
  for (size_t i = 0; i < handle.weights.size(); ++i) {
    linear_tanh<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(from, handle.weights[i],
                                                                      handle.biases[i], to, handle.width);
    float* read = from;
    from = to;
    to = read;
  }
  return cudaGetLastError();
}

cudaError_t record(const StitchHandle& handle, int64_t rows, Recorded* made) {
  cudaError_t status =
      cudaMalloc(reinterpret_cast<void**>(&made->buffers), 2 * rows * handle.width * sizeof(float));
  if (status != cudaSuccess) return status;
  status = cudaStreamBeginCapture(handle.capture, cudaStreamCaptureModeThreadLocal);
  if (status != cudaSuccess) return status;
  const cudaError_t launched = launch_layers(handle, made->buffers, rows, handle.capture);
  cudaGraph_t graph = nullptr;
  status = cudaStreamEndCapture(handle.capture, &graph);  // also after a failure: it leaves the stream usable
  if (launched != cudaSuccess) status = launched;
  if (status == cudaSuccess) status = cudaGraphInstantiate(&made->graph, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  return status;
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  auto* made = *handle = new StitchHandle;
  const auto tensor = [&](const char* name) -> const DLTensor* {
    for (int64_t i = 0; i < args->num_params; ++i)
      if (std::strcmp(args->params[i].name, name) == 0) return &args->params[i].tensor;
    made->error = std::string("there is no parameter ") + name;
    return nullptr;
  };
  for (int layer = 0; layer < args->num_params / 2; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    const DLTensor *weight = tensor((name + ".weight").c_str()), *bias = tensor((name + ".bias").c_str());
    if (!made->error.empty()) return STITCH_ERROR;
    made->width = static_cast<int>(weight->shape[0]);
    made->weights.push_back(floats(*weight));
    made->biases.push_back(floats(*bias));
  }
  return status_of(made, cudaStreamCreateWithFlags(&made->capture, cudaStreamNonBlocking));
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 2 || inputs[0].strides || inputs[0].shape[1] != handle->width ||
      inputs[0].shape[0] == 0) {
    handle->error = "a dense matrix of the layers' width, with rows, is expected";
    return STITCH_UNSUPPORTED;
  }
  Recorded& recorded = handle->recorded[inputs[0].shape[0]];
  if (recorded.graph == nullptr) {
    cudaFree(recorded.buffers);
    recorded.buffers = nullptr;
    const cudaError_t status = record(*handle, inputs[0].shape[0], &recorded);
    if (status != cudaSuccess) return status_of(handle, status);
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[1];
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const int64_t rows = args->inputs[0].shape[0];
  const size_t bytes = rows * handle->width * sizeof(float);
  const Recorded& recorded = handle->recorded.at(rows);
  const auto stream = static_cast<cudaStream_t>(args->stream);
  // After an odd number of layers the result lies in the second buffer.
  const float* result = recorded.buffers + handle->weights.size() % 2 * rows * handle->width;
  cudaError_t status =
      cudaMemcpyAsync(recorded.buffers, floats(args->inputs[0]), bytes, cudaMemcpyDeviceToDevice, stream);
  if (status == cudaSuccess) status = cudaGraphLaunch(recorded.graph, stream);
  if (status == cudaSuccess)
    status = cudaMemcpyAsync(floats(args->outputs[0]), result, bytes, cudaMemcpyDeviceToDevice, stream);
  return status_of(handle, status);
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) {
  if (handle == nullptr) return;
  for (auto& [rows, recorded] : handle->recorded) {
    if (recorded.graph != nullptr) cudaGraphExecDestroy(recorded.graph);
    cudaFree(recorded.buffers);
  }
  if (handle->capture != nullptr) cudaStreamDestroy(handle->capture);
  delete handle;
}
