// query(x) * sigmoid(key(x)) + value(x): the columns of the three layers are packed side by side, so that one
// loop over x feeds all three, and the gate joins them in registers.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "stitch/abi.h"

namespace {
using Vector = float __attribute__((vector_size(64)));  // 16 floats: one AVX-512 register, or two of AVX2
constexpr int kWidth = 16;

inline Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
constexpr int kLayers = 3;
constexpr int kRows = 6;  // 6 rows x 3 vectors of sums, 3 of weights: 21 of the 32 registers of AVX-512

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// e^x without a call or a branch, so that the loop around it becomes vectors: x = n ln 2 + r, and a
// polynomial in r. 2^n is multiplied in two halves, which lets large x overflow to infinity as expf does. A
// NaN stays one.
inline float exp_inline(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693147182f) + n * 1.90465421e-9f;  // ln 2 in two parts
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t whole = static_cast<int32_t>(to_bits(shifted) - to_bits(kRound));
  const int32_t half = whole >> 1;
  const float low = from_bits(static_cast<uint32_t>(half + 127) << 23);
  const float high = from_bits(static_cast<uint32_t>(whole - half + 127) << 23);
  return p * low * high;
}
}  // namespace

struct StitchHandle {
  std::string error;
  int64_t inputs = 0, outputs = 0;
  // For each 16 columns of the outputs: (input, layer, column) and (layer, column), padded with zeros.
  std::vector<float> panels, bias;
};

namespace {
// Rows that are missing repeat the last one, and are not written.
void block(const StitchHandle& layers, const float* x, int64_t count, float* out) {
  const int64_t inputs = layers.inputs;
  int64_t from[kRows];
  for (int64_t r = 0; r < kRows; ++r) from[r] = std::min(r, count - 1) * inputs;
  for (int64_t first = 0; first < layers.outputs; first += kWidth) {
    const float* weight = layers.panels.data() + first * kLayers * inputs;
    const float* bias = layers.bias.data() + first * kLayers;
    Vector sums[kRows][kLayers];
    for (int r = 0; r < kRows; ++r)
      for (int l = 0; l < kLayers; ++l) sums[r][l] = load(bias + l * kWidth);
    for (int64_t k = 0; k < inputs; ++k, weight += kLayers * kWidth) {
      const Vector query = load(weight), key = load(weight + kWidth), value = load(weight + 2 * kWidth);
      for (int r = 0; r < kRows; ++r) {
        const float factor = x[from[r] + k];
        sums[r][0] += factor * query;
        sums[r][1] += factor * key;
        sums[r][2] += factor * value;
      }
    }
    const int64_t columns = std::min<int64_t>(kWidth, layers.outputs - first);
    for (int64_t r = 0; r < count; ++r) {
      float joined[kWidth];
#pragma omp simd
      for (int j = 0; j < kWidth; ++j)
        joined[j] = sums[r][0][j] / (1.0f + exp_inline(-sums[r][1][j])) + sums[r][2][j];
      std::memcpy(out + r * layers.outputs + first, joined, columns * sizeof(float));
    }
  }
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  auto* made = *handle = new StitchHandle;
  const char* names[kLayers] = {"query", "key", "value"};
  for (int64_t i = 0; i < args->num_params; ++i) {
    const DLTensor& tensor = args->params[i].tensor;
    if (std::string(args->params[i].name) == "query.weight") {
      made->outputs = tensor.shape[0];
      made->inputs = tensor.shape[1];
    }
  }
  const int64_t columns = (made->outputs + kWidth - 1) / kWidth * kWidth;
  made->panels.assign(columns * kLayers * made->inputs, 0.0f);
  made->bias.assign(columns * kLayers, 0.0f);
  for (int64_t i = 0; i < args->num_params; ++i) {
    const std::string name = args->params[i].name;
    const float* from = floats(args->params[i].tensor);
    for (int l = 0; l < kLayers; ++l)
      for (int64_t column = 0; column < made->outputs; ++column) {
        const int64_t lane = l * kWidth + column % kWidth, first = column / kWidth * kWidth * kLayers;
        if (name == std::string(names[l]) + ".bias") made->bias[first + lane] = from[column];
        if (name != std::string(names[l]) + ".weight") continue;
        for (int64_t k = 0; k < made->inputs; ++k)
          made->panels[first * made->inputs + k * kLayers * kWidth + lane] = from[column * made->inputs + k];
      }
  }
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 2 || inputs[0].strides || inputs[0].shape[1] != handle->inputs) {
    handle->error = "a dense matrix of the layers' width is expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = handle->outputs;
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const int64_t rows = args->inputs[0].shape[0];
  const float* x = floats(args->inputs[0]);
  float* out = floats(args->outputs[0]);
#pragma omp parallel for
  for (int64_t first = 0; first < rows; first += kRows)
    block(*handle, x + first * handle->inputs, std::min<int64_t>(kRows, rows - first),
          out + first * handle->outputs);
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
