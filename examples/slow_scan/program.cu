// Correct and slow on purpose: each habit below is a finding of `stitch-mcp profile`, and edits.cuda.toml
// holds the change for each. Nothing here is a pattern to follow.
#include <cuda_runtime.h>

#include <cstring>
#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
  const float* weight = nullptr;  // [width, width], one row per output channel
  const float* bias = nullptr;
  const float* decay = nullptr;
  int width = 0;
};

namespace {

constexpr int kThreads = 256;

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

bool fine(StitchHandle* handle, cudaError_t error) {
  if (error == cudaSuccess) return true;
  handle->error = cudaGetErrorString(error);
  return false;
}

// out[row, channel] = bias[channel] + sum of x[row, k] * weight[channel, k]. Neighbouring threads have
// neighbouring rows: each of their loads and stores lies in a memory segment of its own.
__global__ void project(const float* x, const float* weight, const float* bias, float* out, int rows,
                        int width) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  const int channel = blockIdx.y;
  if (row >= rows) return;
  float sum = bias[channel];
  for (int k = 0; k < width; ++k) sum += x[row * width + k] * weight[channel * width + k];
  out[row * width + channel] = sum;
}

// One time step of the recurrence: a thread has one channel of one sequence.
__global__ void advance(const float* projected, const float* decay, float* state, int count, int width,
                        bool first) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const float before = first ? 0.0f : state[at];
  state[at] = tanhf(projected[at] + decay[at % width] * before);
}

}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  auto* made = new StitchHandle;
  *handle = made;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const StitchNamedTensor& row = args->params[i];
    if (std::strcmp(row.name, "project.weight") == 0) {
      made->weight = floats(row.tensor);
      made->width = static_cast<int>(row.tensor.shape[0]);
    }
    if (std::strcmp(row.name, "project.bias") == 0) made->bias = floats(row.tensor);
    if (std::strcmp(row.name, "decay") == 0) made->decay = floats(row.tensor);
  }
  if (made->weight && made->bias && made->decay) return STITCH_OK;
  made->error = "project.weight, project.bias and decay are needed";
  return STITCH_ERROR;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 3 || inputs[0].strides || inputs[0].shape[2] != handle->width) {
    handle->error = "one dense tensor [steps, batch, width] is expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[1];
  output.shape[1] = inputs[0].shape[2];
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const auto stream = static_cast<cudaStream_t>(args->stream);
  const DLTensor& input = args->inputs[0];
  const int steps = static_cast<int>(input.shape[0]), width = handle->width;
  const int count = static_cast<int>(input.shape[1]) * width, rows = steps * count / width;
  float* state = floats(args->outputs[0]);
  float* projected = nullptr;
  if (!fine(handle, cudaMalloc(&projected, sizeof(float) * rows * width))) return STITCH_OUT_OF_MEMORY;
  const dim3 grid((rows + kThreads - 1) / kThreads, width);
  project<<<grid, kThreads, 0, stream>>>(floats(input), handle->weight, handle->bias, projected, rows, width);
  for (int step = 0; step < steps; ++step) {
    advance<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(
        projected + step * count, handle->decay, state, count, width, step == 0);
    if (!fine(handle, cudaStreamSynchronize(stream))) return STITCH_ERROR;
  }
  if (!fine(handle, cudaFree(projected))) return STITCH_ERROR;
  return fine(handle, cudaGetLastError()) ? STITCH_OK : STITCH_ERROR;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
