"""y = 2 relu(x) by an inline extension."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

__global__ void twice_relu_kernel(const float* x, float* y, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < count) y[i] = x[i] < 0.0f ? 0.0f : 2.0f * x[i];
}

torch::Tensor twice_relu(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int64_t count = x.numel();
  twice_relu_kernel<<<(count + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), count);
  return y;
}
"""
own = None
if torch.cuda.is_available():
    own = load_inline("own_twice_relu", "torch::Tensor twice_relu(torch::Tensor x);", CUDA, functions=["twice_relu"])


class ModelNew(nn.Module):
    def forward(self, x):
        return own.twice_relu(x.contiguous())
