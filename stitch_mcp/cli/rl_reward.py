"""`stitch-mcp rl reward judge`, `presets`, `watch` and `harbor`."""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from stitch_mcp.cli.contract import contract_options, contract_overrides
from stitch_mcp.cli.exit_codes import ExitCode
from stitch_mcp.cli.options import (
    accept_option,
    json_option,
    parse_overrides,
    reference_options,
    session_options,
    settings,
)
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.cli.rl_options import judging_options
from stitch_mcp.config import Settings
from stitch_mcp.views.table import ReportSection

if TYPE_CHECKING:
    from stitch_mcp.rl.reward.verification import VerifyAnswer

_PRESETS = ("stitchcuda", "milestone", "kevin", "coverage")


@click.group("reward")
def command() -> None:
    """Compute the reward of a submission, show presets, look for hacks, export tasks."""


@command.command("judge")
@click.argument("reference")
@click.argument("submission", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--preset",
    default="stitchcuda",
    show_default=True,
    type=click.Choice(_PRESETS),
    help="How evidence becomes a number.",
)
@click.option(
    "--parent",
    type=click.Path(exists=True, path_type=Path),
    help="Program that SUBMISSION refines: a folder or file. The submission is then timed beside it.",
)
@click.option("--instruction", default="", metavar="TEXT", help="With --parent: what was to be changed.")
@judging_options
@accept_option
@contract_options
@reference_options
@session_options
@json_option
def judge(
    reference: str,
    submission: Path,
    preset: str,
    parent: Path | None,
    instruction: str,
    full: bool,
    rubric_model: str,
    sanitize: bool,
    contract: str | None,
    atol: float | None,
    rtol: float | None,
    allow: str | None,
    inputs: str | None,
    overrides: tuple[str, ...],
    allow_relaxed: bool,
    as_json: bool,
    **given: Unpack[Settings],
) -> int:
    """Build, check and time SUBMISSION against REFERENCE, and print its reward.

    SUBMISSION is a folder or source file, or a completion: a .md or .txt file whose fences are the files.
    Exits with 0 where the program earned something, 8 for a hack, 9 where nothing could be judged, else 3.
    """
    from stitch_mcp.rl.reward.facts import RewardPolicy
    from stitch_mcp.rl.reward.judging import JudgeOptions, RewardTask, judge_submission
    from stitch_mcp.rl.reward.submission_files import submission_at
    from stitch_mcp.rl.reward.verification import verify_judged

    output = CommandOutput("rl reward judge", as_json=as_json)
    stated = contract_overrides(contract, atol, rtol, allow)
    task = RewardTask(
        reference=reference,
        contract={**stated, **parse_overrides(overrides)},
        inputs=inputs or "",
        allow_relaxed=allow_relaxed or bool(stated),
    )
    options = JudgeOptions(
        policy=RewardPolicy(accept=settings(**given).policy),
        quick=not full,
        sanitize=sanitize,
        rubric_model=rubric_model,
    )
    judged = judge_submission(
        submission_at(submission, parent, instruction), task, options=options, emit=output.progress, **given
    )
    answer = verify_judged(judged, preset)
    fields = {**answer.model_dump(mode="json"), "certificate": judged.certificate}
    return output.finish(fields, _sections(answer, judged.certificate), _exit_code(answer))


def _sections(answer: "VerifyAnswer", certificate: str | None) -> list[ReportSection]:
    reward = answer.reward
    sections = [
        ReportSection(
            f"reward {reward.total:.4g} ({reward.preset}, {reward.floor:g} to {reward.ceiling:g})",
            ("part", "value", "evidence"),
            tuple((row.name, f"{row.value:.4g}", row.evidence) for row in reward.parts),
            tuple(f"no credit: {reason}" for reason in reward.reasons),
        )
    ]
    if answer.rating is not None:
        rows = tuple(
            (row.name, "-" if row.score is None else f"{row.score} of 5", row.evidence)
            for row in answer.rating.dimensions
        )
        sections.append(ReportSection("rubric", ("dimension", "score", "evidence"), rows))
    if certificate:
        sections.append(ReportSection(notes=(f"certificate: {certificate}",)))
    return sections


def _exit_code(answer: "VerifyAnswer") -> ExitCode:
    reward = answer.reward
    if reward.correct:
        return ExitCode.DONE
    if not reward.valid:
        return ExitCode.UNMEASURED
    return ExitCode.CHEAT if reward.hacking else ExitCode.NONE_COUNTS


@command.command("presets")
@json_option
def presets(as_json: bool) -> int:
    """Show the presets: their range, and what a wrong, an average and the best program get."""
    from stitch_mcp.rl.reward.presets import PRESETS, all_points

    points = all_points()
    rows = tuple(
        (row.preset, row.skill, *(f"{value:g}" for value in (row.floor, row.par, row.oracle, row.ceiling)))
        for row in points
    )
    columns = ("preset", "skill", "floor", "at eager's speed", "oracle", "ceiling")
    fields = {
        "presets": [row.model_dump(mode="json") for row in PRESETS],
        "points": [row.model_dump(mode="json") for row in points],
    }
    return CommandOutput("rl reward presets", as_json=as_json).finish(
        fields, [ReportSection("presets", columns, rows)]
    )


@command.command("watch")
@click.argument("log", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def watch(log: Path, as_json: bool) -> int:
    """Look for hacks in LOG, the JSON lines of judged submissions that a training wrote.

    Alarms on jumps of the reward that no gain of correctness goes with, and counts attempted hacks by family.
    Exits with 8 where an alarm is raised.
    """
    from stitch_mcp.rl.reward.watching import attempted_hacks, find_alarms, read_log

    output = CommandOutput("rl reward watch", as_json=as_json)
    entries = read_log(log)
    alarms, attempts = find_alarms(entries), attempted_hacks(entries)
    sections = [
        ReportSection("alarms", ("step", "what"), tuple((str(row.step), row.message) for row in alarms)),
        ReportSection(
            "attempted hacks",
            ("family", "tries", "first step", "last step", "earned"),
            tuple(
                (row.family, str(row.tries), str(row.first_step), str(row.last_step), str(row.earned))
                for row in attempts
            ),
        ),
    ]
    fields = {
        "entries": len(entries),
        "alarms": [row.model_dump(mode="json") for row in alarms],
        "attempts": [row.model_dump(mode="json") for row in attempts],
    }
    return output.finish(fields, sections, ExitCode.CHEAT if alarms else ExitCode.DONE)


@command.command("harbor")
@click.argument("reference", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--oracle",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="A program that is known to be right: a folder or file. It is judged, and has to earn something.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The task's new folder.")
@click.option(
    "--preset",
    default="stitchcuda",
    show_default=True,
    type=click.Choice(_PRESETS),
    help="How evidence becomes a number.",
)
@click.option("--image", default="python:3.12-slim", show_default=True, help="Container image with Python.")
@session_options
@json_option
def harbor(
    reference: Path,
    oracle: Path,
    out: Path,
    preset: str,
    image: str,
    as_json: bool,
    **given: Unpack[Settings],
) -> int:
    """Write REFERENCE as a Harbor task whose verifier asks the reward service, with oracle and floor."""
    from stitch_mcp.rl.reward.harbor_export import write_harbor_task

    output = CommandOutput("rl reward harbor", as_json=as_json)
    written = write_harbor_task(
        reference, oracle, out, preset=preset, image=image, emit=output.progress, **given
    )
    note = f"written: {out}; the oracle earns {written['oracle']:.4g} from {written['floor']:g} on"
    return output.finish({"folder": str(out), "rewards": written}, [ReportSection(notes=(note,))])
