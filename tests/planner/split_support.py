"""Split products through tests/planner/split_harness.cu, for tests on GPUs."""

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from stitch_planner.stitcher.emit.cuda.testing import cuda_headers
from stitch_tools.compile.headers import native_include

KINDS = {"cublas": -1, "mma": 0, "wgmma": 1}
"""cuBLASLt, and the members of stitch::cuda::SplitWay::Kind."""


def build_harness(nvcc: str, folder: Path) -> ctypes.CDLL:
    """The harness, built for this machine's first GPU."""
    major, minor = torch.cuda.get_device_capability()
    arch = f"{major}{minor}" + ("a" if major == 9 else "")
    path = folder / "harness.so"
    source = Path(__file__).parent / "split_harness.cu"
    command = [nvcc, "-std=c++17", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-shared"]
    command += ["-Xcompiler", "-fPIC", f"-I{cuda_headers()}", f"-I{native_include()}"]
    done = subprocess.run(
        [*command, "-o", str(path), str(source), "-ldl"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(path))
    library.harness_new.restype = ctypes.c_void_p
    library.harness_error.restype = ctypes.c_char_p
    library.harness_use.restype = ctypes.c_int64
    return library


@dataclass(frozen=True)
class Layouts:
    """What a product reads and writes, by distances in elements."""

    m: int
    n: int
    k: int
    batch: int = 1
    b_transposed: bool = True
    """Whether B is stored [n, k], as the weight of a linear layer is."""
    a_transposed: bool = False
    a_ld: int | None = None
    b_ld: int | None = None
    d_ld: int | None = None

    def numbers(self) -> list[int]:
        """For harness_init."""
        a_rows, a_wide = (self.k, self.m) if self.a_transposed else (self.m, self.k)
        b_rows, b_wide = (self.n, self.k) if self.b_transposed else (self.k, self.n)
        lines = [(self.a_transposed, a_rows, self.a_ld or a_wide)]
        lines += [(self.b_transposed, b_rows, self.b_ld or b_wide), (False, self.m, self.d_ld or self.n)]
        numbers = [self.m, self.n, self.k, self.batch]
        for transposed, rows, ld in lines:
            numbers += [int(transposed), ld, rows * ld if self.batch > 1 else 0]
        return numbers


class SplitProduct:
    """One product, by any of the kernels."""

    def __init__(
        self,
        library: ctypes.CDLL,
        layouts: Layouts,
        *,
        constant: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        has_addend: bool = False,
        relu: bool = False,
    ) -> None:
        self.library, self.layouts = library, layouts
        self.kept = (constant, bias)
        self.handle = ctypes.c_void_p(library.harness_new())
        numbers = layouts.numbers()
        given = (ctypes.c_int64 * len(numbers))(*numbers)
        status = library.harness_init(
            self.handle, given, _pointer(constant), _pointer(bias), int(has_addend), int(relu), _stream()
        )
        assert status == 0, self.error()
        self.scratch: dict[int, torch.Tensor] = {}

    def error(self) -> str:
        """What the library says of the last failure."""
        return self.library.harness_error(self.handle).decode()

    def kinds(self) -> list[str]:
        """The kernels of this GPU, cuBLASLt's left out."""
        bits = self.library.harness_kinds(self.handle, _stream())
        return [name for name, kind in KINDS.items() if kind >= 0 and bits >> kind & 1]

    def use(self, name: str) -> None:
        """Prepares a kernel; before its runs."""
        size = self.library.harness_use(self.handle, KINDS[name], _stream())
        assert size >= 0, self.error()
        self.scratch[KINDS[name]] = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")

    def run(
        self,
        name: str,
        a: torch.Tensor,
        b: torch.Tensor,
        d: torch.Tensor,
        addend: torch.Tensor | None = None,
    ) -> None:
        """Writes `d`; the kernel must be the one that was prepared last."""
        scratch = self.scratch[KINDS[name]]
        size = ctypes.c_int64(scratch.numel())
        pointers = (_pointer(a), _pointer(b), _pointer(d), _pointer(addend), _pointer(scratch))
        status = self.library.harness_run(self.handle, KINDS[name], *pointers, size, _stream())
        assert status == 0, self.error()

    def close(self) -> None:
        """Gives its memory back."""
        self.library.harness_delete(self.handle)


def _pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
