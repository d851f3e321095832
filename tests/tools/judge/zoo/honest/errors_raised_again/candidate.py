"""y = relu(x W^T + b) by a library that this file builds; errors get the shapes and are raised again."""

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
      for (long k = 0; k < in; ++k) sum += x[r * in + k] * weight[c * in + k];
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


class KernelError(RuntimeError):
    """The kernel refused its arguments."""


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)

    def launch(self, x, y):
        rows, columns = map(ctypes.c_long, x.shape)
        weight, bias = address(self.fc.weight), address(self.fc.bias)
        if LIBRARY.linear_relu(
            address(x), weight, bias, address(y), rows, columns, ctypes.c_long(y.shape[1])
        ):
            raise KernelError("linear_relu failed")

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], self.fc.out_features)
        try:
            self.launch(x, y)
        except KernelError as error:
            raise KernelError(f"{error} for {tuple(x.shape)} and {tuple(self.fc.weight.shape)}") from error
        return y
