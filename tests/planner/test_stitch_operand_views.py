"""Views of parameters and repeated inputs as operands: other strides than those of a parameter itself."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnHost, lowered
from stitch_planner.stitcher.lower.cuda.products import ALIGNED_ELEMENTS
from stitch_planner.stitcher.lower.kernel_ir import LibraryCall
from tests.planner.stitch_support import Built, leaves, made


class Weights(nn.Module):
    """Parameters to take views of."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=draw))

        self.pairs, self.wide, self.tall = drawn(32, 48, 2), drawn(32, 96), drawn(48, 64)
        self.column, self.row, self.heads = drawn(3, 1), drawn(8, 1), drawn(4, 1, 8)
        self.bias, self.one, self.vectors = drawn(32, 2), drawn(1), drawn(48, 2)
        self.register_buffer("still", torch.rand(1, generator=draw) + 1)
        self.table, self.cells = drawn(20, 16), drawn(6, 3, 3, 3)


class Products(Weights):
    """Weights that no single leading dimension describes, repeated inputs, bias vectors that are views."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        linear, short, even = functional.linear, x[:, :8], self.tall[:, ::2]
        return (
            linear(x, self.pairs[..., 0]),
            linear(x, self.wide[:, ::2]),
            x @ self.tall[:, ::4],
            x @ even,
            x[0] @ even,
            linear(short, self.column.expand(3, 8)),
            short @ self.row.expand(8, 4),
            x[:, :1] @ self.row[:1].expand(1, 7),
            x[:, :1] @ self.tall[:1, ::2],
            linear(x, self.wide[::2, :48]),
            x @ self.vectors[:, 0],
            x.expand(4, 5, 48) @ even,
            y @ self.heads.expand(4, 48, 8),
            x.expand(4, 5, 48) @ x.t().expand(4, 48, 5),
            y[:, ::2, 1::3] @ y[:, :, ::3].transpose(1, 2),
            y[:, :, :1].expand(4, 5, 48) @ y.transpose(1, 2),
            linear(x[:, :1].expand(5, 48), self.wide[:, :48]),
            linear(x, self.wide[:, :48], self.bias[:, 1]),
            linear(x, self.wide[:, ::2], self.one.expand(32)),
            torch.relu(linear(x, self.wide[:, ::2], self.bias[:, 0])),
            torch.addmm(self.one.expand(32), x, even),
            torch.addmm(self.one.expand(5, 32), x, even),
        )


class Others(Weights):
    """The other calls that take parameters: each reads a view as it lies."""

    def forward(self, x: torch.Tensor, image: torch.Tensor, which: torch.Tensor) -> tuple[torch.Tensor, ...]:
        column, one, still = self.vectors[:, 1], self.one, self.get_buffer("still")
        return (
            functional.embedding(which, self.table[:, ::2]),
            functional.embedding(which[::2], self.table.t()),
            functional.embedding(which, self.table[:, :1].expand(20, 8)),
            functional.embedding_bag(which[None], self.table[:, ::2], mode="sum"),
            functional.layer_norm(x, (48,), column, one.expand(48)),
            functional.rms_norm(x, (48,), column),
            functional.group_norm(image, 3, column[:3], one.expand(3)),
            functional.instance_norm(image, weight=column[:3], bias=one.expand(3)),
            functional.batch_norm(image, None, None, column[:3], one.expand(3), training=True),
            functional.batch_norm(image[:1].expand(2, 3, 9, 9), None, None, training=True),
            functional.batch_norm(
                functional.conv2d(image, self.cells),
                still.expand(6),
                still.expand(6),
                column[:6],
                one.expand(6),
            ),
            functional.prelu(image, column[:3]),
            functional.prelu(image, one.expand(3)),
            functional.conv2d(image[:, :, ::2, ::2], self.cells),
            functional.conv2d(image[:, :1].expand(2, 3, 9, 9), self.cells),
            functional.scaled_dot_product_attention(
                x[None, None, :, ::2], x[None, None, :1, ::2].expand(1, 1, 5, 24), x[None, None, :, ::3]
            ),
        )


def agree(ours: list[torch.Tensor], module: nn.Module, inputs: list[torch.Tensor]) -> None:
    for place, (one, eager) in enumerate(zip(ours, leaves(module(*inputs)), strict=True)):
        torch.testing.assert_close(
            one, eager.detach(), rtol=1e-4, atol=1e-4, msg=lambda text, place=place: f"{place}: {text}"
        )


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def test_products_read_views_of_parameters_as_weights_and_biases_and_repeated_inputs(tmp_path: Path) -> None:
    module, inputs = Products(), [drawn(5, 48), drawn(4, 5, 48)]
    agree(Built(made(module, inputs).stitched, module, tmp_path)(inputs), module, inputs)


class Addends(Weights):
    """Biases that a GPU's library cannot keep the address of, and residuals beside them."""

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        linear, wide, vector = functional.linear, self.wide[:, :48], self.vectors.flatten()
        residual = z[1:161].view(5, 32)
        return (
            linear(x, wide, self.bias[:, 1]) + residual,
            linear(x, wide, vector[4:36]) + residual,
            linear(x, wide, vector[3:35]),
            linear(x, wide, self.bias[:, 0] * 2),
            linear(x.expand(3, 5, 48), wide, z[:64:2]),
            torch.addmm(residual, x, self.tall[:, :32]) + residual,
        )


def test_products_on_a_gpu_read_them_too(tmp_path: Path) -> None:
    module, inputs = Products(), [drawn(5, 48), drawn(4, 5, 48)]
    program = OnHost(emit_cuda(lowered(module, inputs)), tmp_path)
    named = {name: value.detach() for name, value in module.named_parameters()}
    agree(program.run(inputs, named), module, inputs)


def test_products_on_a_gpu_add_what_their_library_can_read(tmp_path: Path) -> None:
    module, inputs = Addends(), [drawn(5, 48), drawn(161)]
    made_of = lowered(module, inputs)
    calls = [kernel for kernel in made_of.kernels if isinstance(kernel, LibraryCall)]
    given = [view for call in calls for view in (*call.operation.reads(), *call.operation.writes())]
    assert len(calls) == 6
    assert not [view for view in given if view.offset % ALIGNED_ELEMENTS], "not aligned"
    program = OnHost(emit_cuda(made_of), tmp_path)
    named = {name: value.detach() for name, value in module.named_parameters()}
    agree(program.run(inputs, named), module, inputs)


def test_tables_and_norms_read_views_of_parameters(tmp_path: Path) -> None:
    module, inputs = Others(), [drawn(5, 48), drawn(2, 3, 9, 9), torch.arange(14) % 16]
    agree(Built(made(module, inputs).stitched, module, tmp_path)(inputs), module, inputs)


class Kept(Weights):
    """Views of parameters that calls on a CPU read in another layout."""

    def forward(self, x: torch.Tensor, which: torch.Tensor) -> tuple[torch.Tensor, ...]:
        even = self.wide[:, ::2]
        return (
            functional.linear(x, even, self.bias[:, 1]),
            torch.relu(functional.linear(x, even)),
            x @ self.tall[:, ::4],
            x.expand(4, 5, 48) @ self.heads[:, :, ::2].expand(4, 48, 4),
            functional.embedding(which, self.table.t()[:, ::2]),
        )


def test_views_of_parameters_are_copied_once_for_all_calls(tmp_path: Path) -> None:
    module, inputs = Kept(), [drawn(5, 48), torch.arange(14)]
    made_of = made(module, inputs)
    assert "copies" not in made_of.source, "nothing is copied in a call"
    assert made_of.source.count("STITCH_TRY(keep(") == 5, "the same view once"
    built = Built(made_of.stitched, module, tmp_path)
    agree(built(inputs), module, inputs)
    for weight in module.parameters():
        weight.data.mul_(2)
    built.native.init([(name, value.detach()) for name, value in module.named_parameters()])
    agree(built(inputs), module, inputs)
