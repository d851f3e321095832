// cumsum(x * weight) over time: chunks of the time are summed apart, their sums are scanned, and each chunk
// is then scanned from where the one before ends. Channels are the vector lanes.
#include <algorithm>
#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
};

namespace {
constexpr int64_t kSteps = 256;  // of a chunk

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

struct Sizes {
  int64_t batch, steps, channels, chunks;
};

Sizes sizes_of(const DLTensor& x) {
  return {x.shape[0], x.shape[1], x.shape[2], (x.shape[1] + kSteps - 1) / kSteps};
}

void sum_chunk(const float* x, const float* weight, int64_t steps, int64_t channels, float* sums) {
  std::fill(sums, sums + channels, 0.0f);
  for (int64_t t = 0; t < steps; ++t)
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) sums[c] += x[t * channels + c] * weight[c];
}

// `before`: the sum up to this chunk; null for the first.
void scan_chunk(const float* x, const float* weight, const float* before, int64_t steps, int64_t channels,
                float* out) {
  for (int64_t t = 0; t < steps; ++t) {
    float* row = out + t * channels;
    const float* last = t == 0 ? before : row - channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) row[c] = (last ? last[c] : 0.0f) + x[t * channels + c] * weight[c];
  }
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 2 || inputs[0].ndim != 3 || inputs[1].ndim != 1 || inputs[0].strides || inputs[1].strides ||
      inputs[1].shape[0] != inputs[0].shape[2]) {
    handle->error = "a dense tensor (batch, steps, channels) and a weight for each channel are expected";
    return STITCH_UNSUPPORTED;
  }
  const Sizes sizes = sizes_of(inputs[0]);
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 3;
  output.dtype = inputs[0].dtype;
  std::copy(inputs[0].shape, inputs[0].shape + 3, output.shape);
  plan->num_outputs = 1;
  plan->workspace_bytes = static_cast<uint64_t>(sizes.batch * sizes.chunks * sizes.channels) * sizeof(float);
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  const Sizes sizes = sizes_of(args->inputs[0]);
  const int64_t channels = sizes.channels;
  const float* x = floats(args->inputs[0]);
  const float* weight = floats(args->inputs[1]);
  float* out = floats(args->outputs[0]);
  auto* sums = static_cast<float*>(args->workspace);
  const auto offset = [&](int64_t i) {  // of chunk i of all sequences
    return (i / sizes.chunks * sizes.steps + i % sizes.chunks * kSteps) * channels;
  };
  const auto steps = [&](int64_t i) { return std::min(kSteps, sizes.steps - i % sizes.chunks * kSteps); };
  const int64_t all = sizes.batch * sizes.chunks;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < all; ++i)
      sum_chunk(x + offset(i), weight, steps(i), channels, sums + i * channels);
#pragma omp single
    for (int64_t i = 1; i < all; ++i)
      if (i % sizes.chunks)
        for (int64_t c = 0; c < channels; ++c) sums[i * channels + c] += sums[(i - 1) * channels + c];
#pragma omp for schedule(static)
    for (int64_t i = 0; i < all; ++i) {
      const float* before = i % sizes.chunks ? sums + (i - 1) * channels : nullptr;
      scan_chunk(x + offset(i), weight, before, steps(i), channels, out + offset(i));
    }
  }
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
