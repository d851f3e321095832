"""`certify_program`: writes an archive from which anybody can re-check an accepted result."""

from typing import ClassVar

from stitch_mcp.server.evidence_lines import interval_of, ratios_as_lines, times_as_lines
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import NamesProgramOfRun
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_tools.models.remedy import Remedy


class CertifyProgram(NamesProgramOfRun):
    """Arguments of certify_program."""


class CertificateAnswer(ToolAnswer):
    """The certificate's path and what it states."""

    QUOTED: ClassVar[tuple[str, ...]] = ("times_us",)
    NEVER_SET: ClassVar[tuple[str, ...]] = ("artifact",)

    program_id: str | None = None
    certificate: str | None = None
    """Path of the archive."""
    verdict: str | None = None
    outcome: str | None = None
    speedup: float | None = None
    interval: tuple[float, ...] = ()
    times_us: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    claim: str | None = None
    not_checked: tuple[str, ...] = ()


def certify(request: CertifyProgram, work: JobContext) -> CertificateAnswer:
    """The certificate of a run's accepted program; the run is finished with it."""
    from stitch_mcp.certificates import verify_certificate
    from stitch_mcp.server.steps import captured_facts, stored_plan
    from stitch_planner.join import certify_program, joined, known_of

    program = work.program
    with joined(work.workbench.workspace, work.run_id) as run:
        facts = captured_facts(run)
        plan, _ = stored_plan(run, work.task, facts)
        path = certify_program(run, work.task, program, plan)
        evidence = known_of(run, program.program_id)
    bench = evidence.bench if evidence else None
    # The archive is read back and verified: what is reported is what a reader of the file will find.
    certificate = verify_certificate(path)
    verify = f"stitch-mcp certify --verify --rerun {path.name}"
    return CertificateAnswer(
        message=f"certified: {certificate.status}, {certificate.outcome}; `{verify}` runs it again",
        run_id=work.run_id,
        program_id=program.program_id[:16],
        certificate=str(path),
        verdict=certificate.status,
        outcome=certificate.outcome,
        speedup=round(certificate.speedup, 3) if certificate.speedup is not None else None,
        interval=interval_of(bench),
        times_us=times_as_lines(bench) if bench else (),
        against=ratios_as_lines(bench) if bench else (),
        claim=certificate.claim,
        not_checked=certificate.not_checked,
        next_steps=(
            Remedy(
                tool="get_artifact", arguments={"id": work.run_id}, why="see what the run's folder holds now"
            ),
        ),
    )


TOOL = Tool(
    name="certify_program",
    title="Certify a result",
    description=(
        "Writes the certificate of a run's accepted program (evidence, sources, environment in one file) "
        "and finishes the run. After check_program and benchmark_program. About 2 s."
    ),
    request=CertifyProgram,
    answer=CertificateAnswer,
    work=certify,
)
