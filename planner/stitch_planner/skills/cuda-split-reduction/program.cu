// Mean of squares of a few long rows: many blocks share a row, and a second kernel adds their sums in a fixed
// order.
#include <cuda_runtime.h>

#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
};

namespace {
constexpr int kThreads = 256;
// Elements of a part: 32 a thread. The size is fixed, not the number of parts: the same sum comes out on
// every GPU.
constexpr int64_t kPart = int64_t{kThreads} * 32;

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int32_t status_of(StitchHandle* handle, cudaError_t status) {
  if (status == cudaSuccess) return STITCH_OK;
  handle->error = cudaGetErrorString(status);
  return status == cudaErrorMemoryAllocation ? STITCH_OUT_OF_MEMORY : STITCH_ERROR;
}

__device__ float block_sum(float value) {
  __shared__ float of_warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0.0f;
  for (float sum : of_warps) value += sum;
  return value;
}

// Grid (parts, rows). No atomics: their order, and with it the rounding, would differ from call to call.
__global__ void sum_parts(const float* __restrict__ x, float* __restrict__ sums, int64_t length) {
  const float* row = x + blockIdx.y * length;
  const int64_t first = blockIdx.x * kPart;
  const int64_t end = min(first + kPart, length);
  float sum = 0.0f;
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) sum += row[i] * row[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = sum;
}

__global__ void add_parts(const float* __restrict__ sums, float* __restrict__ out, int64_t parts,
                          float scale) {
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < parts; i += kThreads) sum += sums[blockIdx.x * parts + i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum * scale;
}

int64_t parts_of(const DLTensor& x) { return (x.shape[1] + kPart - 1) / kPart; }
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 2 || inputs[0].strides || inputs[0].shape[1] == 0 ||
      inputs[0].shape[0] > 65535) {
    handle->error = "a dense matrix of at most 65535 rows is expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 1;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  plan->num_outputs = 1;
  plan->workspace_bytes = static_cast<uint64_t>(inputs[0].shape[0] * parts_of(inputs[0])) * sizeof(float);
  plan->flags = STITCH_CAPTURABLE;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const int64_t rows = args->inputs[0].shape[0], length = args->inputs[0].shape[1];
  if (rows == 0) return STITCH_OK;
  const int64_t parts = parts_of(args->inputs[0]);
  const auto stream = static_cast<cudaStream_t>(args->stream);
  auto* sums = static_cast<float*>(args->workspace);
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(rows));
  sum_parts<<<grid, kThreads, 0, stream>>>(floats(args->inputs[0]), sums, length);
  add_parts<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(sums, floats(args->outputs[0]), parts,
                                                                  1.0f / static_cast<float>(length));
  return status_of(handle, cudaGetLastError());
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
