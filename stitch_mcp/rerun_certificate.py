"""`certify --verify --rerun`: builds, checks and times a certificate's program again, on this machine."""

from dataclasses import replace
from pathlib import Path
from typing import Literal, Unpack

from stitch_mcp.config import Settings, configure
from stitch_mcp.workbench import workbench_in
from stitch_planner.runs.run import Workspace
from stitch_planner.workbench import Emit
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.verdict import verdict_of
from stitch_tools.models.acceptance import AcceptPolicy, Verdict
from stitch_tools.models.base import Fact
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.storage.certificate import Archive, Contents, read_certificate, read_contents
from stitch_tools.storage.scratch import make_scratch

_REACH = 1.1
"""The speedup itself may lie so much above the new interval's upper end."""
SpeedupClaim = Literal["confirmed", "not_confirmed", "not_compared"]


class Rerun(Fact):
    """What running a certificate's program again showed."""

    certificate_id: str
    correct: bool
    """Whether the program was accepted again, with inputs and weights from fresh secret seeds."""
    speedup: SpeedupClaim
    """`confirmed` where the device model is the certificate's and the speedup was reached again."""
    message: str
    """One sentence that explains both."""
    verdict: Verdict
    """What this check and timing amount to, under the certificate's policy and what the caller accepts."""
    check: Check
    bench: Bench | None
    """None where the program was not accepted, or the certificate has no timing that could be compared."""


def rerun_certificate(
    path: str | Path, *, quick: bool = False, emit: Emit | None = None, **settings: Unpack[Settings]
) -> Rerun:
    """The outcome of building, checking and timing a certificate's program anew.

    The same device model re-proves correctness and speedup, another one correctness alone.

    Args:
        path: the certificate.
        quick: no sanitizers, the fewest rounds, and of torch.compile the default mode alone.
        emit: receives progress sentences.
        settings: see `stitch_mcp.config.Settings`; the target is the certificate's own.

    Raises:
        CertificateError: the archive is damaged, or names something that it does not hold.
        EnvironmentMissingError: no torch, no compiler, or weaker isolation than required.
    """
    file = Path(path).expanduser()
    archive = read_certificate(file)
    contents = read_contents(archive, file)
    config = configure(settings)
    then = archive.certificate.bench
    # The certificate claims what it claims under its policy; whoever runs it again may accept more.
    policy = AcceptPolicy.of((*archive.certificate.policy.names, *config.accept))
    with make_scratch("rerun") as folder:
        # A store of its own: nothing that was computed here before may answer for the program.
        workspace = Workspace(folder)
        workspace.prepare()
        workbench = replace(workbench_in(workspace, config, emit), stock_extensions=True)
        task, program = _unpack(archive, contents, workspace)
        with workbench.trial(task, program) as trial:
            check = workbench.check(trial, sanitize=not quick)
            bench = None
            # Timing is only worth its minutes where there is a certified figure to compare.
            if verdict_of(check).accepted and then is not None and then.ratio("eager") is not None:
                bench = workbench.benchmark(trial, quick=quick)
    return _conclude(archive, check, bench, verdict_of(check, bench, policy))


def _unpack(archive: Archive, contents: Contents, workspace: Workspace) -> tuple[Task, Program]:
    task, program = contents.task, contents.program
    for prefix in ("task", "program"):
        workspace.store.put_files(archive.folder(prefix))
    # An archive holds the task's own files, not folders that it only imports from.
    missing = [folder for folder in task.search_path if not Path(folder).is_dir()]
    if missing:
        raise EnvironmentMissingError(
            f"the task imports from folders that are not here: {', '.join(missing)}",
            hint="put them there, or run where they are",
        )
    return task, program


def _conclude(archive: Archive, check: Check, bench: Bench | None, verdict: Verdict) -> Rerun:
    certificate = archive.certificate
    speedup, sentence = compare_speedups(certificate.bench, bench)
    if not verdict.accepted:
        speedup, sentence = "not_compared", f"not accepted again: {verdict.status}: {verdict.why_not}"
    elif not verdict.counts:
        sentence = f"{sentence}; it does not count: {verdict.why_not}"
    return Rerun(
        certificate_id=certificate.certificate_id,
        correct=verdict.accepted,
        speedup=speedup,
        message=sentence,
        verdict=verdict,
        check=check,
        bench=bench,
    )


def compare_speedups(then: Bench | None, now: Bench | None) -> tuple[SpeedupClaim, str]:
    """Whether the later timing reaches the earlier one's speedup over eager, and the sentence on it."""
    old = then.ratio("eager") if then else None
    if then is None or old is None:
        return "not_compared", "correct again; the certificate has no speedup to compare"
    new = now.ratio("eager") if now else None
    if now is None or new is None:
        return "not_compared", f"correct again; not timed: {now.message if now else 'no timing was made'}"
    figures = (
        f"{new.speedup:.2f}x eager ({new.low:.2f} to {new.high:.2f}) now, "
        f"{old.speedup:.2f}x ({old.low:.2f} to {old.high:.2f}) then"
    )
    # Speedups of two devices are different facts: neither confirms nor refutes the other.
    if (now.device, now.threads) != (then.device, then.threads):
        there, here = _place(then), _place(now)
        return "not_compared", f"correct again; {figures}, on another device ({here}, then {there})"
    if now.is_doubtful:
        return "not_confirmed", f"correct again, and no gain: {now.doubt} ({figures})"
    # A disturbed machine refutes nothing.
    if old.outcome == "faster" and new.outcome == "inconclusive":
        return "not_compared", f"correct again; too noisy to compare: {figures}"
    # An interval that somebody wrote as wide as they like, or as no number, must not confirm a figure.
    if new.high >= old.low and new.high * _REACH >= old.speedup:
        return "confirmed", f"correct again, and the speedup was reached again: {figures}"
    return "not_confirmed", f"correct again, but slower than certified: {figures}"


def _place(bench: Bench) -> str:
    return f"{bench.device}, {bench.threads} threads" if bench.threads else bench.device
