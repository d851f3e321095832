"""What all tests share."""

import importlib.util
import sys
from collections.abc import Generator

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about us.
settings.register_profile("unhurried", settings(deadline=None))
settings.load_profile("unhurried")

HAS_TORCH = importlib.util.find_spec("torch") is not None
NOT_COLLECTED = pytest.StashKey[int]()


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
        torch.manual_seed(0)
