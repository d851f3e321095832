// down(relu(up(x))) with weights packed in stitch_init: a block of rows goes through both layers in the
// cache.
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
constexpr int kRows = 8;            // 8 rows x 2 vectors of sums fill half of the 32 registers of AVX-512

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

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

// y = layer(x) for kRows rows, which lie `x_step` and `y_step` apart; y has room for whole panels.
template <bool kRelu>
void apply(const Linear& layer, const float* x, int64_t x_step, float* y, int64_t y_step) {
  const int64_t panels = static_cast<int64_t>(layer.bias.size()) / kLanes;
  for (int64_t p = 0; p < panels; ++p) {
    const float* weight = layer.panels.data() + p * layer.inputs * kLanes;
    const float* bias = layer.bias.data() + p * kLanes;
    Vector sums[kRows][2];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v) sums[r][v] = load(bias + v * kWidth);
    for (int64_t k = 0; k < layer.inputs; ++k) {
      const Vector first = load(weight + k * kLanes), second = load(weight + k * kLanes + kWidth);
      for (int r = 0; r < kRows; ++r) {
        sums[r][0] += x[r * x_step + k] * first;
        sums[r][1] += x[r * x_step + k] * second;
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v) {
        // Not max(sum, 0): a NaN has to stay one.
        if (kRelu) sums[r][v] = sums[r][v] < 0.0f ? Vector{} : sums[r][v];
        std::memcpy(y + r * y_step + p * kLanes + v * kWidth, &sums[r][v], sizeof(Vector));
      }
  }
}
}  // namespace

struct StitchHandle {
  std::string error;
  Linear up, down;
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
  const DLTensor *up = tensor("up.weight"), *up_bias = tensor("up.bias");
  const DLTensor *down = tensor("down.weight"), *down_bias = tensor("down.bias");
  if (!made->error.empty()) return STITCH_ERROR;
  made->up = pack(*up, *up_bias);
  made->down = pack(*down, *down_bias);
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 2 || inputs[0].strides || inputs[0].shape[1] != handle->up.inputs) {
    handle->error = "a dense matrix of the layer's width is expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = handle->down.outputs;
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const Linear &up = handle->up, &down = handle->down;
  const int64_t rows = args->inputs[0].shape[0];
  const int64_t hidden_step = static_cast<int64_t>(up.bias.size());
  const int64_t out_step = static_cast<int64_t>(down.bias.size());
  const float* x = floats(args->inputs[0]);
  float* out = floats(args->outputs[0]);
#pragma omp parallel
  {
    std::vector<float> hidden(kRows * hidden_step), result(kRows * out_step), rest(kRows * up.inputs);
#pragma omp for
    for (int64_t first = 0; first < rows; first += kRows) {
      const int64_t count = std::min<int64_t>(kRows, rows - first);
      const float* block = x + first * up.inputs;
      if (count < kRows) {  // the last rows, padded with what the copy held before
        std::copy(block, block + count * up.inputs, rest.begin());
        block = rest.data();
      }
      apply<true>(up, block, up.inputs, hidden.data(), hidden_step);
      apply<false>(down, hidden.data(), hidden_step, result.data(), out_step);
      for (int64_t r = 0; r < count; ++r)
        std::memcpy(out + (first + r) * down.outputs, result.data() + r * out_step,
                    down.outputs * sizeof(float));
    }
  }
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
