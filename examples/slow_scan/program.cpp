// Correct and slow on purpose: each habit below is a finding of `stitch-mcp profile`, and edits.cpu.toml
// holds the change for each. Nothing here is a pattern to follow.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
  const float* weight = nullptr;  // [width, width], one row per output channel
  const float* bias = nullptr;
  const float* decay = nullptr;
  int width = 0;
};

namespace {

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

// out[row, channel] = bias[channel] + sum of x[row, k] * weight[channel, k]: a chain of dependent additions
// on one thread.
__attribute__((noinline)) void project(const float* x, const float* weight, const float* bias, float* out,
                                       int rows, int width) {
  for (int row = 0; row < rows; ++row) {
    for (int channel = 0; channel < width; ++channel) {
      float sum = bias[channel];
      for (int k = 0; k < width; ++k) sum += x[row * width + k] * weight[channel * width + k];
      out[row * width + channel] = sum;
    }
  }
}

// All time steps of the recurrence, on one thread.
__attribute__((noinline)) void recur(const float* projected, const float* decay, float* state, int steps,
                                     int count, int width) {
  std::vector<float> before(count, 0.0f);
  for (int step = 0; step < steps; ++step) {
    for (int at = 0; at < count; ++at) {
      state[at] = std::tanh(projected[step * count + at] + decay[at % width] * before[at]);
    }
    before.assign(state, state + count);
  }
}

}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  auto* made = new StitchHandle;
  *handle = made;
  for (int64_t i = 0; i < args->num_params; ++i) {
    const StitchNamedTensor& row = args->params[i];
    if (std::strcmp(row.name, "project.weight") == 0) {
      made->weight = floats(row.tensor);
      made->width = static_cast<int>(row.tensor.shape[0]);
    }
    if (std::strcmp(row.name, "project.bias") == 0) made->bias = floats(row.tensor);
    if (std::strcmp(row.name, "decay") == 0) made->decay = floats(row.tensor);
  }
  if (made->weight && made->bias && made->decay) return STITCH_OK;
  made->error = "project.weight, project.bias and decay are needed";
  return STITCH_ERROR;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 3 || inputs[0].strides || inputs[0].shape[2] != handle->width) {
    handle->error = "one dense tensor [steps, batch, width] is expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[1];
  output.shape[1] = inputs[0].shape[2];
  plan->num_outputs = 1;
  plan->workspace_bytes = sizeof(float) * inputs[0].shape[0] * inputs[0].shape[1] * inputs[0].shape[2];
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const DLTensor& input = args->inputs[0];
  const int steps = static_cast<int>(input.shape[0]), width = handle->width;
  const int count = static_cast<int>(input.shape[1]) * width, rows = steps * count / width;
  auto* projected = static_cast<float*>(args->workspace);
  project(floats(input), handle->weight, handle->bias, projected, rows, width);
  recur(projected, handle->decay, floats(args->outputs[0]), steps, count, width);
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
