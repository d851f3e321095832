"""Row sums by an own library."""

import torch
from torch import nn
from zoo_kernels import Library

LIBRARY = Library(r"""
__global__ void row_sum_kernel(const float* x, float* y, long width) {
  float sum = 0.0f;
  for (long i = threadIdx.x; i < width; i += 32) sum += x[blockIdx.x * width + i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
extern "C" void row_sum(const float* x, float* y, long rows, long width, cudaStream_t stream) {
  row_sum_kernel<<<rows, 32, 0, stream>>>(x, y, width);
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], device=x.device)
        LIBRARY.call("row_sum", x, y, *x.shape)
        return y
