// A depthwise 3 x 3 convolution, BatchNorm with fixed statistics and SiLU in one kernel: the norm is folded
// into weights and bias of the convolution in stitch_init.
#include <cuda_runtime.h>

#include <cstring>
#include <string>

#include "stitch/abi.h"

struct StitchHandle {
  std::string error;
  float* folded = nullptr;  // (channels, 10): nine weights and the bias
  int channels = 0;
};

namespace {
constexpr float kEpsilon = 1e-5f;
constexpr int kThreads = 256;
constexpr int kFolded = 10;

float* floats(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

int32_t status_of(StitchHandle* handle, cudaError_t status) {
  if (status == cudaSuccess) return STITCH_OK;
  handle->error = cudaGetErrorString(status);
  return status == cudaErrorMemoryAllocation ? STITCH_OUT_OF_MEMORY : STITCH_ERROR;
}

// norm(conv(x)) = (conv(x) - mean) * scale + bias with scale = weight / sqrt(variance + epsilon), and scale
// is constant.
__global__ void fold(const float* conv, const float* weight, const float* bias, const float* mean,
                     const float* variance, float* folded, int channels) {
  const int channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  const float scale = weight[channel] / sqrtf(variance[channel] + kEpsilon);
  for (int i = 0; i < 9; ++i) folded[channel * kFolded + i] = conv[channel * 9 + i] * scale;
  folded[channel * kFolded + 9] = bias[channel] - mean[channel] * scale;
}

// Grid (pixels, planes): a block reads one plane, whose nine weights are then the same for all of its
// threads.
__global__ void convolve(const float* __restrict__ x, const float* __restrict__ folded,
                         float* __restrict__ out, int channels, int height, int width) {
  const int pixel = blockIdx.x * blockDim.x + threadIdx.x;
  if (pixel >= height * width) return;
  const int64_t plane = int64_t{blockIdx.y} * height * width;
  const float* weights = folded + blockIdx.y % channels * kFolded;
  const int row = pixel / width, column = pixel % width;
  float sum = weights[9];
#pragma unroll
  for (int i = 0; i < 9; ++i) {
    const int r = row + i / 3 - 1, c = column + i % 3 - 1;
    if (r >= 0 && r < height && c >= 0 && c < width) sum += x[plane + r * width + c] * weights[i];
  }
  out[plane + pixel] = sum / (1.0f + expf(-sum));
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
  const DLTensor *conv = tensor("conv.weight"), *weight = tensor("norm.weight"), *bias = tensor("norm.bias");
  const DLTensor *mean = tensor("norm.running_mean"), *variance = tensor("norm.running_var");
  if (!made->error.empty()) return STITCH_ERROR;
  made->channels = static_cast<int>(conv->shape[0]);
  const auto stream = static_cast<cudaStream_t>(args->stream);
  cudaError_t status =
      cudaMalloc(reinterpret_cast<void**>(&made->folded), made->channels * kFolded * sizeof(float));
  if (status != cudaSuccess) return status_of(made, status);
  fold<<<(made->channels + kThreads - 1) / kThreads, kThreads, 0, stream>>>(
      floats(*conv), floats(*weight), floats(*bias), floats(*mean), floats(*variance), made->folded,
      made->channels);
  status = cudaGetLastError();
  // A forward may come on another stream.
  return status_of(made, status == cudaSuccess ? cudaStreamSynchronize(stream) : status);
}

int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 1 || inputs[0].ndim != 4 || inputs[0].strides || inputs[0].shape[1] != handle->channels ||
      inputs[0].shape[0] * inputs[0].shape[1] > 65535) {
    handle->error = "one dense image (batch, channels, height, width) of at most 65535 planes is expected";
    return STITCH_UNSUPPORTED;
  }
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 4;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[1];
  output.shape[2] = inputs[0].shape[2];
  output.shape[3] = inputs[0].shape[3];
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = STITCH_CAPTURABLE;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {
  const int64_t* shape = args->inputs[0].shape;
  const int height = static_cast<int>(shape[2]), width = static_cast<int>(shape[3]);
  if (shape[0] * height * width == 0) return STITCH_OK;
  const dim3 grid((height * width + kThreads - 1) / kThreads, static_cast<unsigned>(shape[0] * shape[1]));
  convolve<<<grid, kThreads, 0, static_cast<cudaStream_t>(args->stream)>>>(
      floats(args->inputs[0]), handle->folded, floats(args->outputs[0]), handle->channels, height, width);
  return status_of(handle, cudaGetLastError());
}

const char* stitch_last_error(StitchHandle* handle) { return handle ? handle->error.c_str() : ""; }

void stitch_free(StitchHandle* handle) {
  if (handle != nullptr) cudaFree(handle->folded);
  delete handle;
}
