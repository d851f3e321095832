"""Habits of published programs that harm nobody, and kernels that do no work where they are judged."""

import pytest

from stitch_tools.judge.verdict import verdict_of
from stitch_tools.models.verdict import Check
from stitch_tools.run import reference_server
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import checked, make_task, model_new

HEAD = "import ctypes\nimport os\nimport subprocess\nimport torch\nfrom torch import nn\n"
REFERENCE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 64)
    def forward(self, x):
        return self.fc(x)
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""
# The kernel is built by a compiler that is called at import, and reached by its address, as `nvcc` often is.
KERNEL = """
os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0"
os.environ["CUDA_HOME"] = "/usr/local/cuda"
os.environ["MAX_JOBS"] = "2"
SOURCE = r'''
extern "C" void linear(const float* x, const float* w, const float* b, float* y, int rows) {
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < 64; ++c) {
      float sum = b[c];
      for (int k = 0; k < 64; ++k) sum += x[r * 64 + k] * w[c * 64 + k];
      y[r * 64 + c] = sum;
    }
}
'''
FOLDER = os.environ.get("TMPDIR", "/tmp")
with open(os.path.join(FOLDER, "k.cpp"), "w") as file:
    file.write(SOURCE)
LIBRARY = os.path.join(FOLDER, "k.so")
subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", LIBRARY, os.path.join(FOLDER, "k.cpp")], check=True)
KERNEL = ctypes.CDLL(LIBRARY)

def linear(x, w, b):
    y = torch.empty(x.shape[0], 64)
    at = lambda t: ctypes.c_void_p(t.data_ptr())
    x = x.contiguous()
    KERNEL.linear(at(x), at(w), at(b), at(y), ctypes.c_int(x.shape[0]))
    return y

class ModelNew(nn.Module):
    def __init__(self):
        {init}
        super().__init__()
        self.fc = nn.Linear(64, 64)
        {after}
    def {call}(self, x):
        {forward}
"""
DIRECT = "return linear(x, self.fc.weight, self.fc.bias)"


class HabitSetup:
    """A warm session."""

    def __init__(self, session: TargetSession, store: Store) -> None:
        self.session, self.store = session, store

    def check(self, forward: str, *, init: str = "pass", after: str = "pass", call: str = "forward") -> Check:
        """A program of these parts."""
        parts = {"{init}": init, "{after}": after, "{call}": call, "{forward}": forward}
        text = KERNEL
        for name, part in parts.items():
            text = text.replace(name, part.replace("\n", "\n        "))
        task = make_task(self.store, HEAD + REFERENCE)
        return checked(self.session, self.store, task, model_new(self.store, HEAD + text))


@pytest.fixture(scope="module")
def setup(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> HabitSetup:
    return HabitSetup(one_thread, Store(tmp_path_factory.mktemp("habits") / "store"))


KEEP = "kept = nn.init.kaiming_uniform_, nn.init.uniform_\n"


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"call": "__call__"},
        {
            "init": f"{KEEP}nn.init.kaiming_uniform_ = nn.init.uniform_ = lambda tensor, *a, **k: tensor",
            "after": "nn.init.kaiming_uniform_, nn.init.uniform_ = kept",
        },
    ],
)
def test_habits_that_harm_nobody_count(setup: HabitSetup, parts: dict[str, str]) -> None:
    check = setup.check(DIRECT, **parts)
    assert check.status == "accepted", check.message
    assert verdict_of(check).counts, verdict_of(check).reasons


@pytest.mark.parametrize(
    "patch", ["torch.allclose = print", "torch.cuda.Event = print", "torch.randn = torch.ones"]
)
def test_patches_of_what_a_judge_uses_stay_fatal(setup: HabitSetup, patch: str) -> None:
    assert setup.check(DIRECT, init=patch).status == "rejected_cheat"


@pytest.mark.parametrize(
    "forward",
    [
        f"try:\n    raise RuntimeError('none')\n    {DIRECT}\nexcept RuntimeError:\n    return self.fc(x)",
        f"try:\n    return self.fc(x)\nexcept RuntimeError:\n    {DIRECT}",
        f"if not self.training:\n    {DIRECT}\nreturn self.fc(x)",
    ],
)
def test_a_kernel_that_only_another_branch_reaches_does_not_count(setup: HabitSetup, forward: str) -> None:
    check = setup.check(forward)
    assert check.status == "accepted", check.message
    assert "partial" in check.flags
    assert not verdict_of(check).counts


SEEDS = "torch.initial_seed()"


@pytest.mark.parametrize("test", [f"{SEEDS} >= 2**32", f"{SEEDS} < 2**10"])
def test_the_size_of_a_seed_does_not_tell_that_somebody_judges(setup: HabitSetup, test: str) -> None:
    """What a program reads is of a size that users choose: no such test holds in all rounds, or in none."""
    sizes = {reference_server._users_seed().bit_length() for _ in range(300)}  # pyright: ignore[reportPrivateUsage]
    assert max(sizes) <= 31
    assert min(sizes) <= 10
    honest_when_judged = f"if {test}:\n    {DIRECT}\nreturn torch.zeros_like(x)"
    assert setup.check(honest_when_judged).status in ("incorrect", "rejected_cheat")
