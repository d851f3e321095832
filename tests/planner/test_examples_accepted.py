"""Every packaged example goes the whole way and is accepted, under a shorter check than `solve` makes."""

from pathlib import Path

import pytest

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.planner.judge_support import judged
from tests.sampling import sampled

EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = sorted(EXAMPLES.glob("*.task.toml"))
SAMPLE = ("attention", "conv_bn_relu", "embedding_pool")
"""One of each kind of layer; `make test ARGS="-m exhaustive"` judges the others."""
SHORT = CheckOptions(own_draws=2, structured=False, second_weights=False, trace=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("examples") / "store")


def test_every_example_has_its_task_file() -> None:
    assert [path.name.partition(".")[0] for path in TASKS] == sorted(p.stem for p in EXAMPLES.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled((path.name.partition(".")[0] for path in TASKS), SAMPLE))
def test_an_example_becomes_a_native_program_that_is_accepted(
    name: str, session: TargetSession, store: Store
) -> None:
    seen = judged(EXAMPLES / f"{name}.task.toml", session, store, SHORT)
    assert seen.stitched.format == "native", seen.plan.notes
    assert not [step for step in seen.plan.steps if step.kind == "eager"], seen.plan.notes
    assert seen.check.status == "accepted", seen.check.message
    assert not set(seen.check.flags) - {"specialized"}
    assert [draw.draw for draw in seen.check.draws][:2] == ["own-1", "own-2"]
    assert seen.check.oracle == "fp64"
