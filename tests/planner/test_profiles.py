"""The newest profile of a subject is found, and its predictions are scored when a program is timed."""

from pathlib import Path

import pytest

from stitch_planner.profiles import (
    find_profile,
    keep_profile,
    newest_profile,
    score_predictions,
    scored_predictions,
)
from stitch_planner.runs.run import Workspace
from stitch_tools.errors import UsageError
from stitch_tools.models.profile import GainPrediction, Profile, ProfileStatus
from stitch_tools.models.verdict import Bench, Timing

TASK, PARENT, PROGRAM = "a" * 64, "b" * 64, "c" * 64
PREDICTION = GainPrediction(
    rule="host_bound",
    from_id=TASK,
    before_us=1000.0,
    predicted_us=450.0,
    low_us=400.0,
    high_us=500.0,
    naive_us=390.0,
)
BENCH = Bench(
    program_id=PROGRAM,
    task_id=TASK,
    outcome="faster",
    timings=(Timing(name="program", latency_us=440.0), Timing(name="eager", latency_us=1000.0)),
)


def profile_of(subject_id: str, status: ProfileStatus = "profiled", **facts: object) -> Profile:
    return Profile(
        subject="reference" if subject_id == TASK else "program",
        subject_id=subject_id,
        task_id=TASK,
        target="cpu",
        level="system",
        status=status,
    ).model_copy(update=facts)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    workspace.prepare()
    return workspace


def test_the_newest_profile_that_says_something_is_found(workspace: Workspace) -> None:
    assert newest_profile(workspace, TASK) is None
    keep_profile(workspace, profile_of(TASK, message="first"))
    keep_profile(workspace, profile_of(TASK, message="second"))
    keep_profile(workspace, profile_of(TASK, "crashed"))
    found = newest_profile(workspace, TASK)
    assert found is not None
    assert found.message == "second"
    assert newest_profile(workspace, PROGRAM) is None


def test_a_damaged_pointer_is_no_profile(workspace: Workspace) -> None:
    keep_profile(workspace, profile_of(TASK))
    (pointer,) = (workspace.folder / "profiles").glob("*.txt")
    pointer.write_text("0" * 64, encoding="ascii")
    assert newest_profile(workspace, TASK) is None
    pointer.write_bytes(b"\xff\xfe")
    assert newest_profile(workspace, TASK) is None


def test_a_timing_scores_what_the_references_profile_promised(workspace: Workspace) -> None:
    assert score_predictions(workspace, BENCH, None) == ()
    keep_profile(workspace, profile_of(TASK, predictions=(PREDICTION,)))
    (scored,) = score_predictions(workspace, BENCH, None)
    assert (scored.to_id, scored.actual_us) == (PROGRAM, 440.0)
    assert scored.error == pytest.approx(10.0 / 440.0)
    assert scored.naive_error == pytest.approx(-50.0 / 440.0)
    # The parent's profile is nearer than the reference's.
    parents = PREDICTION.model_copy(update={"from_id": PARENT, "predicted_us": 420.0})
    keep_profile(workspace, profile_of(PARENT, predictions=(parents,)))
    score_predictions(workspace, BENCH, PARENT)
    assert [row.from_id for row in scored_predictions(workspace)] == [TASK, PARENT]


def test_a_timing_without_a_latency_scores_nothing(workspace: Workspace) -> None:
    keep_profile(workspace, profile_of(TASK, predictions=(PREDICTION,)))
    failed = BENCH.model_copy(update={"timings": (Timing(name="program", latency_us=None),)})
    assert score_predictions(workspace, failed, None) == ()
    assert scored_predictions(workspace) == ()


def test_a_profile_is_named_by_its_id_or_by_a_file(workspace: Workspace, tmp_path: Path) -> None:
    kept = profile_of(TASK, message="kept")
    hashed = keep_profile(workspace, kept)
    assert find_profile(workspace, hashed[:16]) == kept
    file = tmp_path / "profile.json"
    # As the command line prints it.
    file.write_text(
        f'{{"schema_version": 1, "command": "profile", {kept.model_dump_json()[1:]}', encoding="utf-8"
    )
    assert find_profile(workspace, str(file)) == kept
    with pytest.raises(UsageError, match="there is no profile"):
        find_profile(workspace, "0123456789")
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match="holds no profile"):
        find_profile(workspace, str(file))
