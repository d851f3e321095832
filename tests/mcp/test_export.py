"""A certified program as a package: built, called and refused in processes that cannot import stitch-mcp."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stitch_mcp.api import solve
from stitch_mcp.exports import ExportedProgram, export_program
from stitch_mcp.kernelbench_export import export_kernelbench
from stitch_tools.errors import UsageError
from stitch_tools.models.verdict import DrawResult
from stitch_tools.run.session import TargetSession
from tests.mcp.cli_support import call
from tests.mcp.test_program_loading import PARTIAL, certificate_of

# A reference with weights, a helper module beside it, and constructor arguments.
REFERENCE = """
import torch
from helper import activation


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, 24)

    def forward(self, x):
        return activation(self.linear(x))


def get_init_inputs():
    return [16]


def get_inputs():
    return [torch.randn(8, 16)]
"""
ALONE = REFERENCE.replace("from helper import activation\n", "activation = torch.relu\n")
HELPER = "import torch\n\n\ndef activation(x):\n    return torch.relu(x)\n"
PYTHON_PROGRAM = """
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, 24)

    def forward(self, x):
        return torch.addmm(self.linear.bias, x, self.linear.weight.t()).clamp_min(0)
"""
# Refuses to find anything of ours, so that only what lies in the package is used.
BEGIN = """
import sys
import warnings

import torch


class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("stitch_mcp", "stitch_tools", "stitch_planner", "pydantic"):
            raise ImportError(f"{name} must not be needed")


sys.meta_path.insert(0, Forbidden())
import fast

torch.manual_seed(7)
model = fast.load().eval()
plain = type(model).__mro__[1]
x = torch.randn(8, 16)


def expected(value):
    return plain.forward(model, value)


def called(value):
    with warnings.catch_warnings(record=True) as caught, torch.inference_mode():
        warnings.simplefilter("always")
        result = model(value)
    return result, [str(row.message) for row in caught if row.category is fast.FallbackWarning]
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a solved run."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "model.py").write_text(REFERENCE, encoding="utf-8")
    (folder / "helper.py").write_text(HELPER, encoding="utf-8")
    result = solve(folder / "model.py", workspace=folder, quick=True, bench_budget_s=1e-6)
    assert result.certificate is not None
    return folder


@pytest.fixture(scope="module")
def exported(workspace: Path) -> ExportedProgram:
    return export_program(workspace, "last", workspace / "out" / "fast")


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of builds for tests that do not look at it."""
    return tmp_path_factory.mktemp("builds") / "cache"


def said(exported: ExportedProgram, code: str, cache: Path, **environment: str) -> str:
    """What a fresh process prints that can import the package, and nothing of ours."""
    command = [sys.executable, "-P", "-c", BEGIN + code]
    variables = {
        **os.environ,
        "PYTHONPATH": str(Path(exported.folder).parent),
        "STITCH_EXPORT_CACHE": str(cache),
        **environment,
    }
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=cache.parent, env=variables
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_exported_program_is_built_once_and_computes_what_the_reference_does(
    exported: ExportedProgram, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    code = """
result, told = called(x)
assert not told, told
torch.testing.assert_close(result, expected(x))
guard = model.__dict__["_stitch_guard"]
assert type(guard._program).__name__ == "StitchModule"
with torch.no_grad():
    model.linear.weight.mul_(2)
result, told = called(x)
assert not told, told
torch.testing.assert_close(result, expected(x))
state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
assert list(state) == ["linear.weight", "linear.bias"]
model.load_state_dict(state)
torch.testing.assert_close(called(x)[0], torch.relu(x @ state["linear.weight"].T + state["linear.bias"]))
other = fast.load(state).eval()
with torch.inference_mode():
    torch.testing.assert_close(other(x), called(x)[0])
"""
    said(exported, code, cache)
    (library,) = cache.glob("*.so")
    before = library.stat().st_mtime_ns
    said(exported, code, cache)
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [before]


def test_what_the_program_was_not_certified_for_is_computed_by_the_reference_with_one_warning(
    exported: ExportedProgram, builds: Path
) -> None:
    code = """
wide = torch.randn(4, 3, 16)
result, told = called(wide)
assert "input 0 has shape [4, 3, 16]" in told[0], told
torch.testing.assert_close(result, expected(wide))
assert called(torch.randn(5, 3, 16))[1] == []
model.double()
result, told = called(x.double())
assert "torch.float64, made for torch.float32" in told[0], told
assert result.dtype is torch.float64
model.float()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model(x).sum().backward()
assert "gradients are recorded" in str(caught[0].message)
assert model.linear.weight.grad is not None
result, told = called(x)
assert told == []
torch.testing.assert_close(result, expected(x).detach())
result, told = called(torch.randn(3, 16))
assert result.shape == (3, 24)
assert told == [], "of this kind a warning was given already"
"""
    said(exported, code, builds)
    # A stitched program refuses other sizes, so the judge tried none.
    assert not exported.other_batches


@pytest.mark.parametrize("flags", [(), ("unguarded",)])
def test_another_batch_goes_to_the_program_only_where_the_judge_found_it_right_there(
    two_threads: TargetSession, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "model.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "helper.py").write_text(HELPER, encoding="utf-8")
    draws = (DrawResult(draw="batch-probe", ok=True),)
    path, _ = certificate_of(
        two_threads, tmp_path / "model.py", tmp_path, PYTHON_PROGRAM, draws=draws, flags=flags
    )
    exported = export_program(tmp_path, str(path), tmp_path / "out" / "fast")
    assert exported.other_batches is (flags == ())
    code = f"""
batch = torch.randn(3, 16)
result, told = called(batch)
assert bool(told) is {bool(flags)}, told
torch.testing.assert_close(result, expected(batch).detach())
inner = called(torch.randn(3, 2, 16))
assert "shape" in "".join(told + inner[1])
"""
    said(exported, code, tmp_path / "cache")


@pytest.mark.parametrize(
    ("compiler", "reason"), [("/nowhere/g++", "there is no compiler"), ("false", "failed with exit code 1")]
)
def test_without_a_compiler_the_reference_computes(
    exported: ExportedProgram, tmp_path: Path, compiler: str, reason: str
) -> None:
    code = f"""
result, told = called(x)
assert len(told) == 1
assert {reason!r} in told[0], told
torch.testing.assert_close(result, expected(x).detach())
assert called(x)[1] == []
"""
    said(exported, code, tmp_path / "cache", CXX=compiler)
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_users_own_module_is_accelerated_in_place(exported: ExportedProgram, builds: Path) -> None:
    code = """
class Mine(plain):
    pass

mine = Mine(16).eval()
assert fast.accelerate(mine) is mine
whole = torch.nn.Sequential(mine, torch.nn.Linear(24, 2)).eval()
assert list(whole.state_dict()) == ["0.linear.weight", "0.linear.bias", "1.weight", "1.bias"]
with warnings.catch_warnings(), torch.inference_mode():
    warnings.simplefilter("error")
    torch.testing.assert_close(whole(x), whole[1](Mine.forward(mine, x)))
"""
    said(exported, code, builds)


@pytest.mark.parametrize(("reference", "program"), [(REFERENCE, PYTHON_PROGRAM), (PARTIAL, "")])
def test_a_program_in_python_takes_the_weights_of_the_module(
    two_threads: TargetSession, tmp_path: Path, reference: str, program: str
) -> None:
    # The second one is stitched: one operation is PyTorch's, and it builds the others itself.
    (tmp_path / "model.py").write_text(reference, encoding="utf-8")
    (tmp_path / "helper.py").write_text(HELPER, encoding="utf-8")
    path, written = certificate_of(two_threads, tmp_path / "model.py", tmp_path, program)
    assert written == "kernelbench"
    exported = export_program(tmp_path, str(path), tmp_path / "out" / "fast")
    code = """
import json
from pathlib import Path

from fast._stitch.worker.exported.guarded_module import _executed

spec = json.loads(Path(fast.__file__).with_name("export.json").read_text())
names = _executed(Path(fast.__file__).with_name("reference"), spec["reference_main"], spec["search_path"])
inputs = names["get_inputs"]()
for scale in (1, 2):
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error", fast.FallbackWarning)
        torch.testing.assert_close(model(*inputs), plain.forward(model, *inputs), rtol=1e-4, atol=1e-4)
"""
    said(exported, code, tmp_path / "cache")


def test_a_name_that_cannot_be_imported_and_a_folder_that_is_there_are_refused(
    workspace: Path, exported: ExportedProgram, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="cannot be imported"):
        export_program(workspace, "last", tmp_path / "my-model")
    with pytest.raises(UsageError, match="is there already"):
        export_program(workspace, "last", exported.folder)
    with pytest.raises(UsageError, match="there is no run"):
        export_program(workspace, "2019", tmp_path / "fast")
    assert list(tmp_path.iterdir()) == []


def test_the_command_names_the_folder_and_builds_beforehand(workspace: Path, tmp_path: Path) -> None:
    code, printed = call(tmp_path, "export", "last", "--out", "fast", "--workspace", str(workspace))
    assert code == 0, printed
    assert printed["package"] == "fast"
    page = (tmp_path / "fast" / "README.md").read_text(encoding="utf-8")
    assert "certify --verify --rerun fast/certificate.zip" in page
    assert "0: float32[8, 16]" in page
    built = subprocess.run(
        [sys.executable, "-P", "-m", "fast.build"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "STITCH_EXPORT_CACHE": str(tmp_path / "cache")},
    )
    assert Path(built.stdout.strip()).is_file()


KERNELBENCH = """
import sys

import torch


class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("stitch_mcp", "stitch_tools", "stitch_planner", "pydantic"):
            raise ImportError(f"{name} must not be needed")


sys.meta_path.insert(0, Forbidden())
context = {}
exec(open(sys.argv[1]).read(), context)
Model, get_inputs, init_inputs = context["Model"], context["get_inputs"], context["get_init_inputs"]()
torch.manual_seed(42)
with torch.no_grad():
    original = Model(*init_inputs)
exec(open(sys.argv[2]).read(), context)
torch.manual_seed(42)
with torch.no_grad():
    custom = context["ModelNew"](*init_inputs)
"""


def test_a_kernelbench_file_is_evaluated_as_kernelbench_does_it(tmp_path: Path) -> None:
    """KernelBench executes both texts in one namespace, constructs by seed, and compares outputs."""
    reference = tmp_path / "model.py"
    reference.write_text(ALONE, encoding="utf-8")
    assert solve(reference, workspace=tmp_path, quick=True, bench_budget_s=1e-6).certificate is not None
    code, exported = call(tmp_path, "export", "--as", "kernelbench", "--out", "model_new.py")
    assert code == 0
    assert exported["size"] == (tmp_path / "model_new.py").stat().st_size
    script = """
for seed in (1, 2):
    torch.manual_seed(seed)
    inputs = get_inputs()
    torch.testing.assert_close(custom(*inputs), original(*inputs))
    assert not custom(*inputs).requires_grad
type(custom).__mro__[1].forward = None
custom(*get_inputs())
with torch.no_grad():
    custom.linear.weight.mul_(2)
    original.linear.weight.mul_(2)
torch.testing.assert_close(custom(*inputs), original(*inputs))
try:
    custom(torch.randn(3, 16))
except RuntimeError as error:
    print("refused:", error)
"""
    (tmp_path / "evaluate.py").write_text(KERNELBENCH + script, encoding="utf-8")
    command = [sys.executable, "-P", "evaluate.py", "model.py", "model_new.py"]
    env = {**os.environ, "STITCH_EXPORT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "refused: model: " in done.stdout
    code, told = call(tmp_path, "export", "--as", "kernelbench", "--out", "model_new.py")
    assert (code, "is there already" in str(told)) == (2, True)


def test_a_reference_of_several_files_is_no_kernelbench_file(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no single file"):
        export_kernelbench(workspace, "last", tmp_path / "model_new.py")
