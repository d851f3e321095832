// silu(x * gain + shift) * gate + x in one kernel with 16-byte loads: four columns a thread, rows in a
// grid-stride loop.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
  const float* gain = nullptr;
  const float* shift = nullptr;
  int64_t width = 0;
};

namespace {
constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 4096;  // many waves on every GPU; the loop does the rest

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int32_t status_of(StitchHandle* handle, cudaError_t status) {
  if (status == cudaSuccess) return STITCH_OK;
  handle->error = cudaGetErrorString(status);
  return status == cudaErrorMemoryAllocation ? STITCH_OUT_OF_MEMORY : STITCH_ERROR;
}

__device__ float gated(float x, float gain, float shift, float gate) {
  const float z = x * gain + shift;
  return z / (1.0f + expf(-z)) * gate + x;
}

// `width` counts groups of four columns. The groups of all rows are one index, so that neighbours in a warp
// read neighbouring 16 bytes, 512 a warp and load.
__global__ void gate_rows(const float4* __restrict__ x, const float4* __restrict__ gate,
                          const float4* __restrict__ gain, const float4* __restrict__ shift,
                          float4* __restrict__ out, int64_t groups, int64_t width) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < groups; i += step) {
    const float4 a = x[i], b = gate[i], g = gain[i % width], s = shift[i % width];
    out[i] = make_float4(gated(a.x, g.x, s.x, b.x), gated(a.y, g.y, s.y, b.y), gated(a.z, g.z, s.z, b.z),
                         gated(a.w, g.w, s.w, b.w));
  }
}

bool aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % sizeof(float4) == 0; }
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
  const DLTensor *gain = tensor("gain"), *shift = tensor("shift");
  if (!made->error.empty()) return STITCH_ERROR;
  made->gain = floats(*gain);
  made->shift = floats(*shift);
  made->width = gain->shape[0];
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 2 || inputs[0].ndim != 2 || inputs[0].strides || inputs[1].strides ||
      inputs[0].shape[1] != handle->width || handle->width % 4 != 0) {
    handle->error = "two dense matrices of the layer's width, a multiple of 4, are expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[1];
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = STITCH_CAPTURABLE;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const float *x = floats(args->inputs[0]), *gate = floats(args->inputs[1]);
  float* out = floats(args->outputs[0]);
  // A view may begin anywhere: look before loading 16 bytes at once.
  for (const float* address : {x, gate, static_cast<const float*>(out), handle->gain, handle->shift})
    if (!aligned(address)) {
      handle->error = "tensors that begin at multiples of 16 bytes are expected";
      return STITCH_UNSUPPORTED;
    }
  const int64_t width = handle->width / 4, groups = args->inputs[0].shape[0] * width;
  if (groups == 0) return STITCH_OK;
  const auto blocks = static_cast<unsigned>(std::min((groups + kThreads - 1) / kThreads, kMostBlocks));
  const auto stream = static_cast<cudaStream_t>(args->stream);
  const auto vectors = [](const float* from) { return reinterpret_cast<const float4*>(from); };
  gate_rows<<<blocks, kThreads, 0, stream>>>(vectors(x), vectors(gate), vectors(handle->gain),
                                             vectors(handle->shift), reinterpret_cast<float4*>(out), groups,
                                             width);
  return status_of(handle, cudaGetLastError());
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
