"""References as people write them: state in attributes, outputs in classes, packages."""

import re
from pathlib import Path

import pytest

from stitch_tools.errors import TaskError
from stitch_tools.graph import capture_graph
from stitch_tools.judge.check import check_program
from stitch_tools.judge.trial import Trial
from stitch_tools.models.verdict import Check
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import make_task, model_new
from tests.tools.task_support import load, write

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
INPUTS = """
def get_inputs():
    return [torch.randn(16, 8)]
"""
HIDDEN = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.randn(16, 32)
        self.step, self.out = nn.Linear(8 + 32, 32), nn.Linear(32, 4)
    def forward(self, x):
        self.hidden = self.hidden.to(x.device)
        self.hidden = torch.tanh(self.step(torch.cat((x, self.hidden), 1)))
        return self.out(self.hidden)
"""
COUNTER = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.linear = 0, nn.Linear(8, 4)
    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls
"""
GROWING = """
class Cache:
    def __init__(self):
        self.rows = None
    def add(self, rows):
        self.rows = rows if self.rows is None else torch.cat([self.rows, rows])
        return self.rows
class Layer(nn.Module):
    def __init__(self, cache):
        super().__init__()
        self.cache, self.linear = cache, nn.Linear(8, 8)
    def forward(self, x):
        return self.cache.add(self.linear(x))[-16:] + len(self.cache.rows)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        cache = Cache()
        self.layers = nn.Sequential(Layer(cache), Layer(cache))
    def forward(self, x):
        return self.layers(x)
"""
POWER_ITERATION = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))
    def forward(self, x):
        return self.normed(self.layer(x))
"""
SEEDED = """
TABLE, FACTOR = torch.linspace(0, 1, 8), 3.0
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        torch.manual_seed(2)
        weight = torch.randn(8, 4, device=x.device)
        return (self.linear(x) + TABLE.to(x.device) * FACTOR) @ weight
def get_inputs():
    torch.manual_seed(3)
    return [torch.randn(16, 8)]
"""
VIEWS = """
class Model(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[:, 0] = 0
        y[1:3].mul_(2)
        y.view(-1)[::2] += 1
        return y, torch.einsum("bi,bj->ij", y, x), torch.einsum("ii->i", y[:8])
"""
CLASSES = """
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import NamedTuple, Optional
Pair = namedtuple("Pair", "a b")
class Typed(NamedTuple):
    first: torch.Tensor
    rest: list
class Fields(OrderedDict):
    def __getattr__(self, name):
        return self[name]
class Batch(UserDict):
    pass
@dataclass
class Result:
    logits: torch.Tensor
    pair: Pair
    batch: Batch
    hidden: Optional[torch.Tensor] = None
    count: int = 2
class Model(nn.Module):
    def forward(self, pair, more):
        x = pair.first + pair.rest[0]
        return Result(x, Pair(x + 1, [x * 2]), Batch(k=x - 1, f=Fields(z=x.sum(0)))), more["y"] * 2
def get_inputs():
    return [Typed(torch.randn(16, 8), [torch.randn(16, 8)]), {"y": torch.randn(16)}]
"""


def judged(session: TargetSession, tmp_path: Path, reference: str, program: str | None = None) -> Check:
    """The check of a program, or of the reference's own copy; the reference is captured before it."""
    store = Store(tmp_path)
    text = HEAD + reference + ("" if "def get_inputs" in reference else INPUTS)
    task = make_task(store, text, init_inputs=None)
    copy = re.sub(r"\bModel\b", "ModelNew", text) if program is None else HEAD + program
    with ReferenceServer(session, task, store) as server:
        facts = server.observe()
        graph = capture_graph(server.child, task, facts, None)
        assert graph.source == "export", graph.reason
        trial = Trial(
            task=task,
            program=model_new(store, copy),
            build=None,
            session=session,
            store=store,
            facts=facts,
            reference=server,
        )
        return check_program(trial)


@pytest.mark.parametrize("reference", [HIDDEN, COUNTER, GROWING, POWER_ITERATION, SEEDED, VIEWS, CLASSES])
def test_a_copy_of_the_reference_is_accepted(
    one_thread: TargetSession, tmp_path: Path, reference: str
) -> None:
    check = judged(one_thread, tmp_path, reference)
    assert check.status == "accepted", check.message
    assert "weak" not in check.flags


def test_a_program_without_the_state_may_compute_the_first_call(
    one_thread: TargetSession, tmp_path: Path
) -> None:
    stateless = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
    def forward(self, x):
        return self.linear(x)
"""
    assert judged(one_thread, tmp_path, COUNTER, stateless).status == "accepted"


def test_state_that_the_reference_does_not_have_is_not_reset(
    one_thread: TargetSession, tmp_path: Path
) -> None:
    counting = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.others = nn.Linear(8, 4), 0
    def forward(self, x):
        self.others += 1
        return self.linear(x) * self.others
"""
    assert judged(one_thread, tmp_path, COUNTER, counting).status == "incorrect"


def test_results_may_come_in_another_class_of_the_same_kind(
    one_thread: TargetSession, tmp_path: Path
) -> None:
    plain = """
class ModelNew(nn.Module):
    def forward(self, pair, more):
        x = pair.first + pair.rest[0]
        result = {"logits": x, "pair": (x + 1, [x * 2]), "batch": {"k": x - 1, "f": {"z": x.sum(0)}}}
        return {**result, "hidden": None, "count": 2}, more["y"] * 2
"""
    assert judged(one_thread, tmp_path, CLASSES, plain).status == "accepted"


def test_state_is_named_with_the_attribute_s_path(one_thread: TargetSession, tmp_path: Path) -> None:
    store = Store(tmp_path)
    task = make_task(store, HEAD + GROWING + INPUTS, init_inputs=None)
    with ReferenceServer(one_thread, task, store) as server:
        facts = server.observe()
    assert facts.changed_attributes == ("layers.0.cache", "layers.1.cache")
    assert facts.deterministic
    assert any("layers.0.cache" in warning for warning in facts.warnings)


@pytest.mark.parametrize("again", ["Model", "INSTANCE"])
def test_a_module_in_a_package_that_exports_it_again_is_imported_like_by_name(
    one_thread: TargetSession, tmp_path: Path, again: str
) -> None:
    model = "from .parts import Scale\n\nclass Model(Scale):\n    pass\n\nINSTANCE = Model()\n\n" + INPUTS
    part = (
        "class Scale(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.randn(8))\n"
        "    def forward(self, x):\n"
        "        return x * self.weight\n"
    )
    files = {
        "pack/__init__.py": "from .inner import Model\n",
        "pack/inner/__init__.py": "from .model import INSTANCE, Model\n__all__ = ['Model']\n",
        "pack/inner/model.py": HEAD + model,
        "pack/inner/parts.py": HEAD + part,
    }
    store = Store(tmp_path / "store")
    task = load(write(tmp_path / "project", files), f"pack/inner/model.py:{again}", store)
    with ReferenceServer(one_thread, task, store) as server:
        assert [row.name for row in server.observe().parameters] == ["weight"]
        first, second = server.set_weights(), server.set_weights()
    assert first.generator != second.generator


@pytest.mark.parametrize("late", [False, True])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    one_thread: TargetSession, tmp_path: Path, late: bool
) -> None:
    use = "import packageless.parts as parts"
    reference = f"{'' if late else use}\nclass Model(nn.Module):\n    def forward(self, x):\n"
    reference += f"        {use if late else 'pass'}\n        return x\n"
    fault = _fault(one_thread, tmp_path, reference)
    assert "No module named 'packageless'" in fault.message
    assert f"{one_thread.interpreter.path} -m pip install packageless" in str(fault.hint)


@pytest.mark.parametrize("place", ["file", "constructor", "forward", "inputs"])
def test_a_file_that_asks_for_cuda_on_the_cpu_is_told_so_in_a_sentence(
    one_thread: TargetSession, tmp_path: Path, place: str
) -> None:
    asks = {
        name: 'torch.ones(8, device="cuda")' if name == place else "0"
        for name in ("file", "constructor", "forward", "inputs")
    }
    reference = f"""
X = {asks["file"]}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.y = {asks["constructor"]}
    def forward(self, x):
        return x + {asks["forward"]}
def get_inputs():
    return [torch.ones(8) + {asks["inputs"]}]
"""
    fault = _fault(one_thread, tmp_path, reference)
    assert re.match(
        r"reference.py:\d+: the reference asks for a CUDA device, and is judged on the cpu\n", fault.message
    )


def _fault(session: TargetSession, tmp_path: Path, reference: str) -> TaskError:
    store = Store(tmp_path)
    text = HEAD + reference + ("" if "def get_inputs" in reference else INPUTS)
    task = make_task(store, text, init_inputs=None)
    with pytest.raises(TaskError) as fault, ReferenceServer(session, task, store) as server:
        server.observe()
    return fault.value


KERNEL = """
def ref_kernel(data):
    a, b = data
    return a @ b + a.shape[0]

def generate_input(m: int = 16, n: int = 8, k: int = 24, *, seed: int):
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(m, k, generator=draws), torch.randn(k, n, generator=draws)
"""


@pytest.mark.parametrize(("result", "status"), [("a @ b + len(a)", "accepted"), ("a @ b", "incorrect")])
def test_a_function_of_one_argument_and_its_submission_load(
    one_thread: TargetSession, tmp_path: Path, result: str, status: str
) -> None:
    store = Store(tmp_path / "store")
    task = load(write(tmp_path / "project", {"reference.py": HEAD + KERNEL}), "reference.py", store)
    assert (task.entry, task.inputs) == ("ref_kernel", "generate_input")
    program = f"def custom_kernel(data):\n    a, b = data\n    return {result}\n"
    with ReferenceServer(one_thread, task, store) as server:
        facts = server.observe()
        assert [row.name for row in facts.inputs] == ["0.0", "0.1"]
        assert facts.depends_on_inputs
        trial = Trial(
            task=task,
            program=model_new(store, program),
            build=None,
            session=one_thread,
            store=store,
            facts=facts,
            reference=server,
        )
        assert check_program(trial).status == status


def test_sizes_that_an_input_maker_needs_are_asked_for(tmp_path: Path) -> None:
    text = HEAD + KERNEL.replace("m: int = 16", "m: int").replace("n: int = 8, k: int = 24", "n: int, k: int")
    project = write(tmp_path / "project", {"reference.py": text})
    with pytest.raises(TaskError, match=r"`generate_input` needs arguments \(m, n, k, seed\)") as fault:
        load(project, "reference.py", Store(tmp_path / "store"))
    assert "get_inputs() that returns [generate_input(...)]" in str(fault.value.hint)
