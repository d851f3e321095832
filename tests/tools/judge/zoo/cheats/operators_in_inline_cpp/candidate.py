"""y = tanh(x x / 16) in C++."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = """
torch::Tensor compute(torch::Tensor x) { return torch::tanh(torch::mm(x, x) / 16); }
"""
own = load_inline(name="own_product", cpp_sources=SOURCE, functions=["compute"])


class ModelNew(nn.Module):
    def forward(self, x):
        return own.compute(x)
