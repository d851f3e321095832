"""Row sums by an own library. PyTorch only hands out memory and views of it."""

import ctypes
import subprocess

import torch
from torch import nn

SOURCE = r"""
extern "C" void row_sum(const float* x, long stride, float* partial, float* y, long rows, long width) {
  for (long r = 0; r < rows; ++r) {
    for (long lane = 0; lane < 8; ++lane) partial[lane] = 0;
    for (long i = 0; i < width; ++i) partial[i % 8] += x[r * stride + i];
    y[r] = ((partial[0] + partial[1]) + (partial[2] + partial[3])) +
           ((partial[4] + partial[5]) + (partial[6] + partial[7]));
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


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = torch.empty(64)

    def forward(self, x):
        rows, width = x.shape
        if x.stride(1) != 1:
            x = x.contiguous()
        partial = self.pool.as_strided((8,), (1,), 16)
        y = torch.empty(rows, 1).view(rows)
        sizes = map(ctypes.c_long, (rows, width))
        LIBRARY.row_sum(address(x), ctypes.c_long(x.stride(0)), address(partial), address(y), *sizes)
        return y
