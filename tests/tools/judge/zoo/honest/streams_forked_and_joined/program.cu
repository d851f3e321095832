// Layer norm on two streams, half of the rows each. The side stream waits for the caller's, and the caller's
// for the side stream, so that nothing is left over when the call returns.
#include <cuda_runtime.h>
#include <stitch/abi.h>

#include <cstring>

struct StitchHandle {
  const float *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
  cudaStream_t side = nullptr;
  cudaEvent_t forked = nullptr, joined = nullptr;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int64_t count_of(const DLTensor& tensor) {
  int64_t count = 1;
  for (int32_t d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
  return count;
}

constexpr int kThreads = 128;

__device__ float sum_of_block(float value) {
  __shared__ float part[kThreads];
  part[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  const float sum = part[0];
  __syncthreads();
  return sum;
}

__global__ void layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t width) {
  const float* in = x + blockIdx.x * width;
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) sum += in[i];
  const float mean = sum_of_block(sum) / static_cast<float>(width);
  for (int64_t i = threadIdx.x; i < width; i += kThreads) squares += (in[i] - mean) * (in[i] - mean);
  const float scale = 1.0f / sqrtf(sum_of_block(squares) / static_cast<float>(width) + 1e-5f);
  for (int64_t i = threadIdx.x; i < width; i += kThreads)
    y[blockIdx.x * width + i] = (in[i] - mean) * scale * weight[i] + bias[i];
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
  cudaStreamCreateWithFlags(&self->side, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&self->forked, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&self->joined, cudaEventDisableTiming);
  return cudaGetLastError() == cudaSuccess ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (inputs[0].strides != nullptr || num_inputs != 1) return STITCH_UNSUPPORTED;
  plan->num_outputs = 1;
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  plan->workspace_bytes = 0;
  plan->flags = STITCH_CAPTURABLE;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const DLTensor& x = args->inputs[0];
  const int64_t width = x.shape[x.ndim - 1], rows = width ? count_of(x) / width : 0;
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  const int64_t half = rows / 2;
  float* y = data(args->outputs[0]);
  cudaEventRecord(self->forked, stream);
  cudaStreamWaitEvent(self->side, self->forked, 0);
  if (half > 0)
    layer_norm<<<static_cast<unsigned>(half), kThreads, 0, self->side>>>(data(x), self->weight, self->bias, y,
                                                                         width);
  if (rows > half)
    layer_norm<<<static_cast<unsigned>(rows - half), kThreads, 0, stream>>>(
        data(x) + half * width, self->weight, self->bias, y + half * width, width);
  cudaEventRecord(self->joined, self->side);
  cudaStreamWaitEvent(stream, self->joined, 0);
  return cudaGetLastError() == cudaSuccess ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) {
  if (handle == nullptr) return;
  cudaStreamDestroy(handle->side);
  cudaEventDestroy(handle->forked);
  cudaEventDestroy(handle->joined);
  delete handle;
}
}
