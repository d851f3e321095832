// activation(x * gain + shift) * gate + x on a GPU. Macros choose the variant; those below are defaults.
#include <cuda_runtime.h>

#include <string>

#include "stitch/abi.h"

#ifndef ACTIVATION
#define ACTIVATION 0  // 0 silu, 1 sigmoid, 2 tanh, 3 relu
#endif
#ifndef MATH
#define MATH 0  // 0 expf, 1 exp in double
#endif
#ifndef WALK
#define WALK 0  // 0 neighbors in a warp read neighbors in memory, 1 neighbors read one column
#endif
#ifndef LOADS
#define LOADS 4  // floats that a thread reads at once along a row: 1 or 4
#endif
#ifndef SHORTCUT
#define SHORTCUT 0  // 0 none, 1 output rounded to bfloat16, 2 no work after the first call
#endif

struct StitchHandle {
  std::string error;
  const float* gain = nullptr;
  const float* shift = nullptr;
  int64_t width = 0;
  int64_t calls = 0;
};

namespace {
constexpr int kBlock = 256;  // threads

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

#if MATH == 0
__device__ float exponential(float x) { return expf(x); }
#else
__device__ float exponential(float x) { return static_cast<float>(exp(static_cast<double>(x))); }
#endif

__device__ float activation(float z) {
#if ACTIVATION == 0
  return z / (1.0f + exponential(-z));
#elif ACTIVATION == 1
  return 1.0f / (1.0f + exponential(-z));
#elif ACTIVATION == 2
  return 1.0f - 2.0f / (1.0f + exponential(2.0f * z));
#else
  return z < 0.0f ? 0.0f : z;  // a NaN stays one
#endif
}

__device__ float element(float x, float gate, float gain, float shift) {
  const float value = activation(x * gain + shift) * gate + x;
#if SHORTCUT == 1
  return __uint_as_float(__float_as_uint(value) & 0xffff0000u);
#else
  return value;
#endif
}

// One thread an element (or a piece of four): `item` counts along rows, or down columns.
__global__ void rows_kernel(const float* __restrict__ x, const float* __restrict__ gate,
                            const float* __restrict__ gain, const float* __restrict__ shift,
                            float* __restrict__ out, int64_t rows, int64_t width) {
  const int64_t item = int64_t{blockIdx.x} * kBlock + threadIdx.x;
#if WALK == 1
  if (item >= rows * width) return;
  const int64_t column = item / rows;
  const int64_t at = (item % rows) * width + column;
  out[at] = element(x[at], gate[at], gain[column], shift[column]);
#elif LOADS == 4
  if (item >= rows * width / 4) return;
  const int64_t column = item % (width / 4);
  const float4 a = reinterpret_cast<const float4*>(x)[item];
  const float4 g = reinterpret_cast<const float4*>(gate)[item];
  const float4 w = reinterpret_cast<const float4*>(gain)[column];
  const float4 s = reinterpret_cast<const float4*>(shift)[column];
  reinterpret_cast<float4*>(out)[item] =
      make_float4(element(a.x, g.x, w.x, s.x), element(a.y, g.y, w.y, s.y), element(a.z, g.z, w.z, s.z),
                  element(a.w, g.w, w.w, s.w));
#else
  if (item >= rows * width) return;
  const int64_t column = item % width;
  out[item] = element(x[item], gate[item], gain[column], shift[column]);
#endif
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  auto* made = *handle = new StitchHandle;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const std::string name = args->params[i].name;
    const DLTensor& tensor = args->params[i].tensor;
    if (name == "gain") made->gain = floats(tensor);
    if (name == "shift") made->shift = floats(tensor);
    made->width = tensor.shape[0];
  }
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
#if SHORTCUT == 2
  if (handle->calls++ > 0) return STITCH_OK;
#endif
  const int64_t rows = args->inputs[0].shape[0];
  const float* x = floats(args->inputs[0]);
  const float* gate = floats(args->inputs[1]);
  if ((reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(gate)) % sizeof(float4) != 0) {
    handle->error = "tensors that begin at a multiple of 16 bytes are expected";
    return STITCH_UNSUPPORTED;
  }
  if (rows == 0) return STITCH_OK;
  const int64_t items = rows * handle->width / (WALK == 0 ? LOADS : 1);
  const auto blocks = static_cast<unsigned>((items + kBlock - 1) / kBlock);
  rows_kernel<<<blocks, kBlock, 0, static_cast<cudaStream_t>(args->stream)>>>(
      x, gate, handle->gain, handle->shift, floats(args->outputs[0]), rows, handle->width);
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return STITCH_OK;
  handle->error = cudaGetErrorString(status);
  return STITCH_ERROR;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
