"""Profiles of a workspace: kept by subject, and their predictions scored."""

import contextlib
import json
from pathlib import Path

from stitch_planner.runs.run import Workspace
from stitch_tools.errors import StoreError, UsageError
from stitch_tools.models.profile import GainPrediction, Profile
from stitch_tools.models.verdict import Bench
from stitch_tools.storage.store import write_atomically

_SCORES = "predictions.jsonl"
_MOST_SCORES = 10_000
_SHORTEST_ID = 6


def _folder(workspace: Workspace) -> Path:
    return workspace.folder / "profiles"


def keep_profile(workspace: Workspace, profile: Profile) -> str:
    """Store a profile, and make it the newest of its subject; returns its hash.

    Raises:
        StoreError: the workspace cannot be written.
    """
    hashed = workspace.store.put_fact(profile)
    if profile.status in ("profiled", "partial"):
        write_atomically(_folder(workspace) / f"{profile.subject_id[:32]}.txt", f"{hashed}\n".encode("ascii"))
    return hashed


def newest_profile(workspace: Workspace, subject_id: str) -> Profile | None:
    """The newest profile of a reference (by task id) or program; None where there is none."""
    path = _folder(workspace) / f"{subject_id[:32]}.txt"
    try:
        hashed = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    with contextlib.suppress(StoreError):
        return workspace.store.get_fact(hashed, Profile)
    return None


def score_predictions(
    workspace: Workspace, bench: Bench, parent_id: str | None
) -> tuple[GainPrediction, ...]:
    """Score what the profile of the parent (else of the reference) promised with this timing, and keep it.

    A score says how good the predictions are, not whether the program took the advice: it stands beside the
    naive prediction for the same reason.

    Raises:
        StoreError: the workspace cannot be written.
    """
    from stitch_tools.diagnose.diagnosis import score

    actual = next((row.latency_us for row in bench.timings if row.name == "program"), None)
    profile = newest_profile(workspace, parent_id) if parent_id else None
    profile = profile or newest_profile(workspace, bench.task_id)
    if actual is None or profile is None or not profile.predictions:
        return ()
    scored = tuple(score(row, bench.program_id, actual) for row in profile.predictions)
    path = _folder(workspace) / _SCORES
    known = _lines(path)
    lines = [*known, *(json.dumps(row.model_dump(mode="json")) for row in scored)]
    write_atomically(path, ("\n".join(lines[-_MOST_SCORES:]) + "\n").encode("utf-8"))
    return scored


def scored_predictions(workspace: Workspace) -> tuple[GainPrediction, ...]:
    """All predictions of a workspace that were scored, oldest first; damaged lines are left out."""
    rows: list[GainPrediction] = []
    for line in _lines(_folder(workspace) / _SCORES):
        with contextlib.suppress(ValueError):
            rows.append(GainPrediction.model_validate_json(line))
    return tuple(rows)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def find_profile(workspace: Workspace, name: str) -> Profile:
    """The profile that a user names: a file of `profile --json`, or the beginning of a profile's id.

    Raises:
        UsageError: there is none, or several, or the file holds none.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return _from_file(path)
    folder = workspace.store.root / name[:2]
    is_id = len(name) >= _SHORTEST_ID and set(name) <= set("0123456789abcdef")
    matches = [row.name for row in folder.glob(f"{name}*")] if is_id and folder.is_dir() else []
    if len(matches) != 1:
        what = f"{len(matches)} ids begin with" if matches else "there is no profile"
        raise UsageError(f"{what} {name!r}", hint="name the id that `stitch-mcp profile` printed, or a file")
    return workspace.store.get_fact(matches[0], Profile)


def _from_file(path: Path) -> Profile:
    try:
        fields = json.loads(path.read_bytes())
        # What the command line adds to each object is none of the profile's.
        named = {key: value for key, value in fields.items() if key in Profile.model_fields}
        return Profile.model_validate_json(json.dumps(named))
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{path} holds no profile", hint="write one by `stitch-mcp profile --json`"
        ) from error
