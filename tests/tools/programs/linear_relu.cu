// y = relu(x W^T + b) on a GPU: one thread an element, a hand-written program. `fault.h` decides what is
// wrong.
#include <cuda_runtime.h>
#include <stitch/abi.h>

#include <cstring>

#include "fault.h"

enum Fault { NONE, WRONG, ILLEGAL, SPINS, NOTHING, BEYOND, BEFORE, UNWRITTEN };

struct StitchHandle {
  const float* weight = nullptr;
  const float* bias = nullptr;
  int in = 0, out = 0;
};

static float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

__global__ void linear_relu(const float* x, const float* weight, const float* bias, float* y, int rows,
                            int in, int out) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= out) return;
  __shared__ volatile float unwritten[128];
  if (in < 0) unwritten[threadIdx.x] = 0.0f;
  float sum = bias[column];
  if (FAULT == UNWRITTEN) sum += unwritten[threadIdx.x];
  for (int k = 0; k < in; ++k) sum += x[row * in + k] * weight[column * in + k];
  if (FAULT == WRONG && column == out - 1) sum += 1;
  if (FAULT == ILLEGAL) y = reinterpret_cast<float*>(64);
  if (FAULT == SPINS)
    while (*reinterpret_cast<volatile float*>(y) != 3.5f) {
    }
  y[row * out + column] = sum > 0 ? sum : 0;
  if (FAULT == BEYOND && row == rows - 1) atomicAdd(y + rows * out + 1000, 1.0f);
  if (FAULT == BEFORE && row == 0) y[-200] = 1.0f;
}

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  StitchHandle* self = *handle = new StitchHandle;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const StitchNamedTensor& param = args->params[i];
    if (param.tensor.device.device_type != 2) return STITCH_ERROR;
    if (!std::strcmp(param.name, "fc.bias")) self->bias = data(param.tensor);
    if (std::strcmp(param.name, "fc.weight")) continue;
    self->weight = data(param.tensor);
    self->out = static_cast<int>(param.tensor.shape[0]);
    self->in = static_cast<int>(param.tensor.shape[1]);
  }
  return self->weight && self->bias ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t, StitchPlan* plan) {
  if (inputs[0].strides || inputs[0].shape[1] != handle->in) return STITCH_UNSUPPORTED;
  plan->num_outputs = 1;
  plan->outputs[0].ndim = 2;
  plan->outputs[0].dtype = inputs[0].dtype;
  plan->outputs[0].shape[0] = inputs[0].shape[0];
  plan->outputs[0].shape[1] = handle->out;
  plan->workspace_bytes = 1000;
  plan->flags = STITCH_CAPTURABLE;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  if (FAULT == NOTHING) return STITCH_OK;
  const int rows = static_cast<int>(args->inputs[0].shape[0]);
  const dim3 grid((handle->out + 127) / 128, rows);
  linear_relu<<<grid, 128, 0, static_cast<cudaStream_t>(args->stream)>>>(
      data(args->inputs[0]), handle->weight, handle->bias, data(args->outputs[0]), rows, handle->in,
      handle->out);
  return cudaGetLastError() == cudaSuccess ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}
