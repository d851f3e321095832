"""The oracle is the reference in fp64: same random numbers, widened casts, honest about what is not wide."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_tools.worker.random_streams import generator_state
from stitch_tools.worker.reference.load_reference import LoadedReference, ReferenceSource
from stitch_tools.worker.reference.oracle import OracleRun, run_oracle
from stitch_tools.worker.reference.reference_calls import ReferenceCall, call_reference


class Wrap(nn.Module):
    """A function as a module, with submodules that it may use."""

    def __init__(self, function: Any, **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> LoadedReference:
    folder = tmp_path_factory.mktemp("oracle")
    (folder / "unused_model.py").write_text("def Model(): ...\ndef get_inputs(): ...\n", encoding="utf-8")
    return LoadedReference(ReferenceSource(str(folder), "unused_model.py"))


def both(
    reference: LoadedReference, module: nn.Module, *args: torch.Tensor
) -> tuple[ReferenceCall, OracleRun, bool]:
    """The reference's call, the oracle's, and whether both consumed the generator alike."""
    call = call_reference(reference, module, args, forward_seed=7)
    oracle = run_oracle(module, args, forward_seed=7)
    return call, oracle, generator_state().same_as(call.generators_after)


def error(call: ReferenceCall, oracle: OracleRun) -> float:
    left, right = call.outputs.tensors[0].double(), oracle.outputs.tensors[0]
    return float((left - right).abs().max() / right.square().mean().sqrt())


@pytest.mark.parametrize(
    ("module", "shape", "length"),
    [
        (nn.Linear(64, 32), (8, 64), 64),
        (nn.Conv2d(6, 8, 3, padding=1, groups=2), (2, 6, 9, 9), 27),
        (nn.ConvTranspose2d(6, 4, 3, stride=2), (2, 6, 9, 9), 54),
        (nn.BatchNorm2d(4), (3, 4, 5, 5), 75),
        (nn.LayerNorm([7, 5]), (3, 7, 5), 35),
        (nn.GroupNorm(2, 4), (2, 4, 6, 6), 72),
        (nn.LSTM(8, 16, batch_first=True), (3, 5, 8), 16),
        (nn.GRU(8, 16, bidirectional=True), (5, 3, 8), 16),
        (nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (2, 7, 16), 32),
        (nn.Sequential(nn.GELU(), nn.Softmax(-1)), (4, 11), 11),
        (nn.AvgPool2d(3), (1, 2, 9, 9), 9),
        (nn.MaxPool2d(3), (1, 2, 9, 9), 1),
        (nn.MultiheadAttention(16, 4, batch_first=True), None, 16),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_common_modules_run_in_fp64_and_their_sums_are_counted(
    reference: LoadedReference, module: nn.Module, shape: tuple[int, ...] | None, length: int
) -> None:
    torch.manual_seed(0)
    args = (torch.randn(shape),) if shape else (torch.randn(2, 6, 16),) * 3
    call, oracle, same_generator = both(reference, module, *args)
    assert oracle.outputs.tensors[0].dtype == torch.float64
    assert oracle.strict_ops == ()
    assert same_generator
    assert 0 <= error(call, oracle) < 1e-5
    assert oracle.rounding[0].length == length
    assert oracle.rounding[0].eps == torch.finfo(torch.float32).eps


def test_the_module_and_its_buffers_are_left_alone(reference: LoadedReference) -> None:
    module = nn.BatchNorm1d(3)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    _, oracle, _ = both(reference, module, torch.randn(5, 3))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(value.dtype != torch.float64 for value in module.state_dict().values())
    assert oracle.buffers["running_mean"].dtype == torch.float64
    assert not torch.equal(oracle.buffers["running_mean"].float(), before["running_mean"])


class Scale(nn.Module):
    """One parameter of its own, which forward reads by attribute."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


def under_two_names(part: nn.Module) -> nn.Module:
    """`part` as a submodule, inside a Sequential, and in a dict."""
    inside = nn.Sequential(part, nn.ReLU(), part)
    return Wrap(lambda self, x: self.inside(x), part=part, inside=inside, more=nn.ModuleDict({"a": part}))


def recurrent_under_two_names() -> nn.Module:
    """A layer that keeps a list of its own weights beside them."""
    layer = nn.GRU(6, 6)
    return Wrap(lambda self, x: self.more[0](x)[0], part=layer, more=nn.ModuleList([layer]))


def tied(use: bool) -> nn.Module:
    """Two modules that share a weight; `use` makes forward read it through the second name, too."""
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return Wrap(lambda self, x: self.b(self.a(x)) if use else self.a(x), a=first, b=second)


def held(module: nn.Module) -> dict[str, tuple[int, type, torch.dtype, torch.Tensor]]:
    """Every parameter and buffer under every name: the object, its type, its bits."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: (id(value), type(value), value.dtype, value.detach().clone()) for name, value in named}


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (under_two_names(Scale(6)), (3, 6)),
        (under_two_names(nn.Conv2d(3, 3, 3)), (2, 3, 8, 8)),
        (under_two_names(nn.LayerNorm(6)), (3, 6)),
        (under_two_names(nn.BatchNorm1d(6)), (3, 6)),
        (recurrent_under_two_names(), (4, 2, 6)),
        (tied(True), (3, 6)),
        (tied(False), (3, 6)),
    ],
)
def test_what_is_registered_under_several_names_runs_in_fp64_and_comes_back(
    reference: LoadedReference, module: nn.Module, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    before, alone = held(module), call_reference(reference, module, (x,), forward_seed=7)
    call, oracle, _ = both(reference, module, x)
    assert oracle.outputs.tensors[0].dtype == torch.float64
    assert 0 < error(call, oracle) < 1e-6
    after = held(module)
    assert after.keys() == before.keys()
    for name, (which, kind, dtype, bits) in before.items():
        assert after[name][:3] == (which, kind, dtype), name
        assert torch.equal(after[name][3], bits), name
    again = call_reference(reference, module, (x,), forward_seed=7)
    assert torch.equal(again.outputs.tensors[0], alone.outputs.tensors[0])


def test_a_module_comes_back_also_when_its_forward_fails_in_fp64() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        assert self.inside(x).dtype == torch.float32
        return x

    part = Scale(6)
    module = Wrap(forward, part=part, inside=nn.Sequential(part))
    weight = part.w
    with pytest.raises(AssertionError):
        run_oracle(module, (torch.randn(3, 6),), forward_seed=7)
    assert part.w is weight
    assert weight.dtype == torch.float32


def test_a_buffer_that_forward_replaces_is_the_oracles_own(reference: LoadedReference) -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.ones(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = self.mean * 0.9 + x.mean(0) / 10
            return x - self.mean

    module = Mean()
    _, oracle, _ = both(reference, module, torch.randn(3, 6))
    assert oracle.buffers["mean"].dtype == torch.float64
    assert not torch.equal(oracle.buffers["mean"].float(), torch.ones(6))
    assert torch.equal(module.get_buffer("mean"), torch.ones(6))


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: functional.dropout(x, 0.3),
        lambda self, x: x + torch.randn_like(x),
        lambda self, x: x + torch.randn(x.shape) * torch.rand(1),
        lambda self, x: x * torch.bernoulli(torch.full_like(x, 0.4)),
        lambda self, x: x * torch.empty_like(x).uniform_(1, 2),
        lambda self, x: functional.rrelu(x, training=True) * 1.0,
        lambda self, x: x.bfloat16().float() + torch.randn(x.shape, dtype=torch.bfloat16),
        lambda self, x: functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.2),
    ],
)
def test_random_numbers_are_those_of_the_reference(reference: LoadedReference, function: Any) -> None:
    torch.manual_seed(0)
    call, oracle, same_generator = both(reference, Wrap(function), torch.randn(40, 24))
    assert same_generator
    assert error(call, oracle) < 2e-2 if "bfloat16" in str(function) else error(call, oracle) < 1e-2


def test_dropout_is_not_rounded(reference: LoadedReference) -> None:
    call, oracle, _ = both(reference, nn.Dropout(0.3), torch.randn(40, 24))
    assert 0 < error(call, oracle) < 1e-6


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: self.part(x),
        lambda self, x: x.type_as(torch.zeros(1, dtype=torch.bfloat16)).float(),
    ],
)
def test_casts_that_nobody_sees_are_left_out_of_the_oracle_too(
    reference: LoadedReference, function: Any
) -> None:
    def autocast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x.t()).float()

    torch.manual_seed(0)
    call, oracle, _ = both(reference, Wrap(function, part=autocast), torch.randn(12, 12))
    assert oracle.outputs.tensors[0].dtype == torch.float64
    assert 1e-4 < error(call, oracle) < 0.1


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: x.half().float(),
        lambda self, x: (x.to(torch.bfloat16) * 3).to(torch.float32),
        lambda self, x: x.sum(dim=0, dtype=torch.float16).float(),
        lambda self, x: torch.zeros(x.shape, dtype=torch.bfloat16).add_(x).float(),
    ],
)
def test_casts_and_narrow_factories_are_widened(reference: LoadedReference, function: Any) -> None:
    torch.manual_seed(0)
    call, oracle, _ = both(reference, Wrap(function), torch.randn(12, 12))
    assert oracle.outputs.tensors[0].dtype == torch.float64
    assert 1e-4 < error(call, oracle) < 0.1
    assert oracle.rounding[0].eps >= torch.finfo(torch.float16).eps


def test_tensors_in_plain_attributes_take_part_and_come_back(reference: LoadedReference) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.state = self.state + x / 3
        return self.state * self.table[0]

    module = Wrap(forward, state=torch.zeros(5), table=[torch.full((5,), 0.1)])
    call, oracle, _ = both(reference, module, torch.randn(5))
    assert 0 < error(call, oracle) < 1e-6
    assert torch.equal(vars(module)["state"], torch.zeros(5, dtype=torch.float32))


def test_integers_that_are_divided_are_divided_in_fp64(reference: LoadedReference) -> None:
    call, oracle, _ = both(reference, Wrap(lambda self, x: x / 3), torch.arange(1, 50))
    assert 0 < error(call, oracle) < 1e-6
    assert torch.equal(oracle.outputs.tensors[0], torch.arange(1, 50) / torch.tensor(3.0).double())


def test_writes_through_views_are_seen(reference: LoadedReference) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(3, 4)
        out[:, 1] = x / 3
        out.view(-1)[0] += 1
        return out

    call, oracle, _ = both(reference, Wrap(forward), torch.randn(3))
    assert 0 < error(call, oracle) < 1e-6


def test_a_reference_in_fp64_is_its_own_oracle(reference: LoadedReference) -> None:
    module = nn.Linear(8, 8).double()
    call, oracle, _ = both(reference, module, torch.randn(2, 8, dtype=torch.float64))
    assert error(call, oracle) == 0
    assert oracle.rounding[0].eps == torch.finfo(torch.float64).eps


def test_an_operation_without_fp64_runs_strictly_and_is_named(
    reference: LoadedReference, tmp_path: Path
) -> None:
    library = torch.library.Library("stitch_test", "DEF")
    library.define("narrow(Tensor x) -> Tensor")

    def narrow(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise NotImplementedError("narrow is not implemented for 'Double'")
        return x * 2

    library.impl("narrow", narrow, "CPU")
    module = Wrap(lambda self, x: torch.ops.stitch_test.narrow(x / 3))
    call, oracle, _ = both(reference, module, torch.randn(5))
    assert oracle.strict_ops == ("stitch_test::narrow",)
    assert oracle.outputs.tensors[0].dtype == torch.float64
    assert error(call, oracle) < 1e-6


def test_the_format_of_matrix_products_and_convolutions_follows_the_contract(
    reference: LoadedReference,
) -> None:
    _, product, _ = both(reference, nn.Linear(16, 4), torch.randn(2, 16))
    _, convolution, _ = both(reference, nn.Conv1d(4, 4, 3), torch.randn(2, 4, 16))
    assert product.rounding[0].floor("fp32", "tf32") < 1e-5 < product.rounding[0].floor("tf32", "fp32")
    assert (
        convolution.rounding[0].floor("tf32", "fp32") < 1e-5 < convolution.rounding[0].floor("fp32", "tf32")
    )


WITHOUT_COMPILER = """
import sys
import torch
from stitch_tools.worker.reference.oracle import run_oracle
oracle = run_oracle(torch.nn.Linear(4, 4), (torch.randn(2, 4),), forward_seed=1)
print(oracle.outputs.tensors[0].dtype, "torch._dynamo" in sys.modules)
"""


def test_no_compiler_is_imported_for_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["torch.float64", "False"]


@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")  # so says torch of Python 3.13.0
def test_a_reference_that_compiles_itself_runs_in_fp64(reference: LoadedReference) -> None:
    compiled = torch.compile(lambda x: torch.nn.functional.gelu(x) * 3.0, backend="eager")
    call, oracle, same = both(reference, Wrap(lambda module, x: compiled(x)), torch.randn(8, 16))
    assert oracle.outputs.tensors[0].dtype == torch.float64
    assert same
    assert 0.0 < error(call, oracle) < 1e-6
