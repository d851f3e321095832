// softmax(scores * scale) with one warp a row: the row lives in registers, and shuffles replace shared memory
// and barriers.
#include <cuda_runtime.h>

#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
};

namespace {
constexpr float kScale = 0.125f;
constexpr int kWidth = 1024;                 // known when compiled, or the array below leaves the registers
constexpr int kVectors = kWidth / (32 * 4);  // float4 a lane: 8, 32 registers
constexpr int kWarps = 4;                    // of a block: rows do not talk to each other, so small blocks do

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int32_t status_of(StitchHandle* handle, cudaError_t status) {
  if (status == cudaSuccess) return STITCH_OK;
  handle->error = cudaGetErrorString(status);
  return status == cudaErrorMemoryAllocation ? STITCH_OUT_OF_MEMORY : STITCH_ERROR;
}

__device__ float warp_max(float value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

__device__ float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

__global__ void softmax_rows(const float4* __restrict__ scores, float4* __restrict__ out, int64_t rows) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= rows) return;  // whole warps leave: no shuffle misses a lane
  float4 values[kVectors];
  float most = -INFINITY;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    // Lane after lane, so that each load of the warp is one piece of 512 bytes.
    float4 value = scores[row * (kWidth / 4) + v * 32 + lane];
    value = make_float4(value.x * kScale, value.y * kScale, value.z * kScale, value.w * kScale);
    // fmaxf passes over a NaN; it reaches the sum through expf, and with it the whole row, as in PyTorch.
    most = fmaxf(most, fmaxf(fmaxf(value.x, value.y), fmaxf(value.z, value.w)));
    values[v] = value;
  }
  most = warp_max(most);
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float4& value = values[v];
    value =
        make_float4(expf(value.x - most), expf(value.y - most), expf(value.z - most), expf(value.w - most));
    sum += (value.x + value.y) + (value.z + value.w);
  }
  const float share = 1.0f / warp_sum(sum);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const float4 value = values[v];
    out[row * (kWidth / 4) + v * 32 + lane] =
        make_float4(value.x * share, value.y * share, value.z * share, value.w * share);
  }
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 2 || inputs[0].strides || inputs[0].shape[1] != kWidth) {
    handle->error = "a dense matrix of 1024 columns is expected";
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
  const int64_t rows = args->inputs[0].shape[0];
  const float* scores = floats(args->inputs[0]);
  if (reinterpret_cast<uintptr_t>(scores) % sizeof(float4) != 0) {
    handle->error = "a tensor that begins at a multiple of 16 bytes is expected";
    return STITCH_UNSUPPORTED;
  }
  if (rows == 0) return STITCH_OK;
  const auto blocks = static_cast<unsigned>((rows + kWarps - 1) / kWarps);
  softmax_rows<<<blocks, kWarps * 32, 0, static_cast<cudaStream_t>(args->stream)>>>(
      reinterpret_cast<const float4*>(scores), reinterpret_cast<float4*>(floats(args->outputs[0])), rows);
  return status_of(handle, cudaGetLastError());
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
