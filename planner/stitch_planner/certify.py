"""Writes the certificate of an attempt that counts."""

from datetime import UTC, datetime

from stitch_planner.budget import resume_remedy
from stitch_planner.plan import Plan
from stitch_planner.runs.attempt_evidence import evidence_of
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.run import Run, started
from stitch_planner.runs.run_events import CertificateWritten
from stitch_tools.errors import UsageError
from stitch_tools.models.acceptance import Verdict
from stitch_tools.models.base import sha256_hex
from stitch_tools.models.environment import Environment
from stitch_tools.models.program import Build, Program
from stitch_tools.models.remedy import Remedy
from stitch_tools.models.task import ReferenceFacts, SourceFile, Task
from stitch_tools.models.verdict import Check
from stitch_tools.storage.certificate import Certificate, seal_certificate, write_certificate
from stitch_tools.storage.store import Store

SUFFIX = ".stitch.zip"
_README = """This archive is a stitch-mcp certificate.

task/       the reference, as it was
program/    the program that computes the same
*.json      what was observed, planned, built, checked and timed

    stitch-mcp certify --verify FILE      shows that nothing in it is damaged

That is all that it shows: to trust the figures, run the task and the program again on your own machine.
"""


def certify_attempt(run: Run, task: Task, plan: Plan, attempt: Attempt) -> CertificateWritten:
    """The event of an attempt's certificate that was just written into the run's folder.

    Raises:
        UsageError: its program does not count.
        StoreError: the archive cannot be written, or something that belongs into it is missing or damaged.
    """
    state, store = run.state, run.store
    policy = started(state).policy
    evidence = evidence_of(store, attempt, policy)
    if evidence.check is None or evidence.verdict is None or state.reference is None or state.graph is None:
        raise UsageError("the run is not complete", remedies=(resume_remedy(run.run_id),))
    # The verdict is computed anew from the stored facts: the figures in the run's events only serve to choose
    # the best attempt quickly.
    refuse_uncounted(evidence.verdict, attempt)
    check, bench, build = evidence.check, evidence.bench, evidence.build
    program = store.get_fact(attempt.program.program, Program)
    entries = {
        "README.txt": _README.encode("utf-8"),
        "task.json": task.canonical_json(),
        "program.json": program.canonical_json(),
        "facts.json": store.get_fact(state.reference.facts, ReferenceFacts).canonical_json(),
        "graph.json": store.get(state.graph.graph),
        "plan.json": plan.canonical_json(),
        **_folder(store, "task", task.files),
        **_folder(store, "program", program.files),
    }
    if build:
        entries["build.json"] = build.canonical_json()
    if state.graph.ceilings:
        entries["ceilings.json"] = store.get(state.graph.ceilings)
    # The policy is part of the certificate, so that whoever verifies it computes the same verdict from the
    # same evidence.
    draft = Certificate(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id=run.run_id,
        task_id=task.task_id,
        program_id=program.program_id,
        target=task.target,
        check=check,
        bench=bench,
        policy=policy,
        environment=_environment(run, build, check),
        files=(),
        not_checked=(*check.not_checked, *(bench.not_checked if bench else ())),
    )
    # The archive holds every byte that its facts name, since it has to be verified on machines that have no
    # store.
    archive = seal_certificate(draft, entries)
    path = run.folder / f"{task.name}-{program.program_id[:8]}{SUFFIX}"
    write_certificate(archive, path)
    return CertificateWritten(
        program_id=program.program_id,
        file=path.name,
        sha256=sha256_hex(path.read_bytes()),
        certificate_id=archive.certificate.certificate_id,
    )


def refuse_uncounted(decided: Verdict, attempt: Attempt, remedies: tuple[Remedy, ...] = ()) -> None:
    """Refuse a program that may not be claimed.

    Raises:
        UsageError: it is one; the message says why.
    """
    if decided.counts:
        return
    named = f"program {attempt.program_id[:16]}"
    if not decided.accepted:
        raise UsageError(f"{named} is not accepted: {decided.status}", remedies=remedies)
    # Only in a new run: what counts is part of what a run began with.
    names = " ".join(f"{{accept}} {name}" for name in decided.accept)
    hint = f"a run started with {names} counts it" if names else ""
    raise UsageError(
        f"{named} is correct, but does not count: {decided.why_not}",
        hint=hint,
        options=("accept",),
        remedies=remedies,
    )


def _environment(run: Run, build: Build | None, check: Check) -> Environment:
    """What the run began in, with what its build and its check add."""
    # The run's own record, not the present machine: a resumed run is refused anywhere else.
    began_in = run.store.get_fact(started(run.state).environment, Environment)
    return began_in.model_copy(
        update={
            "compiler": build.compiler if build else None,
            "sandbox": check.sandbox,
            "plane": check.plane,
        }
    )


def _folder(store: Store, prefix: str, files: tuple[SourceFile, ...]) -> dict[str, bytes]:
    return {f"{prefix}/{file.path}": store.get(file.sha256) for file in files}
