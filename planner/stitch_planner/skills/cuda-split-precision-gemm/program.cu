// relu(x W^T + bias) in float32 accuracy on tensor cores: each operand is split into two TF32 numbers, and
// three of the four products are summed. Partial sums are added outside the tensor cores, which truncate
// where they accumulate.
#include <cuda_runtime.h>

#include <cstring>
#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
  const float* weight = nullptr;
  const float* bias = nullptr;
  int inputs = 0, outputs = 0;
};

namespace {
constexpr int kTile = 64;   // rows and columns of a block; its four warps take 32 x 32 each
constexpr int kDepth = 32;  // inputs of a step
constexpr int kPitch =
    kDepth + 4;  // floats between rows in shared memory: fragments then hit 32 different banks
constexpr int kThreads = 128;

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int32_t status_of(StitchHandle* handle, cudaError_t status) {
  if (status == cudaSuccess) return STITCH_OK;
  handle->error = cudaGetErrorString(status);
  return status == cudaErrorMemoryAllocation ? STITCH_OUT_OF_MEMORY : STITCH_ERROR;
}

struct Split {
  uint32_t high, low;
};

// The high part keeps the 10 bits of mantissa that TF32 has, the low part what is left, exactly.
__device__ Split split(float value) {
  const uint32_t high = __float_as_uint(value) & 0xffffe000u;
  return {high, __float_as_uint(value - __uint_as_float(high))};
}

// sums (16 x 8) += a (16 x 8, row-major) * b (8 x 8, column-major). Lane l holds, with g = l / 4 and t = l %
// 4: a: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); b: (t, g), (t + 4, g); sums: (g, 2t), (g, 2t + 1),
// and 8 rows on.
__device__ void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Rows first .. first + kTile of a matrix (rows, depth), inputs k .. k + kDepth; zeros where it ends.
__device__ void load_tile(const float* __restrict__ from, float (*tile)[kPitch], int first, int rows, int k,
                          int depth) {
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const int row = i / kDepth, column = i % kDepth;
    const bool inside = first + row < rows && k + column < depth;
    tile[row][column] = inside ? from[int64_t{first + row} * depth + k + column] : 0.0f;
  }
}

// The products of one tile, into sums of 2 x 4 blocks of 16 x 8.
__device__ void multiply_tiles(const float (*x)[kPitch], const float (*w)[kPitch], int row, int column,
                               float (&sums)[2][4][4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float partial[2][4][4] = {};
#pragma unroll
  for (int k = 0; k < kDepth; k += 8) {
    uint32_t a_high[2][4], a_low[2][4], b_high[4][2], b_low[4][2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Split part = split(x[row + i * 16 + g + j % 2 * 8][k + t + j / 2 * 4]);
        a_high[i][j] = part.high;
        a_low[i][j] = part.low;
      }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Split part = split(w[column + i * 8 + g][k + t + j * 4]);
        b_high[i][j] = part.high;
        b_low[i][j] = part.low;
      }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4;
           ++j) {  // the small products first; low times low is below the rounding of float32
        multiply(partial[i][j], a_low[i], b_high[j]);
        multiply(partial[i][j], a_high[i], b_low[j]);
        multiply(partial[i][j], a_high[i], b_high[j]);
      }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) sums[i][j][v] += partial[i][j][v];
}

__global__ void __launch_bounds__(kThreads)
    linear_relu(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                float* __restrict__ out, int rows, int outputs, int depth) {
  __shared__ float x_tile[kTile][kPitch], w_tile[kTile][kPitch];
  const int first_row = blockIdx.y * kTile, first_column = blockIdx.x * kTile;
  const int warp = threadIdx.x / 32, row = warp / 2 * 32, column = warp % 2 * 32;
  float sums[2][4][4] = {};
  for (int k = 0; k < depth; k += kDepth) {
    load_tile(x, x_tile, first_row, rows, k, depth);
    load_tile(weight, w_tile, first_column, outputs, k, depth);
    __syncthreads();
    multiply_tiles(x_tile, w_tile, row, column, sums);
    __syncthreads();  // all have read the tile before the next overwrites it
  }
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      for (int v = 0; v < 4; ++v) {
        const int r = first_row + row + i * 16 + g + v / 2 * 8;
        const int c = first_column + column + j * 8 + 2 * t + v % 2;
        if (r >= rows || c >= outputs) continue;
        float sum = sums[i][j][v];
        if (isnan(sum)) {  // an infinity times a low part of 0 is NaN: such a sum is computed once more,
                           // unsplit
          sum = 0.0f;
          for (int k = 0; k < depth; ++k) sum += x[int64_t{r} * depth + k] * weight[int64_t{c} * depth + k];
        }
        sum += bias[c];
        out[int64_t{r} * outputs + c] = sum < 0.0f ? 0.0f : sum;  // a NaN stays one
      }
}
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
  const DLTensor *weight = tensor("linear.weight"), *bias = tensor("linear.bias");
  if (!made->error.empty()) return STITCH_ERROR;
  made->weight = floats(*weight);
  made->bias = floats(*bias);
  made->outputs = static_cast<int>(weight->shape[0]);
  made->inputs = static_cast<int>(weight->shape[1]);
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 2 || inputs[0].strides || inputs[0].shape[1] != handle->inputs ||
      inputs[0].shape[0] > 65535 * kTile) {
    handle->error = "a dense matrix of the layer's width is expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = handle->outputs;
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = STITCH_CAPTURABLE;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const int rows = static_cast<int>(args->inputs[0].shape[0]);
  if (rows == 0) return STITCH_OK;
  const dim3 grid((handle->outputs + kTile - 1) / kTile, (rows + kTile - 1) / kTile);
  linear_relu<<<grid, kThreads, 0, static_cast<cudaStream_t>(args->stream)>>>(
      floats(args->inputs[0]), handle->weight, handle->bias, floats(args->outputs[0]), rows, handle->outputs,
      handle->inputs);
  return status_of(handle, cudaGetLastError());
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
