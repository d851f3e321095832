"""The same as a ModelNew that builds its own kernel; `BEYOND 1` makes it write one element too many."""

from typing import Any

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
#define BEYOND 0

__global__ void twice(const float* x, float* y, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i] + x[i];
  if (BEYOND && i == count) y[i] = 0.0f;
}

torch::Tensor run(torch::Tensor x) {
  auto y = torch::empty_like(x);
  twice<<<(x.numel() + 128) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""
module: Any = load_inline("twice", "torch::Tensor run(torch::Tensor x);", SOURCE, functions=["run"])


class ModelNew(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.run(x)
