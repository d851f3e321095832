// A GRU layer: each thread takes some sequences through all time steps, with weights packed once in
// stitch_init. Threads never wait for each other, and a thread's states stay in its cache.
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
constexpr int kLanes = 2 * kWidth;  // columns of a panel
constexpr int kRows = 8;            // sequences that a thread advances together

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

inline float sigmoid(float x) { return 1.0f / (1.0f + exp_inline(-x)); }

inline float tanh_inline(float x) { return 1.0f - 2.0f / (1.0f + exp_inline(2.0f * x)); }

// The weights of a linear layer, packed once: panels of kLanes output columns, each panel with its columns
// beside each other for every input, so that the inner loop of a product reads it from front to back.
struct Linear {
  int64_t inputs = 0, outputs = 0;
  std::vector<float> panels, bias;  // padded with zeros to whole panels
};

Linear pack(const DLTensor& weight, const DLTensor& bias) {
  Linear layer;
  layer.outputs = weight.shape[0];
  layer.inputs = weight.shape[1];
  const int64_t count = (layer.outputs + kLanes - 1) / kLanes;
  layer.panels.assign(count * layer.inputs * kLanes, 0.0f);
  layer.bias.assign(count * kLanes, 0.0f);
  for (int64_t column = 0; column < layer.outputs; ++column) {
    float* panel = layer.panels.data() + column / kLanes * layer.inputs * kLanes + column % kLanes;
    for (int64_t k = 0; k < layer.inputs; ++k) panel[k * kLanes] = floats(weight)[column * layer.inputs + k];
    layer.bias[column] = floats(bias)[column];
  }
  return layer;
}

// gates = layer(x) for `count` rows of at most kRows; the sums of missing rows are not written.
void apply(const Linear& layer, const float* x, int64_t count, float* gates, int64_t step) {
  const int64_t panels = static_cast<int64_t>(layer.bias.size()) / kLanes;
  int64_t from[kRows];
  for (int64_t r = 0; r < kRows; ++r) from[r] = std::min(r, count - 1) * layer.inputs;
  for (int64_t p = 0; p < panels; ++p) {
    const float* weight = layer.panels.data() + p * layer.inputs * kLanes;
    const float* bias = layer.bias.data() + p * kLanes;
    Vector sums[kRows][2];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v) sums[r][v] = load(bias + v * kWidth);
    for (int64_t k = 0; k < layer.inputs; ++k) {
      const Vector first = load(weight + k * kLanes), second = load(weight + k * kLanes + kWidth);
      for (int r = 0; r < kRows; ++r) {
        sums[r][0] += x[from[r] + k] * first;
        sums[r][1] += x[from[r] + k] * second;
      }
    }
    for (int64_t r = 0; r < count; ++r) std::memcpy(gates + r * step + p * kLanes, sums[r], sizeof(sums[r]));
  }
}

// PyTorch's order of gates: reset, update, new. The new gate multiplies the hidden part alone by the reset
// gate.
void step_row(const float* of_input, const float* of_hidden, float* hidden, int64_t size) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) {
    const float reset = sigmoid(of_input[j] + of_hidden[j]);
    const float update = sigmoid(of_input[size + j] + of_hidden[size + j]);
    const float fresh = tanh_inline(of_input[2 * size + j] + reset * of_hidden[2 * size + j]);
    hidden[j] = fresh + update * (hidden[j] - fresh);
  }
}
}  // namespace

struct StitchHandle {
  std::string error;
  Linear input, hidden;
};

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  auto* made = *handle = new StitchHandle;
  const auto tensor = [&](const char* name) -> const DLTensor* {
    for (int64_t i = 0; i < args->num_params; ++i)
      if (std::strcmp(args->params[i].name, name) == 0) return &args->params[i].tensor;
    made->error = std::string("there is no parameter ") + name;
    return nullptr;
  };
  const DLTensor *input = tensor("gru.weight_ih_l0"), *input_bias = tensor("gru.bias_ih_l0");
  const DLTensor *hidden = tensor("gru.weight_hh_l0"), *hidden_bias = tensor("gru.bias_hh_l0");
  if (!made->error.empty()) return STITCH_ERROR;
  made->input = pack(*input, *input_bias);
  made->hidden = pack(*hidden, *hidden_bias);
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 3 || inputs[0].strides || inputs[0].shape[2] != handle->input.inputs) {
    handle->error = "one dense tensor (steps, batch, inputs) is expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 3;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[1];
  output.shape[2] = handle->hidden.inputs;
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const Linear &input = handle->input, &hidden = handle->hidden;
  const int64_t steps = args->inputs[0].shape[0], batch = args->inputs[0].shape[1];
  const int64_t size = hidden.inputs, gates = static_cast<int64_t>(hidden.bias.size());
  const float* x = floats(args->inputs[0]);
  float* out = floats(args->outputs[0]);
#pragma omp parallel for
  for (int64_t first = 0; first < batch; first += kRows) {
    const int64_t count = std::min<int64_t>(kRows, batch - first);
    std::vector<float> state(kRows * size, 0.0f), of_input(kRows * gates), of_hidden(kRows * gates);
    for (int64_t t = 0; t < steps; ++t) {
      apply(input, x + (t * batch + first) * input.inputs, count, of_input.data(), gates);
      apply(hidden, state.data(), count, of_hidden.data(), gates);
      for (int64_t r = 0; r < count; ++r)
        step_row(of_input.data() + r * gates, of_hidden.data() + r * gates, state.data() + r * size, size);
      std::memcpy(out + (t * batch + first) * size, state.data(), count * size * sizeof(float));
    }
  }
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
