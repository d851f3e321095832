// An LSTM layer in one kernel: each block keeps the weights of eight hidden units in shared memory for the
// whole sequence, and the grid meets once a step.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstring>
#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
  const float *of_input = nullptr, *of_hidden = nullptr, *input_bias = nullptr, *hidden_bias = nullptr;
  int inputs = 0, hidden = 0;
};

namespace {
constexpr int kUnits = 8;  // of a block: with four gates each 32 columns, one a lane
constexpr int kWarps = 8;  // each takes every eighth sequence of the batch
constexpr int kMostBatch = 16;

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int32_t status_of(StitchHandle* handle, cudaError_t status) {
  if (status == cudaSuccess) return STITCH_OK;
  handle->error = cudaGetErrorString(status);
  return status == cudaErrorMemoryAllocation ? STITCH_OUT_OF_MEMORY : STITCH_ERROR;
}

struct Lstm {
  const float *x, *of_input, *of_hidden, *input_bias, *hidden_bias;
  float* out;  // (steps, batch, hidden): the states are read back from here
  int steps, batch, inputs, hidden;
};

__device__ float sigmoid(float value) { return 1.0f / (1.0f + expf(-value)); }

// Column `lane` of this block: gate lane / kUnits of unit lane % kUnits; PyTorch orders gates input, forget,
// cell, output.
__device__ int weight_row(const Lstm& layer, int lane) {
  return lane / kUnits * layer.hidden + blockIdx.x * kUnits + lane % kUnits;
}

__device__ void load_weights(const Lstm& layer, float* weights) {
  const int depth = layer.inputs + layer.hidden;
  for (int i = threadIdx.x; i < depth * 32; i += blockDim.x) {
    const int row = weight_row(layer, i % 32), k = i / 32;
    weights[i] = k < layer.inputs ? layer.of_input[row * layer.inputs + k]
                                  : layer.of_hidden[row * layer.hidden + k - layer.inputs];
  }
}

// values (batch, inputs + hidden): the step's input beside the last state, which is zero before the first
// step.
__device__ void load_values(const Lstm& layer, int step, float* values) {
  const int depth = layer.inputs + layer.hidden;
  for (int i = threadIdx.x; i < layer.batch * depth; i += blockDim.x) {
    const int row = i / depth, k = i % depth;
    const int64_t at = (int64_t{step} * layer.batch + row) * layer.inputs + k;
    const int64_t before = (int64_t{step - 1} * layer.batch + row) * layer.hidden + k - layer.inputs;
    // Other blocks wrote the state: __ldcg reads it from L2, where this multiprocessor's L1 may hold an old
    // line.
    values[i] = k < layer.inputs ? layer.x[at] : step == 0 ? 0.0f : __ldcg(layer.out + before);
  }
}

__global__ void __launch_bounds__(kWarps * 32) lstm(Lstm layer) {
  extern __shared__ float shared[];
  __shared__ float cells[kMostBatch][kUnits];
  const int depth = layer.inputs + layer.hidden;
  float *weights = shared, *values = shared + depth * 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row_of_weight = weight_row(layer, lane);
  const float bias = layer.input_bias[row_of_weight] + layer.hidden_bias[row_of_weight];
  load_weights(layer, weights);
  for (int i = threadIdx.x; i < kMostBatch * kUnits; i += blockDim.x) cells[i / kUnits][i % kUnits] = 0.0f;
  for (int step = 0; step < layer.steps; ++step) {
    load_values(layer, step, values);
    __syncthreads();
    for (int row = warp; row < layer.batch; row += kWarps) {
      const float* value = values + row * depth;
      float sums[4] = {bias, 0.0f, 0.0f, 0.0f};  // independent, or each addition waits for the one before
      for (int k = 0; k < depth; k += 4)
#pragma unroll
        for (int part = 0; part < 4; ++part) sums[part] += value[k + part] * weights[(k + part) * 32 + lane];
      const float gate = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      const int unit = lane % kUnits;
      const float input = __shfl_sync(0xffffffffu, gate, unit),
                  forget = __shfl_sync(0xffffffffu, gate, kUnits + unit);
      const float fresh = __shfl_sync(0xffffffffu, gate, 2 * kUnits + unit);
      const float output = __shfl_sync(0xffffffffu, gate, 3 * kUnits + unit);
      if (lane < kUnits) {
        const float cell = sigmoid(forget) * cells[row][unit] + sigmoid(input) * tanhf(fresh);
        cells[row][unit] = cell;
        layer.out[(int64_t{step} * layer.batch + row) * layer.hidden + blockIdx.x * kUnits + unit] =
            sigmoid(output) * tanhf(cell);
      }
    }
    cooperative_groups::this_grid().sync();  // all states of this step are written, and visible, behind it
  }
}

size_t shared_bytes(const StitchHandle& handle, int64_t batch) {
  return static_cast<size_t>(handle.inputs + handle.hidden) * (32 + batch) * sizeof(float);
}

// Whether the grid fits at once: blocks that wait for others which never start would hang.
bool fits(StitchHandle* handle, int64_t batch) {
  int device = 0, multiprocessors = 0, resident = 0, most = 0;
  const auto shared = shared_bytes(*handle, batch);
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (shared + sizeof(float) * kMostBatch * kUnits > static_cast<size_t>(most)) return false;
  cudaFuncSetAttribute(lstm, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, lstm, kWarps * 32, shared);
  return handle->hidden / kUnits <= multiprocessors * resident;
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {
  auto* made = *handle = new StitchHandle;
  const auto tensor = [&](const char* name) -> const DLTensor* {
    for (int64_t i = 0; i < args->num_params; ++i)
      if (std::strcmp(args->params[i].name, name) == 0) return &args->params[i].tensor;
    made->error = std::string("there is no parameter ") + name;
    return nullptr;
  };
  const DLTensor *of_input = tensor("lstm.weight_ih_l0"), *of_hidden = tensor("lstm.weight_hh_l0");
  const DLTensor *input_bias = tensor("lstm.bias_ih_l0"), *hidden_bias = tensor("lstm.bias_hh_l0");
  if (!made->error.empty()) return STITCH_ERROR;
  made->of_input = floats(*of_input);
  made->of_hidden = floats(*of_hidden);
  made->input_bias = floats(*input_bias);
  made->hidden_bias = floats(*hidden_bias);
  made->inputs = static_cast<int>(of_input->shape[1]);
  made->hidden = static_cast<int>(of_hidden->shape[1]);
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 3 || inputs[0].strides || inputs[0].shape[2] != handle->inputs ||
      inputs[0].shape[1] > kMostBatch || (handle->inputs + handle->hidden) % 4 != 0 ||
      handle->hidden % kUnits != 0) {
    handle->error = "a dense tensor (steps, at most 16 sequences, inputs) is expected";
    return STITCH_UNSUPPORTED;
  }
  if (!fits(handle, inputs[0].shape[1])) {
    handle->error = "the weights of the layer do not fit into the shared memory of this GPU";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 3;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[1];
  output.shape[2] = handle->hidden;
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const int64_t* shape = args->inputs[0].shape;
  if (shape[0] * shape[1] == 0) return STITCH_OK;
  Lstm layer = {floats(args->inputs[0]),
                handle->of_input,
                handle->of_hidden,
                handle->input_bias,
                handle->hidden_bias,
                floats(args->outputs[0]),
                static_cast<int>(shape[0]),
                static_cast<int>(shape[1]),
                handle->inputs,
                handle->hidden};
  void* arguments[] = {&layer};
  const size_t shared = shared_bytes(*handle, shape[1]);
  // Plans of other batches may have set another size.
  cudaFuncSetAttribute(lstm, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  return status_of(
      handle, cudaLaunchCooperativeKernel(lstm, dim3(handle->hidden / kUnits), dim3(kWarps * 32), arguments,
                                          shared, static_cast<cudaStream_t>(args->stream)));
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
