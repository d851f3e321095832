// Batch norm with the batch's own statistics, in three kernels; their scratch comes from CUDA's pool, in
// stream order, in every call.
#include <cuda_runtime.h>
#include <stitch/abi.h>

#include <cstring>

struct StitchHandle {
  const float *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
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

__global__ void means(const float* x, float* mean, int64_t batch, int64_t channels, int64_t plane) {
  const int64_t channel = blockIdx.x;
  double sum = 0.0;
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t i = threadIdx.x; i < plane; i += 32) sum += x[(n * channels + channel) * plane + i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
  if (threadIdx.x == 0) mean[channel] = static_cast<float>(sum / static_cast<double>(batch * plane));
}

__global__ void scales(const float* x, const float* mean, float* scale, int64_t batch, int64_t channels,
                       int64_t plane) {
  const int64_t channel = blockIdx.x;
  double sum = 0.0;
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t i = threadIdx.x; i < plane; i += 32) {
      const double difference = x[(n * channels + channel) * plane + i] - mean[channel];
      sum += difference * difference;
    }
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
  if (threadIdx.x == 0)
    scale[channel] = static_cast<float>(1.0 / sqrt(sum / static_cast<double>(batch * plane) + 1e-5));
}

__global__ void normalise(const float* x, const float* mean, const float* scale, const float* weight,
                          const float* bias, float* y, int64_t count, int64_t channels, int64_t plane) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  const int64_t channel = i / plane % channels;
  y[i] = (x[i] - mean[channel]) * scale[channel] * weight[channel] + bias[channel];
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
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (inputs[0].strides != nullptr || num_inputs != 1) return STITCH_UNSUPPORTED;
  plan->num_outputs = 1;
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  const DLTensor& x = args->inputs[0];
  const int64_t count = count_of(x), batch = x.shape[0], channels = x.shape[1];
  if (count == 0) return STITCH_OK;
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  const int64_t plane = count / (batch * channels);
  const unsigned blocks = static_cast<unsigned>(channels);
  float* scratch = nullptr;
  if (cudaMallocAsync(&scratch, 2 * sizeof(float) * static_cast<size_t>(channels), stream) != cudaSuccess)
    return STITCH_OUT_OF_MEMORY;
  means<<<blocks, 32, 0, stream>>>(data(x), scratch, batch, channels, plane);
  scales<<<blocks, 32, 0, stream>>>(data(x), scratch, scratch + channels, batch, channels, plane);
  normalise<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(
      data(x), scratch, scratch + channels, self->weight, self->bias, data(args->outputs[0]), count, channels,
      plane);
  cudaFreeAsync(scratch, stream);
  return cudaGetLastError() == cudaSuccess ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}
