// examples/mlp.py as a program written by hand: rows in blocks of four, no activation ever leaves the cache.

#include <cmath>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "stitch/abi.h"

namespace {
constexpr int kFeatures = 32;
constexpr int kHidden = 64;
constexpr int kClasses = 8;
constexpr int kRows = 4;  // their accumulators fill the vector registers

struct Linear {
  std::vector<float> weight;  // transposed: (inputs, outputs)
  std::vector<float> bias;
};

struct Norm {
  std::vector<float> weight, bias;
};

std::vector<float> floats(const DLTensor& tensor) {
  const auto* first =
      reinterpret_cast<const float*>(static_cast<const char*>(tensor.data) + tensor.byte_offset);
  int64_t size = 1;
  for (int i = 0; i < tensor.ndim; ++i) size *= tensor.shape[i];
  return {first, first + size};
}

std::vector<float> transposed(const std::vector<float>& matrix, int outputs) {
  const int inputs = static_cast<int>(matrix.size()) / outputs;
  std::vector<float> turned(matrix.size());
  for (int j = 0; j < outputs; ++j)
    for (int k = 0; k < inputs; ++k) turned[k * outputs + j] = matrix[j * inputs + k];
  return turned;
}

template <int kIn, int kOut>
void apply(const Linear& layer, const float (*x)[kIn], float (*y)[kOut]) {
  constexpr int kColumns = kOut < 16 ? kOut : 16;
  for (int first = 0; first < kOut; first += kColumns) {
    float sums[kRows][kColumns];
    for (int r = 0; r < kRows; ++r) std::memcpy(sums[r], layer.bias.data() + first, sizeof(sums[r]));
    for (int k = 0; k < kIn; ++k) {
      const float* weight = layer.weight.data() + k * kOut + first;
      for (int r = 0; r < kRows; ++r) {
        const float value = x[r][k];
#pragma omp simd
        for (int j = 0; j < kColumns; ++j) sums[r][j] += value * weight[j];
      }
    }
    for (int r = 0; r < kRows; ++r) std::memcpy(y[r] + first, sums[r], sizeof(sums[r]));
  }
}

// e^x for x <= 0 within two units in the last place: 2^n by the exponent's bits, the rest by a polynomial.
inline float exp_of_negative(float x) {
  const float scaled = (x < -87.0f ? -87.0f : x) * 1.44269504f;
  const int32_t whole = static_cast<int32_t>(scaled - 0.5f);  // to the nearest, as scaled <= 0
  const float rest = (scaled - static_cast<float>(whole)) * 0.693147181f;
  float sum = 1.0f / 720.0f;
  sum = sum * rest + 1.0f / 120.0f;
  sum = sum * rest + 1.0f / 24.0f;
  sum = sum * rest + 1.0f / 6.0f;
  sum = sum * rest + 0.5f;
  sum = sum * rest + 1.0f;
  sum = sum * rest + 1.0f;
  const int32_t bits = (whole + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return sum * power;
}

// x * Phi(x), with erf by Abramowitz and Stegun 7.1.26, at most 1.5e-7 off.
inline float gelu(float x) {
  const float z = std::fabs(x) * 0.707106781f;
  const float t = 1.0f / (1.0f + 0.3275911f * z);
  float sum = 1.061405429f;
  sum = sum * t - 1.453152027f;
  sum = sum * t + 1.421413741f;
  sum = sum * t - 0.284496736f;
  sum = sum * t + 0.254829592f;
  const float tail = sum * t * exp_of_negative(-z * z);
  return 0.5f * x * (x < 0.0f ? tail : 2.0f - tail);
}

void normalise_and_activate(const Norm& norm, float (*y)[kHidden]) {
  for (int r = 0; r < kRows; ++r) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < kHidden; ++j) sum += y[r][j];
    const float mean = sum / kHidden;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int j = 0; j < kHidden; ++j) squares += (y[r][j] - mean) * (y[r][j] - mean);
    const float variance = squares / kHidden;
    const float factor = 1.0f / std::sqrt(variance + 1e-5f);
#pragma omp simd
    for (int j = 0; j < kHidden; ++j)
      y[r][j] = gelu((y[r][j] - mean) * factor * norm.weight[j] + norm.bias[j]);
  }
}
}  // namespace

struct StitchHandle {
  Linear up, mix, logits;
  Norm up_norm, mix_norm;
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
  made.up = {transposed(find("up.weight"), kHidden), find("up.bias")};
  made.mix = {transposed(find("mix.weight"), kHidden), find("mix.bias")};
  made.logits = {transposed(find("logits.weight"), kClasses), find("logits.bias")};
  made.up_norm = {find("up_norm.weight"), find("up_norm.bias")};
  made.mix_norm = {find("mix_norm.weight"), find("mix_norm.bias")};
  return made.error.empty() ? STITCH_OK : STITCH_ERROR;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 2 || inputs[0].shape[1] != kFeatures || inputs[0].shape[0] % kRows ||
      inputs[0].strides) {
    handle->error = "one dense matrix of 32 columns and a multiple of four rows, please";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = kClasses;
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const DLTensor& input = args->inputs[0];
  const auto* x =
      reinterpret_cast<const float (*)[kFeatures]>(static_cast<const char*>(input.data) + input.byte_offset);
  auto* out = reinterpret_cast<float (*)[kClasses]>(static_cast<char*>(args->outputs[0].data) +
                                                    args->outputs[0].byte_offset);
#pragma omp parallel for
  for (int64_t row = 0; row < input.shape[0]; row += kRows) {
    float first[kRows][kHidden], second[kRows][kHidden];
    apply<kFeatures, kHidden>(handle->up, x + row, first);
    normalise_and_activate(handle->up_norm, first);
    apply<kHidden, kHidden>(handle->mix, first, second);
    normalise_and_activate(handle->mix_norm, second);
    apply<kHidden, kClasses>(handle->logits, second, out + row);
  }
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
