// LayerNorm over channels of a channels-first image that leaves channels-last: the permutation is no pass of
// its own, it is the order in which the normalised tile is written.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
  const float* weight = nullptr;
  const float* bias = nullptr;
  int64_t channels = 0;
};

namespace {
constexpr float kEpsilon = 1e-5f;
constexpr int kPixels = 32;  // two full cache lines of each channel are read

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

// `x`: the first pixel of the tile in channel 0, whose channels lie `plane` apart; `tile` (channels, kPixels)
// is scratch.
void normalise(const StitchHandle& layer, const float* x, int64_t plane, int64_t count, float* tile,
               float* out) {
  const int64_t channels = layer.channels;
  float mean[kPixels] = {}, squares[kPixels] = {};
  for (int64_t c = 0; c < channels; ++c) {
    float* row = tile + c * kPixels;
    std::memcpy(row, x + c * plane, count * sizeof(float));
#pragma omp simd
    for (int p = 0; p < kPixels; ++p) mean[p] += row[p];
  }
  for (float& value : mean) value /= static_cast<float>(channels);
  for (int64_t c = 0; c < channels; ++c)
#pragma omp simd
    for (int p = 0; p < kPixels; ++p) {
      const float distance = tile[c * kPixels + p] - mean[p];
      squares[p] += distance * distance;
    }
  for (int64_t p = 0; p < count; ++p) {
    const float scale = 1.0f / std::sqrt(squares[p] / static_cast<float>(channels) + kEpsilon);
    float* to = out + p * channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c)
      to[c] = (tile[c * kPixels + p] - mean[p]) * scale * layer.weight[c] + layer.bias[c];
  }
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  auto* made = *handle = new StitchHandle;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const std::string name = args->params[i].name;
    const DLTensor& tensor = args->params[i].tensor;
    if (name == "norm.weight") made->weight = floats(tensor);
    if (name == "norm.bias") made->bias = floats(tensor);
    made->channels = tensor.shape[0];
  }
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 4 || inputs[0].strides || inputs[0].shape[1] != handle->channels) {
    handle->error = "one dense image (batch, channels, height, width) is expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 4;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[2];
  output.shape[2] = inputs[0].shape[3];
  output.shape[3] = inputs[0].shape[1];
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const int64_t* shape = args->inputs[0].shape;
  const int64_t batch = shape[0], channels = shape[1], plane = shape[2] * shape[3];
  const int64_t tiles = (plane + kPixels - 1) / kPixels;
  const float* x = floats(args->inputs[0]);
  float* out = floats(args->outputs[0]);
#pragma omp parallel
  {
    std::vector<float> tile(channels * kPixels);
#pragma omp for
    for (int64_t i = 0; i < batch * tiles; ++i) {
      const int64_t image = i / tiles, pixel = i % tiles * kPixels;
      const int64_t count = std::min<int64_t>(kPixels, plane - pixel);
      normalise(*handle, x + image * channels * plane + pixel, plane, count, tile.data(),
                out + (image * plane + pixel) * channels);
    }
  }
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
