"""Layer norm whose kernel is chosen by the input's type, with getattr on the library."""

import ctypes
import subprocess

import torch
from torch import nn

SOURCE = r"""
#include <cmath>
template <class T>
static void norm(const T* x, const T* weight, const T* bias, T* y, long rows, long width) {
  for (long r = 0; r < rows; ++r) {
    double sum = 0, squares = 0;
    for (long i = 0; i < width; ++i) sum += x[r * width + i];
    const double mean = sum / width;
    for (long i = 0; i < width; ++i) squares += (x[r * width + i] - mean) * (x[r * width + i] - mean);
    const double scale = 1 / std::sqrt(squares / width + 1e-5);
    for (long i = 0; i < width; ++i)
      y[r * width + i] = T((x[r * width + i] - mean) * scale * weight[i] + bias[i]);
  }
}
extern "C" void norm_float32(const float* x, const float* w, const float* b, float* y,
                             long rows, long width) {
  norm(x, w, b, y, rows, width);
}
extern "C" void norm_float64(const double* x, const double* w, const double* b, double* y,
                             long rows, long width) {
  norm(x, w, b, y, rows, width);
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
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = x.contiguous()
        kernel = getattr(LIBRARY, "norm_" + str(x.dtype).removeprefix("torch."))
        y = torch.empty_like(x)
        width = x.shape[-1]
        weight, bias = address(self.norm.weight), address(self.norm.bias)
        kernel(address(x), weight, bias, address(y), ctypes.c_long(x.numel() // width), ctypes.c_long(width))
        return y
