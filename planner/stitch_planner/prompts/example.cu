#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
};

namespace {
const float* floats(const DLTensor& tensor) {
  return reinterpret_cast<const float*>(static_cast<const char*>(tensor.data) + tensor.byte_offset);
}

__global__ void add_relu(const float* x, const float* y, float* out, int64_t size) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    const float sum = x[i] + y[i];
    out[i] = sum < 0.0f ? 0.0f : sum;  // a NaN stays one, as in torch
  }
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  *handle = new StitchHandle;
  // Find weights by args->params[i].name; they lie in device memory and stay valid until stitch_free.
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 2 || inputs[0].ndim != 2 || inputs[0].strides || inputs[1].strides) {
    handle->error = "two dense matrices are expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[1];
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = STITCH_CAPTURABLE;  // stitch_forward neither synchronises nor allocates
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const int64_t size = args->inputs[0].shape[0] * args->inputs[0].shape[1];
  const int64_t blocks = (size + 255) / 256;
  const unsigned grid = static_cast<unsigned>(std::min<int64_t>(blocks, 4096));
  const auto stream = static_cast<cudaStream_t>(args->stream);
  float* out = const_cast<float*>(floats(args->outputs[0]));
  add_relu<<<grid, 256, 0, stream>>>(floats(args->inputs[0]), floats(args->inputs[1]), out, size);
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return STITCH_OK;
  handle->error = cudaGetErrorString(status);
  return STITCH_ERROR;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
