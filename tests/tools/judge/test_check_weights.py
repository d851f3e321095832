"""How a program may get its weights: constructed from the seed, loaded by name, or both."""

import pytest

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.models.verdict import Check
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import checked, make_task, model_new, noted

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
REFERENCE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
def get_inputs():
    return [torch.randn(16, 8)]
def get_init_inputs():
    return []
"""
PROGRAM = """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, 8))
        self.bias = nn.Parameter(torch.full((8,), torch.nan))

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        {forward}
"""
DENSE = "h = torch.relu(F.linear(x, self.first.weight, self.first.bias))"
FORWARD = f"{DENSE}; return F.linear(h, self.second.weight, self.second.bias)"
SEEDED = "self.first = nn.Linear(8, 8); self.second = nn.Linear(8, 8)"
ANOTHER_ORDER = "self.second = nn.Linear(8, 8); self.first = nn.Linear(8, 8)"
EMPTY = "self.first = Layer(); self.second = Layer()"
TURNED = f"{SEEDED}; self.second.weight = nn.Parameter(self.second.weight.detach().t().contiguous())"
PACK = "self.packed = self.second.weight.detach().t().contiguous()"
PACKED = f"{SEEDED}; {PACK}"
HOOKED = f"""{PACKED}
        def pack(self, keys):
            {PACK}
        self.register_load_state_dict_post_hook(pack)"""
FROM_PACKED = f"{DENSE}; return h @ self.packed + self.second.bias"


class WeightsSetup:
    """A warm session."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store

    def check(self, init: str, forward: str = FORWARD) -> Check:
        """A program with this constructor and forward."""
        source = HEAD + PROGRAM.format(init=init, forward=forward)
        task = make_task(self.store, HEAD + REFERENCE)
        options = CheckOptions(structured=False, static=False)
        return checked(self.session, self.store, task, model_new(self.store, source), options)


@pytest.fixture(scope="module")
def setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> WeightsSetup:
    return WeightsSetup(one_thread, Store(tmp_path_factory.mktemp("weights") / "store"))


@pytest.mark.parametrize(
    ("init", "forward", "notes"),
    [
        (SEEDED, FORWARD, set[str]()),
        (ANOTHER_ORDER, FORWARD, {"weights_loaded"}),
        (EMPTY, FORWARD, {"weights_loaded"}),
        (PACKED, FROM_PACKED, {"weights_not_reloadable"}),
        (HOOKED, FROM_PACKED, set[str]()),
        (TURNED, f"{DENSE}; return h @ self.second.weight + self.second.bias", {"weights_not_reloadable"}),
    ],
)
def test_each_honest_way_to_weights_is_accepted_and_named(
    setup: WeightsSetup, init: str, forward: str, notes: set[str]
) -> None:
    check = setup.check(init, forward)
    assert check.status == "accepted", check.message
    assert check.work is not None
    assert check.work.outputs_right
    assert set(noted(check)) - {"pytorch_share"} == notes


def test_weights_that_are_packed_and_made_in_another_order_fail_both_ways(setup: WeightsSetup) -> None:
    assert setup.check(f"{ANOTHER_ORDER}; {PACK}", FROM_PACKED).status == "incorrect"


@pytest.mark.parametrize("init", [SEEDED, ANOTHER_ORDER])
def test_a_program_that_leaves_a_weight_out_is_incorrect_however_it_gets_them(
    setup: WeightsSetup, init: str
) -> None:
    check = setup.check(init, f"{DENSE}; return F.linear(h, self.second.weight)")
    assert check.status == "incorrect", check.message


def test_what_fails_after_other_weights_came_in_place_alone_is_a_note(setup: WeightsSetup) -> None:
    once = "self.seen = getattr(self, 'seen', self.first.weight._version)"
    refusing = f"{once}; assert self.seen == self.first.weight._version, 'frozen'; {FORWARD}"
    check = setup.check(SEEDED, refusing)
    assert check.status == "accepted", check.message
    assert "weights_not_reloadable" in noted(check)
