// GELU by a table: values and slopes of the normal distribution's integral at steps of 1/64 between -8 and 8,
// and a cubic through each pair of neighbours. Its error is below 1e-9, far below fp32's own.
#include <stitch/abi.h>

#include <cmath>
#include <vector>

struct StitchHandle {
  std::vector<float> values, slopes;
};

namespace {

float* data(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int64_t count_of(const DLTensor& tensor) {
  int64_t count = 1;
  for (int32_t d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
  return count;
}

constexpr float kReach = 8.0f, kSteps = 64.0f;

float integral(const StitchHandle& table, float x) {
  const float place = (x + kReach) * kSteps;
  const int64_t left = static_cast<int64_t>(place);
  const float t = place - static_cast<float>(left);
  const float here = table.values[left], there = table.values[left + 1];
  const float rise = table.slopes[left] / kSteps, next = table.slopes[left + 1] / kSteps;
  const float bend = 3.0f * (there - here) - 2.0f * rise - next, twist = 2.0f * (here - there) + rise + next;
  return here + t * (rise + t * (bend + t * twist));
}

void gelu(const StitchHandle& table, const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] >= kReach) {
      y[i] = x[i];
    } else if (x[i] > -kReach) {
      y[i] = x[i] * integral(table, x[i]);
    } else {
      y[i] = x[i] != x[i] ? x[i] : -0.0f;
    }
  }
}

}  // namespace

extern "C" {

STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

STITCH_EXPORT int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  StitchHandle* self = *handle = new StitchHandle;
  const int64_t last = static_cast<int64_t>(2 * kReach * kSteps);
  for (int64_t i = 0; i <= last; ++i) {
    const double x = static_cast<double>(i) / kSteps - kReach;
    self->values.push_back(static_cast<float>(0.5 * std::erfc(-x * 0.70710678118654752)));
    self->slopes.push_back(static_cast<float>(0.39894228040143268 * std::exp(-0.5 * x * x)));
  }
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan) {
  if (inputs[0].strides != nullptr || num_inputs != 1) return STITCH_UNSUPPORTED;
  plan->num_outputs = 1;
  plan->outputs[0].ndim = inputs[0].ndim;
  plan->outputs[0].dtype = inputs[0].dtype;
  for (int32_t d = 0; d < inputs[0].ndim; ++d) plan->outputs[0].shape[d] = inputs[0].shape[d];
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

STITCH_EXPORT int32_t stitch_forward(StitchHandle* self, const StitchForwardArgs* args) {
  gelu(*self, data(args->inputs[0]), data(args->outputs[0]), count_of(args->inputs[0]));
  return STITCH_OK;
}

STITCH_EXPORT const char* stitch_last_error(StitchHandle*) { return ""; }

STITCH_EXPORT void stitch_free(StitchHandle* handle) { delete handle; }
}
