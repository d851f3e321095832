"""`stitch-mcp suite kernelbench`, `folder` and `compare`."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from stitch_mcp import __version__
from stitch_mcp.cli.interrupt import stop_on_interrupt
from stitch_mcp.cli.options import backend_options, is_on_ray, json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.cli.streams import tell
from stitch_mcp.report.page_template import sections_html, sections_markdown
from stitch_mcp.suite.compare import compare_sections, moved_tasks
from stitch_mcp.suite.gpus import gpu_pins
from stitch_mcp.suite.rows import RowFile, SuiteProtocol, SuiteRow, read_sweep
from stitch_mcp.suite.sentinels import Sentinels, sentinel_lines
from stitch_mcp.suite.solving import SolvePool
from stitch_mcp.suite.summary import (
    how_it_ended,
    sections,
    summarise,
    summarise_telling,
    summary_lines,
)
from stitch_mcp.suite.sweep import Sweep, local_solvers, ray_solvers
from stitch_mcp.suite.tasks import SuiteTask, chosen, folder_tasks, in_mode, kernelbench_tasks, level_numbers
from stitch_mcp.views.table import ReportSection, one_line
from stitch_tools.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What both kinds of sweep take."""

    path: Path
    only: str
    every: int
    mode: str | None
    out: Path
    jobs: int | None
    gpus: str | None
    compile_every: int
    task_limit_s: float
    begin_until_s: float | None
    backend: str | None
    address: str | None
    sentinels: int
    as_json: bool


def _sweep_options(command: F) -> F:
    """The command with the options of a sweep."""
    for option in reversed(
        (
            click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
            click.option("--path", required=True, type=_FOLDER, help="The checkout, or the folder."),
            click.option(
                "--only", default="", metavar="WORDS", help="Only tasks whose name holds one of these words."
            ),
            click.option(
                "--every",
                default=1,
                type=click.IntRange(min=1),
                metavar="N",
                help="Only tasks 1, 1+N, 1+2N, ... by number (default: all).",
            ),
            click.option(
                "--mode",
                type=click.Choice(["train", "eval"]),
                help="Mode of all modules (default: as shipped).",
            ),
            click.option(
                "--out", required=True, type=click.Path(path_type=Path), help="Folder of the sweep."
            ),
            click.option(
                "--jobs",
                type=click.IntRange(min=1),
                metavar="N",
                help="Runs side by side (default: one for each GPU).",
            ),
            click.option(
                "--gpus", metavar="N,N|all", help="GPUs to share the runs among (default: the first one)."
            ),
            click.option(
                "--compile-every",
                default=1,
                type=click.IntRange(min=1),
                metavar="N",
                help="Time torch.compile on tasks 1, 1+N, ... alone (default: on all).",
            ),
            click.option(
                "--task-limit-s", default=900.0, metavar="SECONDS", help="Longest run (default: 900)."
            ),
            click.option(
                "--begin-until-s", type=float, metavar="SECONDS", help="Begin no task later than this."
            ),
            backend_options,
            click.option(
                "--sentinels",
                default=0,
                type=click.IntRange(min=0),
                metavar="N",
                help="Time N of the tasks once more at the end, and show the machine's drift.",
            ),
            json_option,
        )
    ):
        command = option(command)
    return command


@click.group("suite")
def command() -> None:
    """Solve KernelBench levels or a folder as one sweep, or compare two sweeps.

    Options behind --, such as -- --target cuda --quick, go to each task's `stitch-mcp solve`. The sweep's
    folder keeps a row a task (rows.jsonl), the runs, and summaries (summary.md, summary.html); the same
    command goes on where one was interrupted. A timing has its GPU to itself, whatever --jobs says.
    """


@command.command("kernelbench")
@click.option("--level", "levels", default="3", metavar="N,N", help="KernelBench's levels (default: 3).")
@_sweep_options
def kernelbench(levels: str, arguments: tuple[str, ...], **given: Any) -> int:
    """Solve every problem of KernelBench's levels, as one sweep."""
    options = SweepOptions(**given)
    tasks = kernelbench_tasks(options.path, level_numbers(levels))
    return _run_sweep("suite kernelbench", f"KernelBench level {levels}", tasks, arguments, options)


@command.command("folder")
@_sweep_options
def folder(arguments: tuple[str, ...], **given: Any) -> int:
    """Solve every reference of a folder, as one sweep."""
    options = SweepOptions(**given)
    title = f"The references of {options.path.name}"
    return _run_sweep("suite folder", title, folder_tasks(options.path), arguments, options)


@command.command("compare")
@click.argument("first", metavar="DIR_A", type=_FOLDER)
@click.argument("second", metavar="DIR_B", type=_FOLDER)
@click.option("--out", type=click.Path(path_type=Path), help="Also write the tables to this Markdown file.")
@json_option
def compare(first: Path, second: Path, out: Path | None, as_json: bool) -> int:
    """Show which tasks moved from one sweep to another: how they ended, and their speedups."""
    sweeps = [read_sweep(first), read_sweep(second)]
    tables = compare_sections(sweeps[0], sweeps[1])
    if out is not None:
        out.write_text(
            sections_markdown(f"{first.name} and {second.name}", tables), encoding="utf-8", newline="\n"
        )
    fields = {"moved": moved_tasks(sweeps[0][1], sweeps[1][1])}
    return CommandOutput("suite compare", as_json=as_json).finish(fields, tables)


def _run_sweep(
    name: str, title: str, tasks: Sequence[SuiteTask], arguments: tuple[str, ...], options: SweepOptions
) -> int:
    """Solve what is left of the tasks, and write the summaries."""
    output = CommandOutput(name, as_json=options.as_json)
    tasks = chosen(tasks, options.only, options.every)
    protocol = SuiteProtocol(
        arguments=arguments,
        revision=f"stitch-mcp {__version__}",
        task_count=len(tasks),
        mode=options.mode,
        compile_every=options.compile_every,
    )
    file = RowFile(options.out, protocol)
    known = file.read()
    left = [task for task in tasks if task.name not in known or known[task.name].memory_held]
    if options.mode:
        left = in_mode(left, options.mode, options.out / "tasks")
    output.progress(f"{len(left)} of {len(tasks)} tasks are left")

    def say(row: SuiteRow) -> None:
        gain = f", {row.speedup:.2f}x" if row.speedup is not None else ""
        word = "counts" if row.counts else how_it_ended(row)
        tell(one_line(output.stamped(f"{row.task}: {word}{gain} ({row.wall_s:.0f} s) {row.message}"), 150))

    with stop_on_interrupt() as stop:
        _sweep(file, arguments, options).run(left, begin_until_s=options.begin_until_s, stop=stop, emit=say)
        if options.sentinels and not stop.is_set():
            _time_sentinels(tasks, file, arguments, options, output, stop)
    return _finish(title, tasks, file, protocol, options, output, interrupted=stop.is_set())


def _time_sentinels(
    tasks: Sequence[SuiteTask],
    file: RowFile,
    arguments: tuple[str, ...],
    options: SweepOptions,
    output: CommandOutput,
    stop: threading.Event,
) -> None:
    rows = file.read()
    ordered = [rows[task.name] for task in tasks if task.name in rows]
    by_name = {task.name: task for task in tasks}
    if options.mode:
        stated = in_mode(tasks, options.mode, options.out / "tasks")
        by_name = {task.name: task for task in stated}
    sentinels = Sentinels(options.out, options.out / "workspace", arguments, _pins(options))
    sentinels.run(
        ordered,
        by_name,
        options.sentinels,
        lambda timing: tell(output.stamped(f"{timing.task} again: {timing.drift:+.1%}")),
        stop=stop,
    )


def _sweep(file: RowFile, arguments: tuple[str, ...], options: SweepOptions) -> Sweep:
    return Sweep(
        file,
        options.out / "workspace",
        arguments,
        _solvers(arguments, options),
        task_limit_s=options.task_limit_s,
        compile_every=options.compile_every,
    )


def _solvers(arguments: tuple[str, ...], options: SweepOptions) -> SolvePool:
    from stitch_mcp.backends.pool_status import StatusFile

    status_file = StatusFile(options.out, "suite")
    if is_on_ray(options.backend, options.address):
        if options.gpus:
            raise UsageError("--gpus names GPUs of this machine", hint="on a cluster Ray gives each run one")
        on_gpus = any(word.removeprefix("--target=").startswith("cuda") for word in arguments)
        return ray_solvers(options.jobs or 1, options.address, on_gpus=on_gpus, status_file=status_file)
    pins = _pins(options)
    return local_solvers(options.jobs or max(1, len(pins)), pins, status_file)


def _pins(options: SweepOptions) -> tuple[str, ...]:
    """The GPUs that the runs share; none where CUDA chooses."""
    from stitch_tools.machine.devices import find_gpus

    return gpu_pins(options.gpus, find_gpus()) if options.gpus else ()


def _finish(
    title: str,
    tasks: Sequence[SuiteTask],
    file: RowFile,
    protocol: SuiteProtocol,
    options: SweepOptions,
    output: CommandOutput,
    *,
    interrupted: bool,
) -> int:
    """Write the summaries and print the figures."""
    rows = file.read()
    ordered = [rows[task.name] for task in tasks if task.name in rows]
    drift = sentinel_lines(Sentinels(options.out, options.out / "workspace").read())
    tables = sections(ordered, len(tasks), protocol)
    tables[1:1] = [ReportSection(notes=tuple(drift))] if drift else []
    for name, text in (
        ("summary.md", sections_markdown(title, tables)),
        ("summary.html", sections_html(title, tables)),
    ):
        (options.out / name).write_text(text, encoding="utf-8", newline="\n")
    summary = summarise(ordered, len(tasks))
    telling = summarise_telling(ordered, len(tasks))
    fields = {**dict(summary), "telling": telling, "rows": ordered, "folder": str(options.out)}
    notes = (
        *summary_lines(summary),
        *drift,
        f"written: {options.out / 'summary.md'}, and summary.html beside it",
    )
    unfinished = summary.known < summary.tasks
    return output.finish(fields, [ReportSection(notes=notes)], 130 if unfinished and interrupted else 0)
