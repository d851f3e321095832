"""What all tests share."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Generator, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.gpu_turns import give_memory_back, gpu_turn, turns_folder

if TYPE_CHECKING:
    from stitch_tools.run.session import TargetSession

# How long an example takes says more about the machine than about us.
settings.register_profile("unhurried", settings(deadline=None))
settings.load_profile("unhurried")

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_GPU = Path("/dev/nvidiactl").exists()
NOT_COLLECTED = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """What tests build lies in one folder, by content: a program is built once, in this run or earlier."""
    # Most tests need some timing and no figure: rounds on a busy machine would take minutes. Tests that judge
    # figures say how long they take.
    os.environ.setdefault("STITCH_BENCH_BUDGET_S", "0.1")
    os.environ.setdefault("STITCH_COMPILE_BASELINES", "false")
    # What one test's run teaches is nothing to another's, nor to the user's own memory.
    os.environ.setdefault("STITCH_MEMORY", "off")
    # Most tests ask what a program computes, not how fast: -O3 takes half as long again. CI's nightly run
    # sets CXX=g++, and so compiles as users do. Confined processes may read what lies beside a compiler's
    # folder: it has one for itself. Others' tools split CXX at spaces.
    quick = str(Path(__file__).parent / "compilers" / "bin" / "g++")
    if shutil.which("g++") is not None and " " not in quick:
        os.environ.setdefault("CXX", quick)
    # Nor does a process of a test compile our modules anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    cache: pytest.Cache | None = getattr(config, "cache", None)  # `-p no:cacheprovider`
    if cache is not None:
        os.environ["STITCH_CACHE_DIR"] = str(cache.mkdir("stitch"))
        # A bench of a test claims nothing: it waits for those of this run and for nobody else's. On a GPU
        # others may measure in earnest.
        if not HAS_GPU:
            os.environ.setdefault("STITCH_LOCK_DIR", str(cache.mkdir("locks")))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Where torch lies in another interpreter (STITCH_PYTHON), test files that import it are skipped."""
    report = yield
    if not HAS_TORCH and report.outcome == "failed" and "No module named 'torch'" in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, "Skipped: torch is in the target interpreter only")
        collector.config.stash[NOT_COLLECTED] = collector.config.stash.get(NOT_COLLECTED, 0) + 1
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """A test marked `whole_gpu` runs beside no other test of a GPU, of whichever process.

    Around the whole protocol: fixtures of a module hold memory, too, and give it back with their last test.
    """
    if not HAS_GPU or item.get_closest_marker("gpu") is None:
        return (yield)
    with gpu_turn(turns_folder(), alone=item.get_closest_marker("whole_gpu") is not None):
        try:
            return (yield)
        finally:
            give_memory_back()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `nvcc` are skipped, with the reason, where there is none."""
    if item.get_closest_marker("nvcc") is not None and (reason := missing_nvcc()):
        pytest.skip(reason)


@lru_cache(maxsize=1)
def missing_nvcc() -> str:
    from stitch_tools.compile.toolchain import find_nvcc
    from stitch_tools.errors import EnvironmentMissingError

    try:
        find_nvcc()
    except EnvironmentMissingError as error:
        return error.message
    return ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says how many test files did not run: their skips alone look like any others."""
    if count := config.stash.get(NOT_COLLECTED, 0):
        terminalreporter.write_line(
            f"{count} test files not collected: torch is only in the target interpreter"
        )


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random tensors in every run: a bound that holds once holds always."""
    torch = sys.modules.get("torch")
    if torch is not None:
        seed = torch.manual_seed if torch.backends.cuda.is_built() else torch.default_generator.manual_seed
        seed(0)


@pytest.fixture(scope="session")
def one_thread() -> Iterator["TargetSession"]:
    """A warm interpreter of one thread, which the tests of a process share."""
    with warm_interpreter(1) as session:
        yield session


@pytest.fixture(scope="session")
def two_threads() -> Iterator["TargetSession"]:
    """A warm interpreter of two threads, which the tests of a process share."""
    with warm_interpreter(2) as session:
        yield session


def warm_interpreter(threads: int) -> "TargetSession":
    from stitch_tools.run.interpreter import find_interpreter
    from stitch_tools.run.session import TargetSession

    return TargetSession(find_interpreter(None, Path.cwd()), threads=threads)
