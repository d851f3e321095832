"""A program under every sanitizer of its device: one SanitizerRun each, and what they mean for its check."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from stitch_tools.judge.correctness.check_wording import UNRACED
from stitch_tools.judge.memory.case import OWN, SMALLER, SanitizeOptions, drawn_case, not_checked
from stitch_tools.judge.memory.cpu import CPU_TOOLS, run_cpu
from stitch_tools.judge.memory.cuda import CUDA_TOOLS, run_cuda
from stitch_tools.judge.trial import Trial
from stitch_tools.judge.verdict import settle_status
from stitch_tools.models.sanitizer import SanitizerFinding, SanitizerRun, SanitizerTool
from stitch_tools.models.task import Task
from stitch_tools.models.verdict import Check, Finding
from stitch_tools.run.reference_server import NoDeviceError, ReferenceServer


def sanitize_program(trial: Trial, options: SanitizeOptions | None = None) -> tuple[SanitizerRun, ...]:
    """One run for each tool of the target; a tool that could not say anything is `not_checked`.

    Args:
        trial: the program, accepted or not, beside its reference.
        options: tools and limits.

    Raises:
        TaskError: the reference itself fails.
        WorkerError, SandboxError: a failure of ours or of this machine.
    """
    chosen = options or SanitizeOptions()
    tools: tuple[SanitizerTool, ...] = tuple(
        tool for tool in _tools_of(trial.task.target) if not chosen.tools or tool in chosen.tools
    )
    reason = _impossible(trial)
    if reason is not None:
        return tuple(not_checked(tool, reason) for tool in tools)
    run_tools = run_cuda if trial.on_gpu else run_cpu
    results: dict[SanitizerTool, SanitizerRun] = {}
    with ExitStack() as stack:
        try:
            server = trial.reference or stack.enter_context(
                ReferenceServer(trial.session, trial.task, trial.store)
            )
        except NoDeviceError as error:
            return tuple(not_checked(tool, error.message) for tool in tools)
        for kind in _kinds_for(trial.task):
            missing = _missing(tools, results, smaller=kind == SMALLER)
            if not missing or trial.is_late:
                break
            with drawn_case(server, trial, chosen, kind) as case:
                for run in run_tools(case, missing) if case else ():
                    # Of two reasons that of the task's own shapes is the one that tells something.
                    if run.tool not in results or run.status != "not_checked" or kind == OWN:
                        results[run.tool] = run
                        trial.say(_describe(run))
    return tuple(results.get(tool) or not_checked(tool, "there was no time left") for tool in tools)


def apply_sanitizers(check: Check, runs: Sequence[SanitizerRun]) -> Check:
    """The check with the runs' evidence, and the status that both amount to.

    A fatal finding is an access outside of memory, a race, or a result that depends on memory that nobody
    wrote. Findings in libraries and suspicious ones change no status.
    """
    without = tuple(
        f"certified without {run.tool}: {run.reason}" for run in runs if run.status == "not_checked"
    )
    looked = any(run.tool == "racecheck" for run in runs)
    status, reasons = settle_status(check.status, check.message, check.findings, runs)
    return check.model_copy(
        update={
            "status": status,
            "message": check.message if status == check.status else reasons[0].message,
            "findings": (*check.findings, *(_finding(run, row) for run in runs for row in run.findings)),
            "sanitizers": tuple(runs),
            "not_checked": (*(row for row in check.not_checked if row != UNRACED or not looked), *without),
        }
    )


def _tools_of(target: str) -> tuple[SanitizerTool, ...]:
    return CUDA_TOOLS if target.startswith("cuda") else CPU_TOOLS


def _kinds_for(task: Task) -> tuple[str, ...]:
    """The draws to try: on a CPU the task's own first, on a GPU the smaller one where the contract permits.

    A sanitizer makes a GPU tens of times slower; a CPU can afford the shapes that the program was made for.
    """
    if task.contract.shape_policy != "batch-probe":
        return (OWN,)
    return (OWN, SMALLER) if task.target == "cpu" else (SMALLER, OWN)


def _missing(
    tools: Sequence[SanitizerTool], results: Mapping[SanitizerTool, SanitizerRun], *, smaller: bool
) -> tuple[SanitizerTool, ...]:
    """The tools that another draw may help: slow ones if it is smaller, others where all failed."""
    slow = {tool for tool, run in results.items() if run.too_slow}
    failed = all(run.status == "not_checked" for run in results.values())
    return tuple(tool for tool in tools if (smaller if tool in slow else failed))


def _impossible(trial: Trial) -> str | None:
    """Why no tool can run, None where one can."""
    if trial.program.format != "native":
        rebuilt = "a Python program builds its own code: only native programs are rebuilt with sanitizers"
        return None if trial.on_gpu else rebuilt
    if trial.build is None or trial.build.artifact is None:
        return "the program was not built"
    if trial.facts.uses_rng:
        return "the reference draws random numbers in forward, which a native program cannot repeat yet"
    return None


def _describe(run: SanitizerRun) -> str:
    if run.status == "not_checked":
        return f"{run.tool}: not checked, {run.reason}"
    if not run.findings:
        return f"{run.tool}: clean"
    first = run.findings[0]
    place = f"{first.file}:{first.line}: " if first.file and first.line else ""
    more = f" and {len(run.findings) - 1} more" if len(run.findings) > 1 else ""
    return f"{run.tool}: {place}{first.message}{more}"


def _finding(run: SanitizerRun, row: SanitizerFinding) -> Finding:
    times = f" ({row.count} times)" if row.count > 1 else ""
    where = f" in {row.kernel}" if row.kernel else ""
    # A fatal Finding says "cheat"; a memory error is a mistake, and the check's status says so.
    severity = "suspicious" if row.severity == "fatal" else row.severity
    return Finding(
        rule=f"{run.tool}.{row.rule}",
        severity=severity,
        message=f"{row.message}{where}{times}",
        file=row.file,
        line=row.line,
    )
