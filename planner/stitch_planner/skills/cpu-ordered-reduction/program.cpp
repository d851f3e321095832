// (x - mean) / std over a whole tensor: chunks of fixed size are reduced apart and merged in their order, so
// that the result does not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
};

namespace {
constexpr int64_t kChunk = 8192;  // 32 KiB: the second look at a chunk finds it in the first-level cache

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int64_t size_of(const DLTensor& tensor) {
  int64_t size = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) size *= tensor.shape[i];
  return size;
}

struct Moments {
  double count, mean, squares;  // squares: of the distances from the mean
};

// Mean first, then the distances from it: a sum of squares less the square of a sum loses all digits where
// the mean is large beside the spread.
Moments of_chunk(const float* x, int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += x[i];
  const float mean = sum / static_cast<float>(count);
  float squares = 0.0f, rest = 0.0f;
#pragma omp simd reduction(+ : squares, rest)
  for (int64_t i = 0; i < count; ++i) {
    const float distance = x[i] - mean;
    squares += distance * distance;
    rest += distance;  // what rounding left over in the mean
  }
  const double n = static_cast<double>(count);
  return {n, mean + rest / n, squares - static_cast<double>(rest) * rest / n};
}

Moments merged(const Moments& a, const Moments& b) {
  const double count = a.count + b.count, distance = b.mean - a.mean;
  return {count, a.mean + distance * b.count / count,
          a.squares + b.squares + distance * distance * a.count * b.count / count};
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].strides || size_of(inputs[0]) == 0) {
    handle->error = "one dense tensor with elements is expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = inputs[0].ndim;
  output.dtype = inputs[0].dtype;
  std::copy(inputs[0].shape, inputs[0].shape + inputs[0].ndim, output.shape);
  plan->num_outputs = 1;
  const int64_t chunks = (size_of(inputs[0]) + kChunk - 1) / kChunk;
  plan->workspace_bytes = static_cast<uint64_t>(chunks) * sizeof(Moments);
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  const int64_t size = size_of(args->inputs[0]);
  const int64_t chunks = (size + kChunk - 1) / kChunk;
  const float* x = floats(args->inputs[0]);
  float* out = floats(args->outputs[0]);
  auto* moments = static_cast<Moments*>(args->workspace);
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < chunks; ++c)
    moments[c] = of_chunk(x + c * kChunk, std::min(kChunk, size - c * kChunk));
  Moments all = moments[0];
  for (int64_t c = 1; c < chunks; ++c) all = merged(all, moments[c]);
  const double deviation =
      std::sqrt(all.squares / (all.count - 1.0));  // of one element: 0 / 0, NaN as in torch
  const float mean = static_cast<float>(all.mean), scale = static_cast<float>(1.0 / deviation);
  // Static schedule again: a thread meets the chunks that its cache may still hold.
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < size; ++i) out[i] = (x[i] - mean) * scale;
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
