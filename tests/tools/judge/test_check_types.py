"""References of every type that crosses the ABI: honest programs pass, others do not."""

import re
from pathlib import Path

import pytest

from stitch_tools.errors import TaskError
from stitch_tools.models.verdict import Check
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import checked, make_task, model_new

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
FP8_PRODUCT = """
class Model(nn.Module):
    def forward(self, a, b, scale):
        return (a.float() @ b.float() * scale).bfloat16()
def get_inputs():
    a, b = torch.randn(16, 64), torch.randn(64, 24)
    return [a.to(torch.float8_e4m3fn), b.to(torch.float8_e5m2), torch.rand(1, 24)]
"""
FP8_QUANTIZE = """
class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 448.0
        return (x / scale).to(torch.float8_e4m3fn), scale, (x / 8).to(torch.float8_e5m2)
def get_inputs():
    return [torch.randn(16, 64)]
"""
FP8_STATE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn(64, 24).to(torch.float8_e4m3fn))
        self.bias = nn.Parameter(torch.randn(24).to(torch.float8_e5m2), requires_grad=False)
    def forward(self, x):
        return x @ self.weight.to(x.dtype) + self.bias.to(x.dtype)
def get_inputs():
    return [torch.randn(16, 64, dtype=torch.bfloat16)]
"""
FP8_LIBRARY = """
class Model(nn.Module):
    def forward(self, a, b, scale):
        return torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
def get_inputs():
    fp8 = torch.float8_e4m3fn
    return [torch.randn(16, 64).to(fp8), torch.randn(32, 64).to(fp8), torch.tensor(0.5)]
"""
INT4 = """
class Model(nn.Module):
    def forward(self, x, packed, scale):
        low, high = (packed & 0xF).to(torch.int8) - 8, (packed >> 4).view(torch.int8) - 8
        weight = torch.stack([low, high], -1).reshape(24, 64).to(x.dtype) * scale
        return x @ weight.t()
def get_inputs():
    half = torch.float16
    return [torch.randn(16, 64, dtype=half), torch.randint(0, 256, (24, 32), dtype=torch.uint8),
            torch.rand(24, 1, dtype=half) * 0.1]
"""
BITS = """
class Model(nn.Module):
    def forward(self, x):
        bits = x.view(torch.int32) & -65536
        return bits.view(torch.float32) * 2, x.view(torch.int32) >> 23
def get_inputs():
    return [torch.randn(16, 64)]
"""
HALVES = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 24).half(), nn.LayerNorm(24)
    def forward(self, x, y):
        return self.norm(self.linear(x).float()).bfloat16() + y
def get_inputs():
    return [torch.randn(16, 64, dtype=torch.float16), torch.randn(16, 24, dtype=torch.bfloat16)]
"""
COMPLEX = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(33, dtype=torch.complex64))
        steps = torch.outer(torch.arange(16.0), 1.0 / 100 ** (torch.arange(0, 32, 1) / 32))
        self.rotary = torch.polar(torch.ones(16, 32), steps)
    def forward(self, x, z):
        bands = torch.fft.rfft(x) * self.weight
        turned = torch.view_as_complex(x.reshape(16, 32, 2)) * self.rotary
        return bands * z.conj(), torch.view_as_real(turned).flatten(1)
def get_inputs():
    return [torch.randn(16, 64), torch.randn(16, 33, dtype=torch.complex64)]
"""
BF16_INSIDE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 64)
        self.bfloat16()
    def forward(self, x):
        return self.second(F.gelu(self.first(x.bfloat16()))).float()
def get_inputs():
    return [torch.randn(64, 256)]
"""
AUTOCAST = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 64)
    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.second(F.gelu(self.first(x))).float()
def get_inputs():
    return [torch.randn(64, 256)]
"""
EXACT_HALVES = """
class Model(nn.Module):
    def forward(self, x, y):
        return x.float() @ y.float()
def get_inputs():
    return [torch.randn(64, 256, dtype=torch.bfloat16), torch.randn(256, 64, dtype=torch.bfloat16)]
"""


def judged(session: TargetSession, tmp_path: Path, reference: str, *changes: tuple[str, str]) -> Check:
    """The check of the reference's own copy, with these words of it replaced."""
    store = Store(tmp_path)
    copy = re.sub(r"\bModel\b", "ModelNew", reference)
    for old, new in changes:
        assert old in copy
        copy = copy.replace(old, new)
    return checked(
        session, store, make_task(store, HEAD + reference, init_inputs=None), model_new(store, HEAD + copy)
    )


@pytest.mark.parametrize(
    "reference",
    [FP8_PRODUCT, FP8_QUANTIZE, FP8_STATE, FP8_LIBRARY, INT4, BITS, HALVES, COMPLEX, BF16_INSIDE, AUTOCAST],
)
def test_a_copy_of_the_reference_is_accepted_on_decided_draws(
    one_thread: TargetSession, tmp_path: Path, reference: str
) -> None:
    check = judged(one_thread, tmp_path, reference)
    assert check.status == "accepted", check.message
    assert "weak" not in check.flags


@pytest.mark.parametrize(
    ("reference", "change"),
    [
        (FP8_PRODUCT, ("* scale)", "* 1.02 * scale)")),
        (FP8_QUANTIZE, ("(x / 8)", "(x / 6)")),
        (INT4, ("(packed >> 4)", "((packed >> 4) & 7)")),
        (BITS, ("-65536", "-131072")),
        (COMPLEX, ("z.conj()", "z")),
        (BF16_INSIDE, ("F.gelu", "F.silu")),
        (AUTOCAST, ("F.gelu", "F.silu")),
        (EXACT_HALVES, ("x.float() @ y.float()", "(x @ y).float()")),
    ],
)
def test_a_program_that_computes_something_else_is_not(
    one_thread: TargetSession, tmp_path: Path, reference: str, change: tuple[str, str]
) -> None:
    assert judged(one_thread, tmp_path, reference, change).status == "incorrect"


def test_a_bf16_reference_takes_a_program_that_is_more_precise(
    one_thread: TargetSession, tmp_path: Path
) -> None:
    more_precise = (
        "self.second(F.gelu(self.first(x))).float()",
        "self.second(F.gelu(self.first(x.float())))",
    )
    check = judged(
        one_thread, tmp_path, AUTOCAST, ("torch.bfloat16", "torch.bfloat16, enabled=False"), more_precise
    )
    assert check.status == "accepted", check.message


def test_a_reference_less_precise_than_its_contract_is_told_the_rtol_that_would_do(
    one_thread: TargetSession, tmp_path: Path
) -> None:
    chaotic = """
class Model(nn.Module):
    def forward(self, x):
        for _ in range(20):
            x = 3.9 * x * (1 - x)
        return x
def get_inputs():
    return [torch.rand(64, 64)]
"""
    check = judged(one_thread, tmp_path, chaotic)
    assert check.status == "incorrect"
    assert re.search(r"rounding alone moves the reference .*; rtol = [\d.e-]+ would do", check.message or "")


@pytest.mark.parametrize("dtype", ["complex32", "uint16", "uint32", "uint64", "float8_e4m3fnuz"])
@pytest.mark.parametrize("place", ["input", "buffer", "output"])
def test_a_type_that_does_not_cross_the_abi_is_refused_by_name(
    one_thread: TargetSession, tmp_path: Path, dtype: str, place: str
) -> None:
    make = f"torch.ones(4).to(torch.{dtype})"
    reference = f"""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", {make if place == "buffer" else "None"})
    def forward(self, x):
        return {make if place == "output" else "torch.ones(4)"}
def get_inputs():
    return [{make if place == "input" else "torch.ones(4)"}]
"""
    store = Store(tmp_path)
    with (
        ReferenceServer(one_thread, make_task(store, HEAD + reference, init_inputs=None), store) as server,
        pytest.raises(TaskError, match=f"is {dtype}; known are .*float8_e5m2") as error,
    ):
        server.observe()
    assert "x.view(torch.uint8)" in str(error.value.hint)
