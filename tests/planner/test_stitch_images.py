"""Whole programs made of image layers and special layers give what torch gives, by the expected templates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.stitcher.testing import build_stitched
from stitch_tools.compile.headers import find_onednn
from stitch_tools.graph.build import build_graph
from stitch_tools.models.task import Contract
from stitch_tools.worker.capture.graph_capture import capture
from stitch_tools.worker.runtime.native import NativeProgram, make_workspace
from tests.sampling import sampled

ONEDNN = find_onednn()
pytestmark = pytest.mark.skipif(not ONEDNN.found, reason="oneDNN is not installed: not measured")


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [item for part in value for item in flat(part)]


def check(
    module: nn.Module, inputs: list[torch.Tensor], folder: Path, families: set[str], limit: float = 2e-5
) -> None:
    """Runs the stitched program twice and compares it with the reference in double precision."""
    with torch.inference_mode():
        graph = build_graph(capture(module, inputs), Contract(), None)
        library, steps = build_stitched(graph, folder)
        assert families <= {step.family for step in steps}
        program = NativeProgram(str(library), [str(ONEDNN.shared_object)])
        tensors = [*module.named_parameters(), *module.named_buffers()]
        program.init([(name, tensor.detach()) for name, tensor in tensors], threads=2)
        planned = program.plan(inputs)
        outputs = [torch.full(shape, 7.0).to(dtype) for shape, dtype in planned.outputs]
        call = program.prepare(inputs, outputs, workspace=make_workspace(planned.workspace_bytes))
        program.call(call)
        program.call(call)
        exact = [x.double() if x.is_floating_point() else x for x in inputs]
        wanted = flat(module.double()(*exact))
        program.close()
    assert len(outputs) == len(wanted)
    for got, want in zip(outputs, wanted, strict=True):
        assert got.shape == want.shape
        scale = want.double().pow(2).mean().sqrt().clamp(min=1e-6)
        assert (got.double() - want.double()).abs().max() / scale < limit


class Residual(nn.Module):
    """conv + norm + skip + activation, as in residual networks."""

    def __init__(self, channels: int, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.silu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + x)


class Joined(nn.Module):
    """Pooling of several kinds, resizing, and a join along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, (3, 5), stride=(1, 2), padding=(1, 2))
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.tail = nn.Conv2d(14, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        small = functional.avg_pool2d(functional.max_pool2d(x, 3, 2, 1), 3, 1, 1, count_include_pad=False)
        wide = torch.cat([self.up(small), x], dim=1)
        smooth = functional.interpolate(self.tail(wide), size=(9, 7), mode="bilinear")
        return functional.adaptive_avg_pool2d(smooth, (2, 3))


class Sequence1d(nn.Module):
    """One-dimensional convolutions and group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 12, 5, padding=2, groups=2)
        self.norm = nn.GroupNorm(3, 12)
        self.back = nn.ConvTranspose1d(12, 4, 4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.leaky_relu(self.back(functional.gelu(self.norm(self.conv(x)))), 0.1)


def evaluated(module: nn.Module) -> nn.Module:
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 2.0)  # type: ignore[arg-type]
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    return module.eval()


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], set[str]]] = {
    "residual block that trains": (lambda: Residual(24), (3, 24, 9, 11), {"conv", "batch_norm"}),
    "residual block with constant norms": (lambda: evaluated(Residual(20, 5)), (2, 20, 8, 8), {"conv"}),
    "pooling, resizing, join": (
        lambda: Joined().eval(),
        (2, 3, 16, 20),
        {"conv", "pool", "upsample", "layout"},
    ),
    "one dimension": (lambda: Sequence1d().eval(), (3, 6, 40), {"conv", "group_norm"}),
    "image in, image out without a convolution": (
        lambda: nn.Sequential(nn.BatchNorm2d(7), nn.Hardtanh(0, 6), nn.MaxPool2d(2)),
        (4, 7, 10, 12),
        {"batch_norm", "pool"},
    ),
    "depthwise and pointwise": (
        lambda: evaluated(
            nn.Sequential(
                nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16, bias=False),
                nn.BatchNorm2d(16),
                nn.ReLU6(),
                nn.Conv2d(16, 40, 1),
                nn.Hardswish(),
            )
        ),
        (2, 16, 13, 13),
        {"conv"},
    ),
}


@pytest.mark.parametrize("case", sampled(CASES, 2))
def test_image_layers(case: str, tmp_path: Path) -> None:
    make, shape, families = CASES[case]
    torch.manual_seed(0)
    check(make(), [torch.randn(shape)], tmp_path, families)


class Recurrent(nn.Module):
    """Layer, last states and what follows."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps, state = self.layer(x)
        return torch.tanh(steps[:, -1]), state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize(
    "layer",
    sampled(
        (
            lambda: nn.GRU(10, 24, bidirectional=True, batch_first=True),
            lambda: nn.LSTM(10, 20, 2, batch_first=True),
            lambda: nn.RNN(10, 17, nonlinearity="relu", bias=False),
        ),
        3,
    ),
)
def test_recurrent_layers(layer: Callable[[], nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(Recurrent(layer()).eval(), [torch.randn(5, 9, 10)], tmp_path, {"rnn"})


class WrittenOut(nn.Module):
    """Attention as two products around a softmax, with one of three masks."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.join = nn.Linear(24, 72)
        self.register_buffer("hidden", torch.ones(13, 13, dtype=torch.bool).triu(1))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (3, 8)).transpose(1, 2) for part in self.join(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) * 8**-0.5
        if self.kind == "fill":
            scores = scores.masked_fill(self.hidden, float("-inf"))
        elif self.kind == "add":
            scores = scores + bias
        return (functional.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(x.shape)


class Library(nn.Module):
    """scaled_dot_product_attention with a mask of kept keys, and a causal one."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        masked = functional.scaled_dot_product_attention(q, k, k, attn_mask=keep)
        return masked, functional.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.3)


@pytest.mark.parametrize("kind", sampled(("fill", "add", "plain"), 3))
def test_attention_that_is_written_out(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(WrittenOut(kind).eval(), [torch.randn(2, 13, 24), torch.randn(3, 13, 13)], tmp_path, {"attention"})


def test_attention_of_the_library(tmp_path: Path) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 11, 16), torch.randn(2, 3, 11, 16)
    keep = torch.rand(2, 1, 11, 11) > 0.3
    keep[:, :, :, 0] = True
    check(Library().eval(), [q, k, keep], tmp_path, {"attention"})


class Tokens(nn.Module):
    """Embedding, classes at every place, loss."""

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.embed = nn.Embedding(50, 12)
        self.classes = nn.Linear(12, 9)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.classes(self.embed(tokens))
        loss = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=3, label_smoothing=self.smoothing
        )
        return loss, functional.nll_loss(torch.log_softmax(logits.mT, dim=1), targets, reduction="none")


@pytest.mark.parametrize("smoothing", sampled((0.1, 0.0), 2))
def test_embedding_and_losses(smoothing: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokens, targets = torch.randint(0, 50, (4, 6)), torch.randint(0, 9, (4, 6))
    check(Tokens(smoothing).eval(), [tokens, targets], tmp_path, {"embedding", "loss"})


class Bags(nn.Module):
    """Equal bags with padding, and ragged ones."""

    def __init__(self) -> None:
        super().__init__()
        self.equal = nn.EmbeddingBag(30, 12, mode="mean", padding_idx=0)
        self.ragged = nn.EmbeddingBag(30, 20, mode="sum")

    def forward(self, tokens: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(self.equal(tokens)), self.ragged(tokens.flatten(), offsets)


def test_pooled_embeddings(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokens, offsets = torch.randint(0, 30, (5, 8)), torch.tensor([0, 3, 3, 17])
    check(Bags().eval(), [tokens, offsets], tmp_path, {"embedding"})


class Rearranged(nn.Module):
    """Padding, cutting and pixel shuffling in both orders of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(5, 8, 3, padding="same")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = functional.pad(self.conv(functional.pad(x, (1, 2, 0, 3), value=0.5)), (-1, 0, 2, -2))
        return functional.pixel_shuffle(y, 2), functional.pixel_unshuffle(x * 2, 2)


def test_rearrangements(tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(Rearranged().eval(), [torch.randn(2, 5, 6, 8)], tmp_path, {"layout"})
