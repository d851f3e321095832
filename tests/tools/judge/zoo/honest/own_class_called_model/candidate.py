"""Two linear layers with a GELU between them. `Model` here is a base of ours that holds the parameters."""

import ctypes
import subprocess

import torch
from torch import nn

SOURCE = r"""
#include <cmath>
extern "C" void linear(const float* x, const float* weight, const float* bias, float* y, long rows, long in,
                       long out, int activate) {
  for (long r = 0; r < rows; ++r)
    for (long c = 0; c < out; ++c) {
      float sum = bias[c];
      for (long k = 0; k < in; ++k) sum += x[r * in + k] * weight[c * in + k];
      y[r * out + c] = activate ? 0.5f * sum * (1.0f + std::erf(sum * 0.70710678f)) : sum;
    }
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


class Model(nn.Module):
    """Parameters by the reference's names, made in its order; has no forward."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.up = nn.Linear(inputs, hidden)
        self.down = nn.Linear(hidden, outputs)


class ModelNew(Model):
    def forward(self, x):
        hidden = self.apply_layer(self.up, x.contiguous(), 1)
        return self.apply_layer(self.down, hidden, 0)

    def apply_layer(self, layer, x, activate):
        y = torch.empty(x.shape[0], layer.out_features)
        rows, columns, outputs = map(ctypes.c_long, (*x.shape, layer.out_features))
        weight, bias = address(layer.weight), address(layer.bias)
        LIBRARY.linear(address(x), weight, bias, address(y), rows, columns, outputs, activate)
        return y
