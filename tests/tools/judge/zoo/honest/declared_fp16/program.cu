// y = relu(x W^T + b) on fp16 tensor cores with sums in fp32: the contract allows it.
#include <cuda_runtime.h>
#include <stitch/abi.h>

#include <cuda_fp16.h>
#include <mma.h>
#include <cstring>

struct StitchHandle {
  const float *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

using namespace nvcuda;
constexpr int kTile = 16, kDepth = 16;

// One warp computes a tile of 16 x 16 outputs; what lies outside the matrices is zero in shared memory.
__global__ void linear_relu(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                            int64_t in, int64_t out) {
  __shared__ __half a[1][kTile * kDepth], b[1][kTile * kDepth];
  __shared__ float tile[kTile * kTile];
  const int64_t first_row = blockIdx.y * int64_t{kTile}, first_column = blockIdx.x * int64_t{kTile};
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int64_t first = 0; first < in; first += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += 32) {
      const int64_t line = i / kDepth, k = first + i % kDepth;
      const bool in_x = first_row + line < rows && k < in, in_weight = first_column + line < out && k < in;
      const float left = in_x ? x[(first_row + line) * in + k] : 0.0f;
      const float right = in_weight ? weight[(first_column + line) * in + k] : 0.0f;
      a[0][i] = __float2half(left);
      b[0][i] = __float2half(right);
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> right;
    wmma::load_matrix_sync(left, a[0], kDepth);
    wmma::load_matrix_sync(right, b[0], kDepth);
    wmma::mma_sync(sum, left, right, sum);
    __syncwarp();
  }
  wmma::store_matrix_sync(tile, sum, kTile, wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x; i < kTile * kTile; i += 32) {
    const int64_t row = first_row + i / kTile, column = first_column + i % kTile;
    if (row >= rows || column >= out) continue;
    const float value = tile[i] + bias[column];
    y[row * out + column] = value > 0.0f ? value : 0.0f;
  }
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
  const dim3 grid(static_cast<unsigned>((self->out + kTile - 1) / kTile),
                  static_cast<unsigned>((rows + kTile - 1) / kTile));
  linear_relu<<<grid, 32, 0, stream>>>(data(args->inputs[0]), self->weight, self->bias,
                                       data(args->outputs[0]), rows, self->in, self->out);
  return cudaGetLastError() == cudaSuccess ? STITCH_OK : STITCH_ERROR;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}
