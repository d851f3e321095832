"""The certificate of a submission that earned a reward: task, program, facts and evidence in one archive."""

from datetime import UTC, datetime
from pathlib import Path

from stitch_tools.judge.trial import Trial
from stitch_tools.machine.devices import resolve_target
from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.run.environment_facts import describe_environment
from stitch_tools.storage.certificate import Certificate, seal_certificate, write_certificate

RUN_ID = "rl"
"""What stands in place of a run: a submission belongs to none."""
_SUFFIX = ".stitch.zip"
_README = b"""This archive is a stitch-mcp certificate of one submission to the reward.

task/       the reference, as it was
program/    the program that was submitted
*.json      what was observed, built, checked and timed

    stitch-mcp certify --verify FILE            shows that nothing in it is damaged
    stitch-mcp certify --verify --rerun FILE    builds, checks and times it again
"""


def certify_submission(
    trial: Trial, check: Check, bench: Bench, policy: AcceptPolicy, folder: Path
) -> tuple[str, Path]:
    """The id and the path of the certificate, which is written into `folder`.

    Raises:
        StoreError: it cannot be written.
    """
    task, program, store = trial.task, trial.program, trial.store
    environment = describe_environment(trial.session.interpreter, resolve_target(task.target))
    entries = {
        "README.txt": _README,
        "task.json": task.canonical_json(),
        "program.json": program.canonical_json(),
        "facts.json": trial.facts.canonical_json(),
        **{f"task/{file.path}": store.get(file.sha256) for file in task.files},
        **{f"program/{file.path}": store.get(file.sha256) for file in program.files},
    }
    if trial.build is not None:
        entries["build.json"] = trial.build.canonical_json()
    draft = Certificate(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id=RUN_ID,
        task_id=task.task_id,
        program_id=program.program_id,
        target=task.target,
        check=check,
        bench=bench,
        policy=policy,
        environment=environment.model_copy(
            update={
                "compiler": trial.build.compiler if trial.build else None,
                "sandbox": check.sandbox,
                "plane": check.plane,
            }
        ),
        files=(),
        not_checked=(*check.not_checked, *bench.not_checked),
    )
    archive = seal_certificate(draft, entries)
    path = folder / f"{task.name}-{program.program_id[:16]}{_SUFFIX}"
    folder.mkdir(parents=True, exist_ok=True)
    write_certificate(archive, path)
    return archive.certificate.certificate_id, path
