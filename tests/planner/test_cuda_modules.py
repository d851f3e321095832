"""Whole modules as CUDA programs: captured, planned, written, run on the CPU, built for GPUs."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.library_calls import call_text
from stitch_planner.stitcher.emit.cuda.testing import OnHost, build_for_gpus, lowered
from stitch_planner.stitcher.lower.cuda.templates import cuda_templates
from stitch_planner.stitcher.lower.kernel_ir import KernelProgram, LibraryCall
from stitch_planner.stitcher.lower.lowering import UnloweredError
from stitch_planner.stitcher.lower.operations import MatmulOp
from stitch_tools.models.task import Contract
from tests.gpu_archs import each_arch


def agrees(module: nn.Module, inputs: list[torch.Tensor], folder: Path) -> KernelProgram:
    """The module's program, after its outputs on the CPU were found equal to float64's."""
    program = lowered(module.eval(), inputs)
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    found = OnHost(emit_cuda(program), folder).run(inputs, {k: v.detach() for k, v in named.items()})
    exact = module.double()(*(x.double() if x.is_floating_point() else x for x in inputs))
    for one, expected in zip(found, exact if isinstance(exact, tuple) else (exact,), strict=True):
        torch.testing.assert_close(one.double(), expected.detach(), rtol=2e-4, atol=2e-5)
    return program


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(12, 32), nn.LayerNorm(32), nn.Linear(32, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.norm(self.up(x))))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(16))
        self.gate, self.up = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False)
        self.down = nn.Linear(24, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Loss(nn.Module):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.logits = nn.Linear(8, 50, bias=False)
        self.reduction = reduction

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.logits(x) / 0.7, target, reduction=self.reduction)


class Sdpa(nn.Module):
    """Heads taken out of a joint projection's layout; causal, masked by bools, masked by floats."""

    def forward(self, x: torch.Tensor, keep: torch.Tensor, add: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = (y.view(2, 6, 3, 4).transpose(1, 2) for y in x.split(12, -1))
        attend = functional.scaled_dot_product_attention
        joined = attend(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 6, 12)
        return joined, attend(q, k, v, attn_mask=keep), attend(q, k, v, attn_mask=add, scale=0.3)


class OddNames(nn.Module):
    """Inputs named as the frame of a program names its own things."""

    def forward(
        self, input: torch.Tensor, row: torch.Tensor, e: torch.Tensor, call: torch.Tensor
    ) -> torch.Tensor:
        v0 = torch.softmax(input * row, -1)
        return v0 @ e + call


class WithConstants(nn.Module):
    """Constants that the forward makes itself: floats and a mask."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([0.5, 2.0, -1.0, 4.0, 8.0])
        return torch.where(torch.tensor([True, False, True, True, False]), x * scale, x)


class Products(nn.Module):
    """Operands of every layout that cuBLASLt can read, and some that it cannot."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            a @ b,
            b.transpose(0, 1) @ a.transpose(0, 1),
            a[:, ::2] @ b[::2],
            a[:, 1:] @ b[1:],
            row @ b,
            a @ b[:, 0],
            torch.relu(a @ b + a[:, :5] * 2),
        )


class Inverse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x)


def test_a_classifier_is_products_and_fused_rows(tmp_path: Path) -> None:
    program = agrees(Classifier(), [torch.randn(7, 12)], tmp_path)
    assert len(program.kernels) == 3


def test_a_gated_block_with_rms_norm_adds_its_residual_in_the_product(tmp_path: Path) -> None:
    program = agrees(Gated(), [torch.randn(2, 5, 16)], tmp_path)
    assert [isinstance(kernel, LibraryCall) for kernel in program.kernels] == [False, True, True, False, True]
    last = program.kernels[-1]
    assert isinstance(last, LibraryCall)
    assert "aten" not in last.comment
    assert isinstance(last.operation, MatmulOp)
    assert last.operation.addend is not None


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_leaves_out_ignored_rows(reduction: str, tmp_path: Path) -> None:
    agrees(Loss(reduction), [torch.randn(9, 8), torch.tensor([1, 0, 49, -100, 7, 7, -100, 3, 2])], tmp_path)


def test_attention_is_scaled_and_masked_as_torch_does_it(tmp_path: Path) -> None:
    keep = torch.rand(2, 1, 6, 6) < 0.6
    keep[1, 0, 2] = False
    agrees(Sdpa(), [torch.randn(2, 6, 36), keep, torch.randn(6, 6)], tmp_path)


def test_products_take_operands_of_any_layout(tmp_path: Path) -> None:
    agrees(Products(), [torch.randn(6, 6), torch.randn(6, 5), torch.randn(6)], tmp_path)


def test_constants_of_the_forward_travel_inside_the_program(tmp_path: Path) -> None:
    agrees(WithConstants(), [torch.randn(3, 5)], tmp_path)


def test_names_of_the_reference_do_not_collide_with_ours(tmp_path: Path) -> None:
    agrees(OddNames(), [torch.randn(4, 4) for _ in range(4)], tmp_path)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.GroupNorm(4, 8), nn.SiLU()),
        nn.InstanceNorm2d(8, affine=True),
        nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()),
        nn.LayerNorm([5, 6]),
        nn.Softmax(1),
    ],
    ids=lambda module: type(module).__name__,
)
def test_norms_over_several_dims_and_across_memory(module: nn.Module, tmp_path: Path) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    agrees(module, [torch.randn(2, 8, 5, 6)], tmp_path)


def test_what_has_no_template_is_refused_with_its_reason() -> None:
    with pytest.raises(UnloweredError, match=r"no template for aten\.linalg_inv"):
        lowered(Inverse(), [torch.eye(3)])


def test_reduced_precision_is_used_only_where_the_contract_allows_it() -> None:
    for precision, expected in (("fp32", "float32"), ("tf32", "TF32 allowed")):
        contract = Contract(mode="eval", matmul_precision=precision)  # type: ignore[arg-type]
        assert cuda_templates(contract)
        (call,) = lowered(nn.Linear(8, 8).eval(), [torch.randn(4, 8)], contract).kernels
        assert isinstance(call, LibraryCall)
        assert isinstance(call.operation, MatmulOp)
        assert expected in call_text(call.operation).chosen


@pytest.mark.nvcc
@pytest.mark.slow
@each_arch
@pytest.mark.parametrize("module", [pytest.param(Classifier, marks=pytest.mark.exhaustive), Gated])
def test_whole_programs_build(module: type[nn.Module], archs: tuple[str, ...], tmp_path: Path) -> None:
    inputs = [torch.randn(7, 12)] if module is Classifier else [torch.randn(2, 5, 16)]
    build = build_for_gpus(emit_cuda(lowered(module().eval(), inputs)), tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
    assert build.diagnostics == ()
    assert {row.arch for row in build.resources} == set(archs)


class Hidden(nn.Module):
    """A ReLU behind a product, and attention that a bool mask hides keys from."""

    def forward(self, x: torch.Tensor, w: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = functional.scaled_dot_product_attention(
            x[None], x[None], w.transpose(0, 1)[None], keep[None]
        )
        return torch.relu(x @ w), scores


def test_nan_stays_behind_a_product_and_a_mask(tmp_path: Path) -> None:
    x, keep = torch.randn(6, 5), torch.rand(6, 6) < 0.7
    x[1, 2], keep[2] = torch.nan, False
    inputs = [x, torch.randn(5, 6), keep]
    program = lowered(Hidden(), inputs)
    product = next(kernel for kernel in program.kernels if isinstance(kernel, LibraryCall))
    assert "relu" not in product.comment, "some kernels of the library give 0 for NaN"
    outputs = OnHost(emit_cuda(program), tmp_path).run(inputs)
    for ours, eager in zip(outputs, Hidden()(*inputs), strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True)
