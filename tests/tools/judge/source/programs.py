"""Small programs that the rules read: what cheats and honest twins have in common."""
# a program stays on one line where it reads better so

from textwrap import dedent

HEAD = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

ext = load_inline("ext", cpp_sources="torch::Tensor scale(torch::Tensor x);", cuda_sources='''
__global__ void scale_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
torch::Tensor scale(torch::Tensor x) {
  auto y = torch::empty_like(x);
  scale_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
''', functions=["scale"])
"""

INIT = """
    def __init__(self):
        super().__init__()
        self.cache = {}
        self.out = None
        self.calls = 0
"""


def model(forward: str, *, before: str = "", init: str = INIT) -> dict[str, bytes]:
    """A program whose ModelNew has this forward (statements) after `before` (module level)."""
    body = "\n".join(f"        {line}" for line in dedent(forward).strip().splitlines())
    text = (
        f"{HEAD}\n{dedent(before)}\n\nclass ModelNew(nn.Module):{init}\n    def forward(self, x):\n{body}\n"
    )
    return {"program.py": text.encode("utf-8")}


def methods(text: str, *, before: str = "") -> dict[str, bytes]:
    """A program whose ModelNew has this body."""
    body = "\n".join(f"    {line}" for line in dedent(text).strip().splitlines())
    return {"program.py": f"{HEAD}\n{dedent(before)}\n\nclass ModelNew(nn.Module):\n{body}\n".encode()}


NATIVE_HEAD = """
#include <cuda_runtime.h>
#include <stitch/abi.h>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

__global__ void scale_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
struct StitchHandle { const float* weight; int calls; const void* seen; float* kept; };
"""


def native(forward: str, *, before: str = "", after: str = "") -> dict[str, bytes]:
    """A native program whose stitch_forward begins with these statements."""
    text = f"""{NATIVE_HEAD}
{dedent(before)}
extern "C" int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {{
  const DLTensor& x = args->inputs[0];
  float* y = static_cast<float*>(args->outputs[0].data);
  {forward}
  scale_kernel<<<8, 256, 0, static_cast<cudaStream_t>(args->stream)>>>(
      static_cast<const float*>(x.data), y, 2048);
  return 0;
}}
{dedent(after)}
"""
    return {"program.cu": text.encode("utf-8")}


# A stream that only records a graph.
CAPTURED = """cudaStream_t s; cudaGraph_t graph; cudaGraphExec_t exec;
cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
scale_kernel<<<1, 1, 0, s>>>(0, y, 1);
cudaStreamEndCapture(s, &graph);
cudaGraphInstantiateWithFlags(&exec, graph, 0);
"""


Files = dict[str, bytes]
HONEST_FORWARD = "return ext.scale(x)"
HONEST = model(HONEST_FORWARD)
HONEST_NATIVE = native("")


def only_source(source: str, *, forward: str = "return ext.scale(x)") -> Files:
    """A program whose one extension is built from this source."""
    text = f"""
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r'''{source}'''
ext = load_inline("ext", cpp_sources="torch::Tensor scale(torch::Tensor x);", cuda_sources=SOURCE)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        {forward}
"""
    return {"program.py": text.encode("utf-8")}


SCALE = """
__global__ void scale_kernel(const float* x, float* y, int n) { if (n) y[0] = 2 * x[0]; }
torch::Tensor scale(torch::Tensor x) {
  auto y = torch::empty_like(x);
  BODY
  scale_kernel<<<1, 1>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""


def scale_with(body: str) -> Files:
    """A program whose C++ function begins with these statements."""
    return only_source(SCALE.replace("BODY", body))


# rule -> (cheats, honest twins)

REFERENCE = b"""
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        h = torch.relu(self.up(x))
        return torch.tanh(self.down(h))
"""
