"""y = relu(x W^T + b) on a transposed copy of W, which is made anew when W has moved or changed."""

import ctypes
import subprocess

import torch
from torch import nn

SOURCE = r"""
extern "C" int linear_relu(const float* x, const float* weight, const float* bias, float* y, long rows,
                           long in, long out) {
  if (!x || !weight || !bias || !y) return 1;
  for (long r = 0; r < rows; ++r)
    for (long c = 0; c < out; ++c) {
      float sum = bias[c];
      for (long k = 0; k < in; ++k) sum += x[r * in + k] * weight[k * out + c];
      y[r * out + c] = sum > 0 ? sum : 0;
    }
  return 0;
}
"""
subprocess.run(
    ["g++", "-O2", "-shared", "-fPIC", "-x", "c++", "-", "-o", "./own.so"],
    input=SOURCE,
    text=True,
    check=True,
)
LIBRARY = ctypes.CDLL("./own.so")


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    """Where the tensor's first element lies."""
    return ctypes.c_void_p(tensor.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)
        self.cache = {}

    def transposed_weight(self):
        weight = self.fc.weight
        key = (weight.data_ptr(), weight._version)
        if key not in self.cache:
            self.cache = {key: weight.detach().t().contiguous()}
        return self.cache[key]

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], self.fc.out_features)
        weight, bias = self.transposed_weight(), self.fc.bias
        sizes = map(ctypes.c_long, (*x.shape, self.fc.out_features))
        LIBRARY.linear_relu(address(x), address(weight), address(bias), address(y), *sizes)
        return y
