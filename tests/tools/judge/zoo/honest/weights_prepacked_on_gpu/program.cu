// y = relu(x W^T + b) on a transposed copy of W that init makes: threads of a warp then read neighbours.
#include <cuda_runtime.h>
#include <stitch/abi.h>

#include <cstring>

struct StitchHandle {
  const float *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
  float* packed = nullptr;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

__global__ void transpose(const float* weight, float* packed, int64_t out, int64_t in) {
  const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (at < out * in) packed[(at % in) * out + at / in] = weight[at];
}

__global__ void linear_relu(const float* x, const float* packed, const float* bias, float* y, int64_t in,
                            int64_t out) {
  const int64_t column = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, row = blockIdx.y;
  if (column >= out) return;
  float sum = bias[column];
  for (int64_t k = 0; k < in; ++k) sum += x[row * in + k] * packed[k * out + column];
  y[row * out + column] = fmaxf(sum, 0.0f) + (sum != sum ? sum : 0.0f);
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
  const int64_t count = self->out * self->in;
  if (cudaMalloc(&self->packed, sizeof(float) * static_cast<size_t>(count)) != cudaSuccess)
    return STITCH_OUT_OF_MEMORY;
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  transpose<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(self->weight, self->packed,
                                                                            self->out, self->in);
  return cudaStreamSynchronize(stream) == cudaSuccess ? STITCH_OK : STITCH_ERROR;
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
  plan->flags = STITCH_CAPTURABLE;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  const int64_t rows = args->inputs[0].shape[0];
  const dim3 grid(static_cast<unsigned>((self->out + 127) / 128), static_cast<unsigned>(rows));
  linear_relu<<<grid, 128, 0, stream>>>(data(args->inputs[0]), self->packed, self->bias,
                                        data(args->outputs[0]), self->in, self->out);
  return cudaGetLastError() == cudaSuccess ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) {
  if (handle == nullptr) return;
  cudaFree(handle->packed);
  delete handle;
}
}
