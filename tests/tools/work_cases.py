"""GPU programs with what must be found out about who does their work (tests, and `scripts/gpu-work`)."""

from dataclasses import dataclass

from stitch_tools.models.program import Program
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Check, CheckFlag
from stitch_tools.storage.store import Store
from tests.tools.check_support import PROGRAMS, make_task

TARGET = "cuda:sm_90"
TANH, PRODUCT = "torch.tanh(torch.mm(x, x) / 16)", "torch.mm(x, x) / 16"
_REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return RESULT
def get_inputs():
    return [torch.randn(256, 256)]
def get_init_inputs():
    return []
"""
# Two kernels that nvcc builds when the file is imported, called without any header of torch.
_KERNELS = """
import ctypes, os, shutil, subprocess, torch
SOURCE = r'''
__global__ void own_product(const float* x, float* y, int n) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= n) return;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += x[row * n + k] * x[k * n + column];
  y[row * n + column] = sum / 16;
}
__global__ void own_tanh(float* y, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = tanhf(y[i]);
}
extern "C" void product(const float* x, float* y, int n, cudaStream_t stream) {
  own_product<<<dim3((n + 127) / 128, n), 128, 0, stream>>>(x, y, n);
}
extern "C" void bend(float* y, int n, cudaStream_t stream) {
  own_tanh<<<(n * n + 255) / 256, 256, 0, stream>>>(y, n * n);
}
'''
NVCC = shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
with open("own.cu", "w") as file:
    file.write(SOURCE)
OPTIONS = ["-O3", "-shared", "-Xcompiler", "-fPIC", "-arch=native"]
subprocess.run([NVCC, *OPTIONS, "own.cu", "-o", "own.so"], check=True)
LIBRARY = ctypes.CDLL("./own.so")
def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())
def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
"""
_OWN = (
    _KERNELS
    + """
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        LIBRARY.product(pointer(x), pointer(y), len(x), stream())
        LIBRARY.bend(pointer(y), len(x), stream())
        return y
"""
)
# A graph over static memory, captured at the first call: of PyTorch's operators, or with a kernel among them.
_GRAPHED = """
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None
    def body(self):
        BODY
    def forward(self, x):
        if self.graph is None or self.x.shape != x.shape:
            self.x = x.clone()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.body()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y = self.body()
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
"""
_TORCH_BODY = "return torch.tanh(torch.mm(self.x, self.x) / 16)"
_MIXED_BODY = """y = torch.mm(self.x, self.x) / 16
        LIBRARY.bend(pointer(y), len(y), stream())
        return y"""
_COMPILED = """
import torch
@torch.compile(dynamic=False)
def bent(x):
    return torch.tanh(torch.mm(x, x) / 16)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return bent(x)
"""
_INLINE = '''
import torch
from torch.utils.cpp_extension import load_inline
CUDA = r"""
#include <ATen/cuda/CUDAContext.h>
__global__ void inline_kernel(const float* x, float* y, int n) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (column >= n) return;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += x[row * n + k] * x[k * n + column];
  y[row * n + column] = tanhf(sum / 16);
}
torch::Tensor bent(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int n = x.size(0);
  inline_kernel<<<dim3((n + 127) / 128, n), 128, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""
module = load_inline("bent", "torch::Tensor bent(torch::Tensor x);", CUDA, functions=["bent"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.bent(x)
'''


@dataclass(frozen=True)
class WorkCase:
    """A program and what its evidence must say."""

    name: str
    source: str
    """Text of a `ModelNew` file, or the way (`HOW`) of tanh_square.cu."""
    flags: tuple[CheckFlag, ...] = ()
    owners: tuple[str, ...] = ("own",)
    """Owners that must have a share of the work above 0.5 %; no other may have more."""
    result: str = TANH
    native: bool = False
    slow: bool = False

    def task(self, store: Store) -> Task:
        """The task that it solves."""
        return make_task(store, _REFERENCE.replace("RESULT", self.result), target=TARGET)

    def program(self, store: Store) -> Program:
        """The program itself."""
        if not self.native:
            files, main = {"program.py": self.source.encode("utf-8")}, "program.py"
            return Program(format="kernelbench", target=TARGET, files=store.put_files(files), main=main)
        how = f"#define HOW {self.source}\n" + ("#define TANH\n" if self.result == TANH else "")
        main = "tanh_square.cu"
        files = {main: (PROGRAMS / main).read_bytes(), "how.h": how.encode("utf-8")}
        return Program(format="native", target=TARGET, files=store.put_files(files), main=main)

    def problems(self, check: Check) -> list[str]:
        """What is otherwise than it must be; empty when all is right."""
        work = check.work
        if check.status != "accepted" or work is None:
            return [
                f"status {check.status}: {check.message}; findings: {check.findings}; {check.not_checked}"
            ]
        shares = {"own": work.own, "library": work.library, "pytorch": work.pytorch, "copy": work.copies}
        found = {owner for owner, share in shares.items() if share > 0.005 * max(work.work, 1e-9)}
        suspicious = [row.rule for row in check.findings if row.severity == "suspicious"]
        checks = {
            f"flags {check.flags}, wanted {self.flags}": check.flags == self.flags,
            f"owners {sorted(found)}, wanted {sorted(self.owners)}": found == set(self.owners),
            f"suspicious findings {suspicious}, wanted none": not suspicious,
            f"outputs right: {work.outputs_right}": work.outputs_right,
            f"counts match: {work.counts_match}": work.counts_match is True,
        }
        return [text for text, right in checks.items() if not right]


def _graphed(body: str, head: str = "import torch\n") -> str:
    return head + _GRAPHED.replace("BODY", body)


_PYTORCH = ("pytorch",)
CASES = (
    WorkCase("native own kernels", "OWN", native=True),
    WorkCase("native own kernels in an own graph", "GRAPH", native=True),
    WorkCase("native cuBLAS and an own kernel", "CUBLAS", owners=("library", "own"), native=True),
    WorkCase("native cuBLAS alone", "CUBLAS", ("library_only",), ("library",), PRODUCT, native=True),
    WorkCase(
        "native cuBLAS and a useless own kernel",
        "USELESS",
        owners=("library", "own"),
        result=PRODUCT,
        native=True,
    ),
    WorkCase("native ATen by its C functions", "LIBTORCH", ("partial",), ("own", "pytorch"), native=True),
    WorkCase(
        "ModelNew of torch operators",
        _REFERENCE.replace("RESULT", TANH).replace("class Model(", "class ModelNew("),
        ("partial",),
        _PYTORCH,
    ),
    WorkCase("ModelNew of own kernels", _OWN),
    WorkCase(
        "ModelNew of torch operators in a graph",
        _graphed(_TORCH_BODY),
        ("partial",),
        ("copy", "pytorch"),
    ),
    WorkCase(
        "ModelNew of both in a graph",
        _graphed(_MIXED_BODY, _KERNELS),
        ("partial",),
        ("copy", "own", "pytorch"),
    ),
    WorkCase("ModelNew with load_inline", _INLINE, slow=True),
    WorkCase("ModelNew of torch.compile", _COMPILED, ("partial",), _PYTORCH, slow=True),
)
