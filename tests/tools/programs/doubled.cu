// y = 2 x on a GPU, by way of shared memory and the workspace; `defect.h` decides what is wrong with it.
#include <cuda_runtime.h>
#include <stitch/abi.h>

#include "defect.h"

enum Defect {
  NONE,
  READS_ONE_BEYOND,   // the first element behind the input
  WRITES_ONE_BEYOND,  // the same of the output
  ADDS_ONE_BEYOND,    // the same by an atomic addition whose result nobody uses
  SWAPS_ONE_BEYOND,   // the same by one whose result is used
  RACES,              // shared memory without a barrier
  READS_UNWRITTEN,    // workspace that nobody wrote
  DIVERGES,           // a barrier that every other thread skips
  HANGS
};

struct StitchHandle {
  int unused = 0;
};

constexpr int kThreads = 128;

static int64_t count_of(const DLTensor& tensor) {
  int64_t count = 1;
  for (int32_t d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
  return count;
}

static float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

// Each thread doubles its neighbour's element, which another thread brought into shared memory.
__global__ void double_all(const float* x, float* scratch, float* y, int64_t count) {
  __shared__ float tile[kThreads];
  const int thread = threadIdx.x, neighbour = kThreads - 1 - thread;
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kThreads;
  const int64_t mine = start + thread, other = start + neighbour;
  const bool beyond = DEFECT == READS_ONE_BEYOND && mine == count - 1;
  tile[thread] = mine < count ? x[mine + beyond] : 0.0f;
  if (DEFECT != RACES) __syncthreads();
  if (DEFECT == DIVERGES && thread % 2 == 0) __syncthreads();
  const float value = tile[neighbour];
  if (other < count) y[other] = value + value;
  if (mine == 0) {
    if (DEFECT == WRITES_ONE_BEYOND) y[count] = 1.0f;
    if (DEFECT == ADDS_ONE_BEYOND) atomicAdd(y + count, 1.0f);
    if (DEFECT == SWAPS_ONE_BEYOND) y[0] += atomicAdd(y + count, 1.0f) == 12345.678f ? 1e-30f : 0.0f;
    // Far below what the comparison allows, whatever was there.
    if (DEFECT == READS_UNWRITTEN) y[0] += scratch[count] == 12345.678f ? 1e-30f : 0.0f;
    if (DEFECT == HANGS)
      while (*reinterpret_cast<volatile float*>(scratch) != 3.5f) {
      }
  }
}

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t, StitchPlan* plan) {
  if (inputs[0].strides) return STITCH_UNSUPPORTED;
  plan->num_outputs = 1;
  plan->workspace_bytes = static_cast<uint64_t>(count_of(inputs[0]) + 1) * sizeof(float);
  plan->flags = STITCH_CAPTURABLE;
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  const int64_t count = count_of(args->inputs[0]);
  const unsigned blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  double_all<<<blocks, kThreads, 0, static_cast<cudaStream_t>(args->stream)>>>(
      data(args->inputs[0]), static_cast<float*>(args->workspace), data(args->outputs[0]), count);
  return cudaGetLastError() == cudaSuccess ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }
STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}
