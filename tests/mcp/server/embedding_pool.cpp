// examples/embedding_pool.py as a program written by hand: rows of the table are normalised once, by init.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "stitch/abi.h"

namespace {
constexpr int kWidth = 128;
constexpr int kClasses = 10;

template <typename T>
T* data(const DLTensor& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

std::vector<float> floats(const DLTensor& tensor) {
  int64_t size = 1;
  for (int i = 0; i < tensor.ndim; ++i) size *= tensor.shape[i];
  return {data<const float>(tensor), data<const float>(tensor) + size};
}

void normalise(float* row, const std::vector<float>& weight, const std::vector<float>& bias) {
  float sum = 0.0f;
  for (int j = 0; j < kWidth; ++j) sum += row[j];
  const float mean = sum / kWidth;
  float squares = 0.0f;
  for (int j = 0; j < kWidth; ++j) squares += (row[j] - mean) * (row[j] - mean);
  const float factor = 1.0f / std::sqrt(squares / kWidth + 1e-5f);
  for (int j = 0; j < kWidth; ++j) row[j] = (row[j] - mean) * factor * weight[j] + bias[j];
}

float dot(const float* x, const float* y) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int k = 0; k < kWidth; ++k) sum += x[k] * y[k];
  return sum;
}
}  // namespace

struct StitchHandle {
  std::vector<float> table, hidden, hidden_bias, classes, classes_bias;
  std::string error;
};

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  *handle = new StitchHandle;
  StitchHandle& made = **handle;
  const auto find = [&](const std::string& name) {
    for (int64_t i = 0; i < args->num_params; ++i)
      if (name == args->params[i].name) return floats(args->params[i].tensor);
    made.error = "there is no parameter " + name;
    return std::vector<float>();
  };
  made.table = find("embed.weight");
  made.hidden = find("hidden.weight");
  made.hidden_bias = find("hidden.bias");
  made.classes = find("classes.weight");
  made.classes_bias = find("classes.bias");
  const std::vector<float> weight = find("norm.weight"), bias = find("norm.bias");
  if (!made.error.empty()) return STITCH_ERROR;
  for (size_t row = 0; row < made.table.size(); row += kWidth) normalise(&made.table[row], weight, bias);
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 2 || inputs[0].strides) {
    handle->error = "one dense matrix of tokens, please";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = {2, 32, 1};  // float32, as DLPack numbers it
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = kClasses;
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const int64_t length = args->inputs[0].shape[1];
  const auto* tokens = data<const int64_t>(args->inputs[0]);
  auto* out = data<float>(args->outputs[0]);
#pragma omp parallel for
  for (int64_t row = 0; row < args->inputs[0].shape[0]; ++row) {
    float pooled[kWidth] = {}, active[kWidth];
    int real = 0;
    for (int64_t i = 0; i < length; ++i) {
      const int64_t token = tokens[row * length + i];
      if (token == 0) continue;  // padding
      ++real;
      const float* vector = &handle->table[token * kWidth];
#pragma omp simd
      for (int j = 0; j < kWidth; ++j) pooled[j] += vector[j];
    }
    const float share = 1.0f / static_cast<float>(real > 0 ? real : 1);
    for (int j = 0; j < kWidth; ++j) pooled[j] *= share;
    for (int j = 0; j < kWidth; ++j)
      active[j] = std::tanh(dot(&handle->hidden[j * kWidth], pooled) + handle->hidden_bias[j]);
    for (int j = 0; j < kClasses; ++j)
      out[row * kClasses + j] = dot(&handle->classes[j * kWidth], active) + handle->classes_bias[j];
  }
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
