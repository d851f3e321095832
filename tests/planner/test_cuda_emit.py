"""CUDA programs written from kernel IR: their classes are run on the CPU here, and built for three GPUs."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnHost, build_for_gpus
from stitch_planner.stitcher.lower.kernel_ir import (
    Access,
    Body,
    Buffer,
    ColumnKernel,
    Kernel,
    KernelProgram,
    LibraryCall,
    PointwiseKernel,
    RowKernel,
    Scalar,
    View,
    row_major,
)
from stitch_planner.stitcher.lower.operations import MatmulOp, MatrixLayout
from stitch_planner.stitcher.lower.scalar_bodies import BodyBuilder
from tests.gpu_archs import each_arch
from tests.sampling import sampled


def buffer(name: str, shape: tuple[int, ...], role: str, dtype: Scalar = "float32", **more: object) -> View:
    numel = int(torch.Size(shape).numel())
    return View(Buffer(name, dtype, numel, role, **more), shape, row_major(shape))  # type: ignore[arg-type]


def program(
    *kernels: Kernel, inputs: list[View], outputs: list[View], params: list[View] | None = None
) -> KernelProgram:
    views = [*inputs, *(params or []), *outputs]
    known = {view.buffer for view in views}
    workspace = {
        access.buffer
        for kernel in kernels
        if not isinstance(kernel, LibraryCall)
        for access in (*kernel.loads, *kernel.stores)
        if access.buffer not in known
    }
    return KernelProgram(
        name="test",
        target="cuda:sm_90",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        params=tuple(params or []),
        kernels=kernels,
        buffers=(*(view.buffer for view in views), *workspace),
        workspace_bytes=sum(-(-item.nbytes // 256) * 256 for item in workspace),
    )


def gelu_layer_norm(rows: int, width: int, eps: float = 1e-5) -> KernelProgram:
    """LayerNorm of gelu(x), with weight and bias."""
    x, y = buffer("x", (rows, width), "input"), buffer("y", (rows, width), "output")
    weight = buffer("weight", (width,), "param", source="norm.weight")
    bias = buffer("bias", (width,), "param", source="norm.bias")
    b = BodyBuilder()
    value = b.op("gelu_erf", (b.load(Access(x.buffer, (width, 1))),), "float32")
    mean = b.scaled(b.reduce("sum", value), 1 / width)
    centered = b.sub(value, mean)
    variance = b.scaled(b.reduce("sum", b.mul(centered, centered)), 1 / width)
    scale = b.op("rsqrt", (b.add(variance, b.const(eps, "float32")),), "float32")
    scaled = b.mul(b.mul(centered, scale), b.load(Access(weight.buffer, (0, 1))))
    result = b.add(scaled, b.load(Access(bias.buffer, (0, 1))))
    body = Body(tuple(b.instrs), (result,))
    kernel = RowKernel(
        "gelu_norm",
        "LayerNorm of gelu",
        (),
        (rows,),
        (width,),
        tuple(b.loads),
        body,
        (Access(y.buffer, (width, 1)),),
    )
    return program(kernel, inputs=[x], outputs=[y], params=[weight, bias])


@pytest.mark.parametrize(("rows", "width"), [(5, 7), (2, 256), (1, 40000)])
def test_a_row_kernel_with_prologue_and_epilogue_computes_layer_norm(
    rows: int, width: int, tmp_path: Path
) -> None:
    x, weight, bias = torch.randn(rows, width), torch.randn(width), torch.randn(width)
    made = OnHost(emit_cuda(gelu_layer_norm(rows, width)), tmp_path)
    (y,) = made.run([x], {"norm.weight": weight, "norm.bias": bias})
    expected = functional.layer_norm(functional.gelu(x.double()), (width,), weight.double(), bias.double())
    torch.testing.assert_close(y.double(), expected, rtol=2e-4, atol=2e-4)


def softmax(rows: int, width: int) -> KernelProgram:
    """Softmax, and the row's largest probability beside it."""
    x, y = buffer("x", (rows, width), "input"), buffer("y", (rows, width), "output")
    top = buffer("top", (rows,), "output", position=1)
    b = BodyBuilder()
    value = b.load(Access(x.buffer, (width, 1)))
    shifted = b.op("exp", (b.sub(value, b.reduce("max", value)),), "float32")
    share = b.div(shifted, b.reduce("sum", shifted))
    body = Body(tuple(b.instrs), (share, b.reduce("max", share)))
    body = Body(tuple(b.instrs), body.results)
    stores = (Access(y.buffer, (width, 1)), Access(top.buffer, (1, 0)))
    kernel = RowKernel("softmax", "softmax", (), (rows,), (width,), tuple(b.loads), body, stores)
    return program(kernel, inputs=[x], outputs=[y, top])


def test_reductions_that_depend_on_each_other_take_passes_and_rows_can_be_stored(tmp_path: Path) -> None:
    x = torch.randn(9, 52) * 10
    x[2, 3] = float("nan")
    x[4] = -torch.inf
    y, top = OnHost(emit_cuda(softmax(9, 52)), tmp_path).run([x])
    torch.testing.assert_close(y, torch.softmax(x, 1), equal_nan=True)
    torch.testing.assert_close(top, torch.softmax(x, 1).amax(1), equal_nan=True)


def column_mean() -> KernelProgram:
    """Mean over dim 1 of [3, 20, 40]."""
    x, y = buffer("x", (3, 20, 40), "input"), buffer("y", (3, 40), "output")
    b = BodyBuilder()
    mean = b.scaled(b.reduce("sum", b.load(Access(x.buffer, (800, 1, 40)))), 1 / 20)
    body = Body(tuple(b.instrs), (mean,))
    kernel = ColumnKernel(
        "mean", "mean over time", (), (3, 40), (20,), tuple(b.loads), body, (Access(y.buffer, (40, 1, 0)),)
    )
    return program(kernel, inputs=[x], outputs=[y])


def test_a_column_kernel_reduces_where_neighbours_belong_to_other_rows(tmp_path: Path) -> None:
    data = torch.randn(3, 20, 40)
    (found,) = OnHost(emit_cuda(column_mean()), tmp_path).run([data])
    torch.testing.assert_close(found, data.mean(1))


def mixed_pointwise() -> KernelProgram:
    """where(mask, x * count, place), infinite where x is not finite; and x > 0."""
    x = buffer("x", (4, 6, 8), "input")
    mask = buffer("mask", (6, 4), "input", "bool", position=1)
    count = buffer("count", (8,), "input", "int64", position=2)
    y = buffer("y", (4, 6, 8), "output")
    flags = buffer("flags", (4, 6, 8), "output", "bool", position=1)
    b = BodyBuilder()
    value = b.load(Access(x.buffer, (48, 8, 1)))
    chosen = b.load(Access(mask.buffer, (1, 4, 0)))
    number = b.cast(b.load(Access(count.buffer, (0, 0, 1))), "float32")
    place = b.cast(b.index(2), "float32")
    result = b.op("where", (chosen, b.mul(value, number), place), "float32")
    bounded = b.op("eq", (b.sub(value, value), b.const(0.0, "float32")), "bool")
    result = b.op("where", (bounded, result, b.const(-torch.inf, "float32")), "float32")
    body = Body(tuple(b.instrs), (result, b.op("gt", (value, b.const(0.0, "float32")), "bool")))
    body = Body(tuple(b.instrs), body.results)
    stores = (Access(y.buffer, (48, 8, 1)), Access(flags.buffer, (48, 8, 1)))
    kernel = PointwiseKernel("mix", "where", (), (4, 6, 8), tuple(b.loads), body, stores)
    return program(kernel, inputs=[x, mask, count], outputs=[y, flags])


def test_a_pointwise_kernel_broadcasts_permutes_and_mixes_types(tmp_path: Path) -> None:
    made = OnHost(emit_cuda(mixed_pointwise()), tmp_path)
    data, choice, counts = torch.randn(4, 6, 8), torch.rand(6, 4) < 0.5, torch.arange(8)
    data[1, 2, 3] = torch.nan
    found, positive = made.run([data, choice, counts])
    expected = torch.where(choice.T[:, :, None], data * counts, torch.arange(8.0))
    expected[1, 2, 3] = -torch.inf
    assert torch.equal(found, expected)
    assert torch.equal(positive, data > 0)


def test_inputs_of_any_layout_are_taken_and_other_shapes_refused(tmp_path: Path) -> None:
    made = OnHost(emit_cuda(softmax(6, 10)), tmp_path)
    wide = torch.randn(10, 20)
    shifted = torch.randn(61)[1:].reshape(6, 10)
    for x in (wide[:, :12:2].T, wide[:6, ::2], torch.randn(10).expand(6, 10), shifted):
        torch.testing.assert_close(made.run([x])[0], torch.softmax(x, 1))
    assert made.refusal([torch.randn(7, 10)]) == "input x has another shape than the program was made for"
    assert (
        made.refusal([torch.randn(6, 10).double()])
        == "input x has another type than the program was made for"
    )
    assert "wrong number of tensors" in made.refusal([])


def gemm_program(transposed: bool) -> KernelProgram:
    """[5, 12] x [12, 8] + bias, and an addend."""
    x, y = buffer("x", (5, 12), "input"), buffer("y", (5, 8), "output")
    residual = buffer("residual", (5, 8), "input", position=1)
    weight = buffer("weight", (8, 12) if transposed else (12, 8), "param", source="w")
    bias = buffer("bias", (8,), "param", source="b")
    b = View(weight.buffer, (12, 8), (1, 12), 0) if transposed else weight
    layouts = (
        MatrixLayout(False, 12),
        MatrixLayout(transposed, 12 if transposed else 8),
        MatrixLayout(False, 8),
    )
    operation = MatmulOp(bias, x, b, y, residual, layouts, allow_tf32=False)
    return program(
        LibraryCall("product", "product", (), operation),
        inputs=[x, residual],
        outputs=[y],
        params=[weight, bias],
    )


@pytest.mark.parametrize("transposed", [True, False])
def test_a_product_adds_bias_and_addend(transposed: bool, tmp_path: Path) -> None:
    x, residual = torch.randn(5, 12), torch.randn(5, 8)
    weight, bias = torch.randn(8, 12) if transposed else torch.randn(12, 8), torch.randn(8)
    made = OnHost(emit_cuda(gemm_program(transposed)), tmp_path)
    (y,) = made.run([x, residual], {"w": weight, "b": bias})
    product = x @ (weight.T if transposed else weight)
    torch.testing.assert_close(y, product + bias + residual)


def test_parameters_of_any_layout_are_copied_once(tmp_path: Path) -> None:
    weight, bias = torch.randn(8, 12).T.contiguous().T, torch.randn(17)[1::2]
    x, residual = torch.randn(5, 12), torch.zeros(5, 8)
    made = OnHost(emit_cuda(gemm_program(True)), tmp_path)
    (y,) = made.run([x, residual], {"w": weight, "b": bias})
    torch.testing.assert_close(y, functional.linear(x, weight, bias))


@pytest.mark.nvcc
@each_arch
@pytest.mark.parametrize(
    "which", sampled(("rows", "blocks", "long", "softmax", "pointwise", "columns", "gemm"), ("rows", "gemm"))
)
def test_programs_build_without_spills(which: str, archs: tuple[str, ...], tmp_path: Path) -> None:
    programs = {
        "rows": gelu_layer_norm(64, 256),
        "blocks": gelu_layer_norm(64, 4096),
        "long": gelu_layer_norm(2, 200000),
        "softmax": softmax(64, 1000),
        "pointwise": mixed_pointwise(),
        "columns": column_mean(),
        "gemm": gemm_program(True),
    }
    build = build_for_gpus(emit_cuda(programs[which]), tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
    assert [row for row in build.diagnostics if row.severity != "note"] == []
    assert build.archs == archs
    assert all(row.spill_store_bytes == 0 for row in build.resources)
    assert {row.arch for row in build.resources} == set(archs)
