// y = 2 x + 1 on the native ABI, for a GPU.
#include <cuda_runtime.h>
#include <stitch/abi.h>

struct StitchHandle {};

namespace {

__global__ void scale(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) y[i] = x[i] * 2.0f + 1.0f;
}

constexpr int kThreads = 256;

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t, StitchPlan* plan) {
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = STITCH_CAPTURABLE;
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  const DLTensor &input = args->inputs[0], &output = args->outputs[0];
  const float* x = reinterpret_cast<const float*>(static_cast<const char*>(input.data) + input.byte_offset);
  float* y = reinterpret_cast<float*>(static_cast<char*>(output.data) + output.byte_offset);
  int64_t count = 1;
  for (int32_t d = 0; d < input.ndim; ++d) count *= input.shape[d];
  const auto stream = static_cast<cudaStream_t>(args->stream);
  scale<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(x, y, count);
  return cudaGetLastError() == cudaSuccess ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }
STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}
