"""How far off an honest program may be: other formulas and fast functions pass, coarser products do not."""

import pytest

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.models.task import Contract, Tolerance
from stitch_tools.models.verdict import Check
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import checked, make_task, model_new

HEAD = "import math\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
BODY = """
class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 48)
        self.conv = nn.Conv2d(8, 6, 3)
    def forward(self, x):
{forward}
"""
MAKERS = "def get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return []\n"
FAST = """
def fast(values):
    noise = torch.rand(values.shape, generator=torch.Generator().manual_seed(7))
    return values * (1 + 2.0**-19 * (2 * noise - 1))
def rounded(values, bits):
    drop = 23 - bits
    raw = values.detach().contiguous().view(torch.int32)
    return ((raw + (1 << (drop - 1))) >> drop << drop).view(torch.float32)
def cut(values, bits):
    drop = 23 - bits
    return (values.detach().contiguous().view(torch.int32) >> drop << drop).view(torch.float32)
"""
ROWS = "torch.randn(32, 64)"
IMAGES = "torch.randn(2, 8, 9, 9)"


class BoundSetup:
    """A warm session."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store

    def check(
        self, reference: str, program: str, inputs: str = ROWS, contract: Contract | None = None
    ) -> Check:
        """A program with this forward against a reference with that one."""
        texts = [
            BODY.format(name=name, forward="".join(f"        {line}\n" for line in _lines(body)))
            for name, body in (("Model", reference), ("ModelNew", program))
        ]
        task = make_task(
            self.store,
            HEAD + texts[0] + MAKERS.format(inputs=inputs),
            contract=contract or Contract(),
        )
        options = CheckOptions(trace=False, static=False)
        return checked(self.session, self.store, task, model_new(self.store, HEAD + FAST + texts[1]), options)


def _lines(body: str) -> list[str]:
    return body.splitlines() if "return" in body else [f"return {body}"]


@pytest.fixture(scope="module")
def setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> BoundSetup:
    return BoundSetup(one_thread, Store(tmp_path_factory.mktemp("bound") / "store"))


INNER = "u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)\n"
HONEST = {
    "tanh-GELU by a fast exponential": (
        "F.gelu(x, approximate='tanh')",
        f"{INNER}return x * (1 - 1 / (fast(torch.exp(2 * u)) + 1))",
    ),
    "plain functions": (
        "torch.cat([x.tanh(), x.sigmoid(), x.abs().log1p()], 1)",
        "e = fast(torch.exp(2 * x))\n"
        "return torch.cat([1 - 2 / (e + 1), 1 / (1 + fast(torch.exp(-x))), fast(torch.log(1 + x.abs()))], 1)",
    ),
    "softmax": (
        "x.softmax(-1)",
        "p = fast(torch.exp(x - x.amax(-1, keepdim=True)))\nreturn p / p.cumsum(-1)[:, -1:]",
    ),
    "layer norm in one pass": (
        "F.layer_norm(x, (64,))",
        "m = x.mean(-1, keepdim=True)\nv = (x.square().mean(-1, keepdim=True) - m * m).clamp_min(0)\n"
        "return (x - m) * torch.rsqrt(v + 1e-5)",
    ),
    "product in sequence": (
        "self.fc(x)",
        "y = self.fc.bias.repeat(len(x), 1)\nfor k in range(64):\n"
        "    y = y + x[:, k, None] * self.fc.weight[:, k]\nreturn y",
    ),
    "three products of 10 bits": (
        "F.gelu(self.fc(x))",
        "a, b = rounded(x, 10), rounded(self.fc.weight, 10)\nc, d = x - a, self.fc.weight - b\n"
        "return F.gelu(a @ b.T + (a @ d.T + c @ b.T) + self.fc.bias)",
    ),
}


@pytest.mark.parametrize("case", HONEST)
def test_fp32_that_is_computed_otherwise_is_right(setup: BoundSetup, case: str) -> None:
    check = setup.check(*HONEST[case])
    assert check.status == "accepted", check.message


@pytest.mark.parametrize(
    ("reference", "program"),
    [
        ("F.gelu(x)", "F.gelu(x.half()).float()"),
        ("F.gelu(x)", "F.gelu(x, approximate='tanh')"),
        ("x.tanh()", "x.tanh().bfloat16().float()"),
        ("x * 2", "rounded(x * 2, 15)"),
        ("x.relu()", "rounded(x.relu(), 15)"),
        ("x.softmax(-1)", "x.half().softmax(-1).float()"),
        ("F.layer_norm(x, (64,), eps=1e-5)", "F.layer_norm(x, (64,), eps=1e-6)"),
        ("x.var(-1)", "(x.square().mean(-1) - x.mean(-1).square()) * 64 / 63"),
    ],
)
def test_coarser_functions_and_other_constants_are_wrong_and_no_products(
    setup: BoundSetup, reference: str, program: str
) -> None:
    check = setup.check(reference, program)
    assert check.status == "incorrect", check.message
    assert check.message.startswith("draw ")


PRODUCT = "F.linear({way}(x, {bits}), {way}(self.fc.weight, {bits}), self.fc.bias)"


@pytest.mark.parametrize(
    ("way", "bits", "kind", "allow"),
    [
        ("rounded", 10, "TF32 (or fp16)", "matmul=tf32"),
        ("cut", 10, "TF32 (or fp16)", "matmul=tf32"),
        ("rounded", 7, "bf16", "matmul=bf16"),
    ],
)
def test_coarser_products_are_named_with_the_contract_that_allows_them(
    setup: BoundSetup, way: str, bits: int, kind: str, allow: str
) -> None:
    program = PRODUCT.format(way=way, bits=bits)
    check = setup.check("self.fc(x)", program)
    assert check.status == "incorrect"
    assert check.message.startswith(
        f"errors look like {kind} products, which the contract does not allow; with {allow} and rtol="
    )
    assert " the draws that were wrong are right: draw " in check.message
    wrong = [row for draw in check.draws for row in draw.outputs if row.problem]
    assert {row.allow for row in wrong} == {allow}
    rtol = max(row.allow_rtol or 0 for row in wrong)
    tolerance = Tolerance(rtol=rtol, atol=1e-5)
    precision = {"matmul_precision": allow.partition("=")[2], "tolerance": tolerance}
    allowed = Contract.model_validate(precision)
    assert setup.check("self.fc(x)", program, contract=allowed).status == "accepted"


def test_coarser_convolutions_are_named_too(setup: BoundSetup) -> None:
    program = "F.conv2d(rounded(x, 10), rounded(self.conv.weight, 10), self.conv.bias)"
    check = setup.check("self.conv(x)", program, IMAGES)
    assert check.message.startswith("errors look like TF32 (or fp16) products")
    assert "conv=tf32" in check.message


def test_a_product_without_its_bias_is_no_coarser_product(setup: BoundSetup) -> None:
    check = setup.check("self.fc(x)", "F.linear(x, self.fc.weight)")
    assert check.status == "incorrect"
    assert check.message.startswith("draw own-1: ")


@pytest.mark.parametrize(
    ("reference", "program", "inputs"),
    [
        ("x.amax(-1)", "x.amax(-1).clamp_min(0)", "torch.rand(32, 64)"),
        ("x.amax((0, 1))", "x.amax((0, 1)).clamp_min(0)", ROWS),
        ("x.amin((0, 1))", "x.amin((0, 1)).clamp_max(0)", ROWS),
        ("F.max_pool2d(x, 3, 2, 1)", "F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)", IMAGES),
        ("F.max_pool2d(x, 3, 2, 1)", "F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)", "torch.rand(2, 8, 9, 9)"),
    ],
)
def test_an_extreme_that_starts_from_zero_is_wrong_where_all_values_have_one_sign(
    setup: BoundSetup, reference: str, program: str, inputs: str
) -> None:
    assert setup.check(reference, reference, inputs).status == "accepted"
    check = setup.check(reference, program, inputs)
    assert check.status == "incorrect", check.message
