"""`profile_program`: shows where the time of a reference or program goes, and which change would win most."""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import Detailed, NamesSubject
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_tools.errors import UsageError
from stitch_tools.models.profile import Profile, ProfileLevel
from stitch_tools.models.remedy import Remedy

if TYPE_CHECKING:
    from stitch_tools.models.verdict import Bench, Check

_MOST_LINES, _MOST_RULES = 10, 3


class ProfileProgram(NamesSubject, Detailed):
    """Arguments of profile_program."""

    level: ProfileLevel = "system"
    """kernel: counters of single kernels (cuda)."""
    ask: str = ""
    """A cause or question: host_bound, tail_wave."""
    compare: str = ""
    """`artifact` of an earlier profile."""


class ProfileAnswer(ToolAnswer):
    """Findings, best first, and what they rest on."""

    DETAILS: ClassVar[tuple[str, ...]] = ("kernels", "operations", "ruled_out")
    QUOTED: ClassVar[tuple[str, ...]] = ("findings", "kernels", "operations", "answers")

    program_id: str | None = None
    outcome: str | None = None
    """profiled, partial, not_accepted, crashed, permission_denied, profiler_missing, ..."""
    findings: tuple[str, ...] = ()
    """At most three: cause, gain with its range, action, skill."""
    answers: tuple[str, ...] = ()
    """To `ask` and `compare`; else problems of kernels, and ncu's own rules."""
    taxes: tuple[str, ...] = ()
    """What launches, waiting and traffic between kernels cost."""
    iteration: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    """Of the graph, with bounds."""
    ruled_out: tuple[str, ...] = ()
    docs: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()


def profile(request: ProfileProgram, work: JobContext) -> ProfileAnswer:
    """Profile a program, or the reference where there is none, and say what limits it."""
    from stitch_planner.profiles import find_profile
    from stitch_tools.profile.profile_text import (
        answer_question,
        compare_profiles,
        questions_of,
        rule_lines,
    )

    # Before anything is run: a wrong id must not cost a minute.
    before = find_profile(work.workbench.workspace, request.compare) if request.compare else None
    made = _profiled(request, work)
    answers = (*_problems(made), *rule_lines(made, _MOST_RULES))
    if request.ask:
        unknown = (f"it says nothing on {request.ask[:60]!r}, but on {', '.join(questions_of(made))}",)
        answers = answer_question(made, request.ask) or unknown
    if before is not None:
        answers = (*answers, *compare_profiles(before, made))
    return _answer(work, made, answers)


def _answer(work: JobContext, made: Profile, answers: tuple[str, ...]) -> ProfileAnswer:
    from stitch_mcp.server.docs import advice
    from stitch_tools.models.base import sha256_hex
    from stitch_tools.profile.profile_text import (
        finding_lines,
        kernel_lines,
        node_lines,
        ruled_out_lines,
        system_lines,
        tax_lines,
    )

    system = made.system
    found = made.diagnosis.bottlenecks if made.diagnosis is not None else ()
    return ProfileAnswer(
        message=_message(work, made),
        run_id=work.subject.run_id,
        artifact=sha256_hex(made.canonical_json()),
        program_id=made.subject_id[:16] if made.subject == "program" else None,
        outcome=made.status,
        findings=finding_lines(made),
        answers=answers,
        taxes=tax_lines(made),
        iteration=system_lines(system) if system is not None else (),
        kernels=kernel_lines(system, _MOST_LINES) if system is not None else (),
        operations=node_lines(system, _MOST_LINES) if system is not None else (),
        ruled_out=ruled_out_lines(made),
        docs=advice(work.config, (row.doc_query for row in found), cpu=made.target == "cpu"),
        not_measured=made.not_measured,
        next_steps=_next(work, made),
    )


def _profiled(request: ProfileProgram, work: JobContext) -> Profile:
    from stitch_mcp.server.steps import known_facts as observed_facts
    from stitch_mcp.server.steps import known_graph
    from stitch_planner.profile_steps import known_facts, profile_task
    from stitch_tools.profile.asking import options_for
    from stitch_tools.profile.profile_work import ProfileOptions

    workbench = work.workbench
    options = options_for(
        ProfileOptions(level=request.level, cache_dir=workbench.cache_dir), request.ask, work.task.target
    )
    facts, graph = observed_facts(work), known_graph(work)
    if work.subject.program_id is None:
        with workbench.session() as session:
            known = known_facts(workbench, session, work.task, graph, facts)
            return profile_task(workbench, session, work.task, options=options, known=known)
    check, bench = _recorded(work)
    if work.subject.run_id and check is None:
        raise UsageError(
            f"program {work.program.program_id[:16]} was not checked in this run",
            remedies=(_check(work),),
        )
    with workbench.trial(work.task, work.program, known=facts) as trial:
        known = known_facts(workbench, trial.session, work.task, graph, trial.facts)
        if bench is not None:
            # The benchmark of this very program: better than what one more process would give.
            latency = next((row.latency_us for row in bench.timings if row.name == "program"), None)
            known = replace(known, untraced_us=latency)
        return workbench.profile(trial, check or workbench.check(trial), options=options, known=known)


def _recorded(work: JobContext) -> "tuple[Check | None, Bench | None]":
    """Check and timing of the program in its run."""
    from stitch_planner.join import joined, known_of

    if not work.subject.run_id:
        return None, None
    with joined(work.workbench.workspace, work.subject.run_id) as run:
        evidence = known_of(run, work.program.program_id)
    return (evidence.check, evidence.bench) if evidence is not None else (None, None)


def _problems(made: Profile) -> tuple[str, ...]:
    from stitch_tools.profile.profile_text import answer_line

    rows = [(kernel, answer) for kernel in made.kernels for answer in kernel.answers if answer.is_problem]
    return tuple(answer_line(kernel, answer) for kernel, answer in rows[:_MOST_LINES])


def _message(work: JobContext, made: Profile) -> str:
    named = work.named_program if made.subject == "program" else "reference: "
    if made.status not in ("profiled", "partial"):
        return f"{named}{made.status}: {made.message}"
    diagnosis = made.diagnosis
    more = f"; {made.message}" if made.message else ""
    if diagnosis is None or not diagnosis.bottlenecks:
        return f"{named}nothing was found that would win more than 2%{more}"
    first = diagnosis.bottlenecks[0]
    return f"{named}limited by {diagnosis.bound_by}; {first.rule}: {first.gain.expected:.2f}x expected{more}"


def _check(work: JobContext) -> Remedy:
    arguments = {**work.place, "program": work.program.program_id[:16]}
    return Remedy(tool="check_program", arguments=arguments, why="only accepted programs are profiled")


def _next(work: JobContext, made: Profile) -> tuple[Remedy, ...]:
    if made.status == "not_accepted":
        return (_check(work),)
    place = work.place
    main = work.program.main if made.subject == "program" else _main_of(made.target)
    write = Remedy(
        tool="compile_program",
        arguments={**place, "files": {main: "A FASTER SOURCE"}},
        why="make the change of the first finding, then check, time and profile it again",
    )
    closer = Remedy(
        tool="profile_program",
        arguments={**place, "level": "both"},
        why="ask about single kernels, too",
    )
    return (write, closer) if made.level == "system" and made.target.startswith("cuda") else (write,)


def _main_of(target: str) -> str:
    return "program.cu" if target.startswith("cuda") else "program.cpp"


TOOL = Tool(
    name="profile_program",
    title="Profile a program or reference",
    description=(
        "Shows where the time of an accepted program, or of the reference (`program`: reference, or a run "
        "without one), goes, and the change that pays most. 15 to 60 s."
    ),
    request=ProfileProgram,
    answer=ProfileAnswer,
    work=profile,
    runs_code=True,
    warm=True,
    timed=True,
)
