"""Writes the certificate of an accepted run."""

from datetime import UTC, datetime

from stitch_planner.plan import Plan
from stitch_planner.runs.run import Run, started
from stitch_planner.runs.run_events import CertificateWritten
from stitch_tools.errors import UsageError
from stitch_tools.models import (
    Bench,
    Build,
    Check,
    Environment,
    Program,
    ReferenceFacts,
    SourceFile,
    Task,
    sha256_hex,
)
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


def certify_run(run: Run, task: Task, plan: Plan) -> CertificateWritten:
    """The event of a certificate that was just written into the run's folder.

    Raises:
        UsageError: the run's program was not accepted.
        StoreError: the archive cannot be written.
    """
    state, store = run.state, run.store
    if not (state.program and state.build and state.check and state.reference and state.graph):
        raise UsageError("the run is not complete", hint=f"stitch-mcp solve --resume {run.run_id}")
    check = store.get_fact(state.check.check, Check)
    if check.status != "accepted":
        raise UsageError(
            f"only an accepted program is certified; this one is {check.status}",
            hint="see `stitch-mcp runs show`",
        )
    program = store.get_fact(state.program.program, Program)
    build = store.get_fact(state.build.build, Build) if state.build.build else None
    bench = store.get_fact(state.bench.bench, Bench) if state.bench else None
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
    draft = Certificate(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id=run.run_id,
        task_id=task.task_id,
        program_id=program.program_id,
        target=task.target,
        check=check,
        bench=bench,
        environment=_environment(run, build, check),
        files=(),
        not_checked=(*check.not_checked, *(bench.not_checked if bench else ())),
    )
    archive = seal_certificate(draft, entries)
    path = run.folder / f"{task.name}-{program.program_id[:8]}{SUFFIX}"
    write_certificate(archive, path)
    return CertificateWritten(
        program_id=program.program_id,
        file=path.name,
        sha256=sha256_hex(path.read_bytes()),
        certificate_id=archive.certificate.certificate_id,
    )


def _environment(run: Run, build: Build | None, check: Check) -> Environment:
    """What the run began in, with what its build and its check add."""
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
