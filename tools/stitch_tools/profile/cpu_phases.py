"""Reads what the sampler wrote (native/src/sampler.c), and names the functions that its samples lie in."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.compile.confinement import readable_paths
from stitch_tools.compile.resources import demangle
from stitch_tools.compile.runner import run_compiler
from stitch_tools.models.profile import TimeOwner
from stitch_tools.profile.own_paths import own_path
from stitch_tools.storage.scratch import make_scratch

REPORT = "report.phases"
_MOST_ADDRESSES = 4000
_ADDR2LINE_LIMIT_S = 60.0
_OPENMP = ("libgomp", "libomp", "libiomp")
_VENDOR = ("libdnnl", "libonednn", "libmkl", "libopenblas")
MADE_AT_RUN_TIME = "code made at run time"
WAITING = "waiting for threads"
_FORWARDS = ("stitch_forward", "forward", "run")
_CALLS = re.compile(r"^calls (\d{1,12}) (\d{1,18}) (\d{1,18}) (\d{1,18})$")
_STEP = re.compile(r"^step (\d{1,6}) (\d{1,12}) (\d{1,18}) (\d{1,18}) (\d{1,18}) (.+)$")
_SAMPLE = re.compile(r"^sample (\d{1,9}) (-?\d{1,6}) ([0-9a-f]{1,16}) (.+)$")
_SYMBOL = re.compile(r"^symbol ([0-9a-f]{1,16}) (\S+) (\S+)$")
_PLACE = re.compile(r"^(.*):(\d+|\?)(?: \(discriminator \d+\))?$")


@dataclass(frozen=True)
class StepTime:
    """One named step of all forwards."""

    name: str
    calls: int
    total_ns: int
    median_ns: int
    """Of one call: what a busy machine does to a few calls does not show in it."""
    cpu_ns: int
    """Of all calls, while the calling thread ran."""


@dataclass(frozen=True)
class PhaseSample:
    """Ticks at which the calling thread was at one place."""

    count: int
    step: int
    """Index of the step; -1: outside of all."""
    offset: int
    """In its module; an address where there is no module."""
    module: str
    """Path of a library; "-" for code that was made at run time."""
    symbol: str = ""
    """As the module names it; "" where it does not."""


@dataclass(frozen=True)
class Phases:
    """What the sampler saw. All numbers are claims of the process that the program ran in."""

    calls: int
    total_ns: int
    median_ns: int
    """Of one forward."""
    cpu_ns: int
    steps: tuple[StepTime, ...]
    samples: tuple[PhaseSample, ...]


@dataclass(frozen=True)
class CodePlace:
    """What code lies at an address."""

    phase: str
    """The function that the forward calls, as far as inlined code tells; of a library its own."""
    function: str
    """The innermost function of the program's own files."""
    owner: TimeOwner
    file: str | None = None
    line: int | None = None


def parse_phases(text: str) -> Phases | None:
    """The sampler's report; None where it did not come to its end."""
    calls: tuple[int, int, int, int] | None = None
    steps: dict[int, StepTime] = {}
    samples: list[PhaseSample] = []
    symbols: dict[tuple[int, str], str] = {}
    for line in text.splitlines():
        if match := _CALLS.match(line):
            calls = int(match[1]), int(match[2]), int(match[3]), int(match[4])
        elif match := _STEP.match(line):
            number, count, total, median, cpu = map(int, match.groups()[:5])
            steps[number] = StepTime(match[6], count, total, median, cpu)
        elif match := _SAMPLE.match(line):
            samples.append(PhaseSample(int(match[1]), int(match[2]), int(match[3], 16), match[4]))
        elif match := _SYMBOL.match(line):
            symbols[int(match[1], 16), match[2]] = match[3]
    if calls is None or not calls[0] or sorted(steps) != list(range(len(steps))):
        return None
    named = (
        PhaseSample(row.count, row.step, row.offset, row.module, symbols.get((row.offset, row.module), ""))
        for row in samples
    )
    return Phases(*calls, tuple(steps[at] for at in range(len(steps))), tuple(named))


def locate(
    phases: Phases, artifact: Path, *, main: str, files: Sequence[str]
) -> dict[PhaseSample, CodePlace]:
    """The function of each sample, by debug information for the program's own, by symbols for libraries.

    Args:
        phases: from `parse_phases`.
        artifact: the program, built with line tables.
        main: its main file, whose functions are named rather than what they inline.
        files: its own paths.
    """
    own = [row for row in phases.samples if Path(row.module).name == artifact.name]
    stacks = _ask_addr2line(artifact, sorted({row.offset for row in own})[:_MOST_ADDRESSES])
    readable = dict.fromkeys(row.symbol for row in phases.samples if row.symbol)
    names = dict(zip(readable, demangle(list(readable)), strict=True))
    found: dict[PhaseSample, CodePlace] = {}
    for row in phases.samples:
        if row in own:
            found[row] = _own_place(stacks.get(row.offset, ()), main, files)
        else:
            found[row] = _library_place(row, names)
    return found


def parse_addr2line(text: str) -> dict[int, tuple[tuple[str, str, int | None], ...]]:
    """Output of `addr2line -a -f -C -i`: function, file and line by address, the innermost first."""
    found: dict[int, list[tuple[str, str, int | None]]] = {}
    current: list[tuple[str, str, int | None]] | None = None
    function = ""
    for line in text.splitlines():
        if re.fullmatch(r"0x[0-9a-f]+", line):
            current, function = found.setdefault(int(line, 16), []), ""
        elif current is not None and not function:
            function = line
        elif current is not None:
            place = _PLACE.match(line)
            number = int(place[2]) if place is not None and place[2].isdecimal() else None
            current.append((function, place[1] if place is not None else "", number or None))
            function = ""
    return {address: tuple(stack) for address, stack in found.items()}


def _own_place(stack: Iterable[tuple[str, str, int | None]], main: str, files: Sequence[str]) -> CodePlace:
    """The innermost frame in the main file; else in another file of the program; else any."""
    frames = [(_plain(function), own_path(path, files), line) for function, path, line in stack]
    if not frames or frames[0][0] == "??":
        return CodePlace("the program", "the program", "own")
    # What is compiled into the forward itself would be one phase: its parts tell more.
    outer = [name for name, _, _ in frames if name not in _FORWARDS]
    phase = outer[-1] if outer else frames[-1][0]
    for wanted in ((main,), files):
        for function, path, line in frames:
            if path in wanted:
                return CodePlace(phase, function, "own", path, line)
    return CodePlace(phase, frames[0][0], "own")


def _library_place(row: PhaseSample, names: Mapping[str, str]) -> CodePlace:
    if row.module == "-":
        # oneDNN writes its kernels when the program is prepared; nothing names them.
        return CodePlace(MADE_AT_RUN_TIME, MADE_AT_RUN_TIME, "vendor")
    library = Path(row.module).name.partition(".")[0]
    if library.startswith(_OPENMP):
        return CodePlace(WAITING, WAITING, "other")
    function = f"{library}: {_plain(names.get(row.symbol, row.symbol))}" if row.symbol else library
    return CodePlace(function, function, "vendor" if library.startswith(_VENDOR) else "other")


def _plain(function: str) -> str:
    """Without parameters and what the compiler adds to the parts of a function."""
    text = re.sub(r"\s*\[clone [^\]]*\]|\._omp_fn\.\d+|\.(?:constprop|isra|part|cold)\.?\d*", "", function)
    text = text.replace("(anonymous namespace)::", "")
    depth = 0
    for at in range(len(text) - 1, -1, -1) if text.endswith((")", ") const")) else ():
        depth += {")": 1, "(": -1}.get(text[at], 0)
        if depth == 0 and text[at] == "(":
            return text[:at]
    return text


def _ask_addr2line(
    artifact: Path, offsets: Sequence[int]
) -> dict[int, tuple[tuple[str, str, int | None], ...]]:
    """The stacks of inlined functions; {} where binutils are missing."""
    if not offsets:
        return {}
    command = ("addr2line", "-a", "-f", "-C", "-i", "-e", str(artifact), *map(hex, offsets))
    with make_scratch("addresses") as root:
        try:
            done = run_compiler(
                command,
                folder=root,
                scratch=root,
                time_limit_s=_ADDR2LINE_LIMIT_S,
                readable=readable_paths((), (artifact,)),
            )
        except OSError:
            return {}
    return parse_addr2line(done.output)
