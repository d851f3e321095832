"""`solve` and `check` where clang++ is the C++ compiler: what the stitcher and what people write."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stitch_tools.compile.toolchain import find_cpp_compiler
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.storage.certificate import read_certificate
from tests.mcp.cli_support import call

PROGRAMS = Path(__file__).parents[1] / "tools" / "programs"
# Of each kind that the stitcher writes: a product, a pointwise chain, and sums over rows by vectors.
REFERENCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.Linear(24, 48), torch.nn.LayerNorm(48)

    def forward(self, x):
        return torch.softmax(self.norm(torch.nn.functional.gelu(self.up(x))), dim=-1)


def get_inputs():
    return [torch.randn(64, 24)]
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What clang++ says about itself; it builds everything here, also what is ours."""
    folder = str(tmp_path_factory.mktemp("clang"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STITCH_CXX", "clang++")
        try:
            compiler = find_cpp_compiler()
        except EnvironmentMissingError as error:
            pytest.skip(f"not measured: {error.message}")
        assert compiler.kind == "clang"
        patch.setenv("STITCH_CACHE_DIR", folder)
        patch.setenv("STITCH_LOCK_DIR", folder)  # any outcome will do: wait for nobody's timing
        yield compiler.version_line


def test_a_stitched_program_is_built_judged_and_timed(clang: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(REFERENCE, encoding="utf-8")
    code, found = call(tmp_path, "solve", "model.py", "--quick")
    assert (code, found["status"]) == (0, "accepted"), found
    assert read_certificate(Path(found["certificate"])).certificate.environment.compiler == clang


@pytest.mark.parametrize(("fault", "status"), [("NONE", "accepted"), ("TAIL", "incorrect")])
def test_a_program_of_one_s_own_is_built_and_judged(
    clang: str, tmp_path: Path, fault: str, status: str
) -> None:
    shutil.copy(PROGRAMS / "linear_relu.py", tmp_path / "model.py")
    program = tmp_path / "program"
    program.mkdir()
    shutil.copy(PROGRAMS / "linear_relu.cpp", program)
    (program / "fault.h").write_text(f"#define FAULT {fault}\n", encoding="utf-8")
    code, found = call(tmp_path, "check", "model.py", "program")
    assert (code, found["status"]) == (0 if status == "accepted" else 3, status), found
