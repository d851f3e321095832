// Softmax attention that never stores the scores: a thread owns a query, keys and values pass by in tiles of
// shared memory.
#include <cuda_runtime.h>

#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
};

namespace {
constexpr int kSize = 64;      // components of a head
constexpr int kQueries = 128;  // of a block, one a thread
constexpr int kKeys = 32;      // of a tile: 2 x 8 KiB of shared memory
constexpr int kGroup = 8;      // keys between two looks at the maximum

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int32_t status_of(StitchHandle* handle, cudaError_t status) {
  if (status == cudaSuccess) return STITCH_OK;
  handle->error = cudaGetErrorString(status);
  return status == cudaErrorMemoryAllocation ? STITCH_OUT_OF_MEMORY : STITCH_ERROR;
}

struct Softmax {
  float most = -INFINITY, sum = 0.0f;
  float values[kSize] = {};  // the weighted sum so far, relative to exp(most)
};

__device__ float dot(const float (&query)[kSize], const float4* key) {
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < kSize / 4; ++i) {  // all threads read the same key: one broadcast a load
    const float4 part = key[i];
    sums[0] += query[4 * i] * part.x;
    sums[1] += query[4 * i + 1] * part.y;
    sums[2] += query[4 * i + 2] * part.z;
    sums[3] += query[4 * i + 3] * part.w;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Takes `count` more keys in: one rescaling for all of them, where the maximum rises.
__device__ void take(const float (&query)[kSize], const float4* keys, const float4* values, int count,
                     Softmax& softmax) {
  float scores[kGroup];
  float most = softmax.most;
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    scores[j] = j < count ? dot(query, keys + j * (kSize / 4)) : -INFINITY;
    most = fmaxf(most, scores[j]);
  }
  // Of nothing but -inf the difference below would be NaN, though a later key may be finite.
  const float base = most == -INFINITY ? 0.0f : most;
  const float scale = expf(softmax.most - base);
  softmax.most = most;
  softmax.sum *= scale;
#pragma unroll
  for (float& value : softmax.values) value *= scale;
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    if (j >= count) break;
    const float weight = expf(scores[j] - base);
    softmax.sum += weight;
#pragma unroll
    for (int i = 0; i < kSize / 4; ++i) {
      const float4 part = values[j * (kSize / 4) + i];
      softmax.values[4 * i] += weight * part.x;
      softmax.values[4 * i + 1] += weight * part.y;
      softmax.values[4 * i + 2] += weight * part.z;
      softmax.values[4 * i + 3] += weight * part.w;
    }
  }
}

// Grid (blocks of queries, heads).
__global__ void __launch_bounds__(kQueries)
    attend(const float4* __restrict__ queries, const float4* __restrict__ keys,
           const float4* __restrict__ values, float4* __restrict__ out, int count, int length, float scale) {
  constexpr int kParts = kSize / 4;
  __shared__ float4 key_tile[kKeys * kParts], value_tile[kKeys * kParts];
  const int row = blockIdx.x * kQueries + threadIdx.x;
  const int64_t head = int64_t{blockIdx.y} * length * kParts;
  // A thread without a query computes the last one too, since barriers need every thread; it writes nothing.
  const int64_t query_at = (int64_t{blockIdx.y} * count + min(row, count - 1)) * kParts;
  float query[kSize];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float4 part = queries[query_at + i];
    query[4 * i] = part.x * scale;
    query[4 * i + 1] = part.y * scale;
    query[4 * i + 2] = part.z * scale;
    query[4 * i + 3] = part.w * scale;
  }
  Softmax softmax;
  for (int first = 0; first < length; first += kKeys) {
    const int here = min(kKeys, length - first);
    for (int i = threadIdx.x; i < here * kParts; i += kQueries) {
      key_tile[i] = keys[head + int64_t{first} * kParts + i];
      value_tile[i] = values[head + int64_t{first} * kParts + i];
    }
    __syncthreads();
    for (int j = 0; j < here; j += kGroup)
      take(query, key_tile + j * kParts, value_tile + j * kParts, min(kGroup, here - j), softmax);
    __syncthreads();  // all are done with the tile before the next overwrites it
  }
  if (row >= count) return;
#pragma unroll
  for (int i = 0; i < kParts; ++i)
    out[query_at + i] =
        make_float4(softmax.values[4 * i] / softmax.sum, softmax.values[4 * i + 1] / softmax.sum,
                    softmax.values[4 * i + 2] / softmax.sum, softmax.values[4 * i + 3] / softmax.sum);
}

bool fits(const DLTensor& tensor, int64_t heads) {
  return tensor.ndim == 3 && !tensor.strides && tensor.shape[0] == heads && tensor.shape[2] == kSize;
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 3 || !fits(inputs[0], inputs[0].shape[0]) || !fits(inputs[1], inputs[0].shape[0]) ||
      !fits(inputs[2], inputs[0].shape[0]) || inputs[1].shape[1] != inputs[2].shape[1] ||
      inputs[1].shape[1] == 0 || inputs[0].shape[0] > 65535) {
    handle->error = "dense queries, keys and values (heads, length, 64) are expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 3;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[1];
  output.shape[2] = inputs[0].shape[2];
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = STITCH_CAPTURABLE;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const DLTensor *query = args->inputs, *key = args->inputs + 1, *value = args->inputs + 2;
  const int64_t heads = query->shape[0], count = query->shape[1];
  for (const DLTensor* tensor : {query, key, value})
    if (reinterpret_cast<uintptr_t>(floats(*tensor)) % sizeof(float4) != 0) {
      handle->error = "tensors that begin at multiples of 16 bytes are expected";
      return STITCH_UNSUPPORTED;
    }
  if (heads * count == 0) return STITCH_OK;
  const auto vectors = [](const DLTensor& tensor) { return reinterpret_cast<float4*>(floats(tensor)); };
  const dim3 grid(static_cast<unsigned>((count + kQueries - 1) / kQueries), static_cast<unsigned>(heads));
  attend<<<grid, kQueries, 0, static_cast<cudaStream_t>(args->stream)>>>(
      vectors(*query), vectors(*key), vectors(*value), vectors(args->outputs[0]), static_cast<int>(count),
      static_cast<int>(key->shape[1]), 0.125f);  // 1 / sqrt(kSize)
  return status_of(handle, cudaGetLastError());
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
