"""How many faults the check notices: correct CPU programs with one fault each, judged by the real check.

    scripts/mutants                 all mutants, about ten minutes on two cores
    scripts/mutants --sample 24     so many, spread over all
    scripts/mutants --cross-check   also the search alone on those that the judge killed
    scripts/mutants --json          one object
    scripts/mutants --markdown FILE the table into a file, too

Programs are honest ones of the zoo and some that the stitcher writes; the faults are those of
`mutation_operators.py`. A mutant that passes is compared with its original by `mutant_search.py`, outside the
judge: only what no input tells apart there is `equivalent`; the rest was missed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, Self, TypeVar

from stitch_tools.compile.build import compile_program
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import make_task
from tests.tools.judge.conditions import conditions, in_lines
from tests.tools.judge.mutation_operators import edits
from tests.tools.judge.zoo_runner import ZOO, load_cases

Outcome = Literal["killed", "equivalent", "missed"]
Row = TypeVar("Row")
OPTIONS = CheckOptions(trace=False, max_failures=1, call_timeout_s=20.0)
"""All probes that compare outputs; who does the work cannot tell right from wrong."""
_WHAT = """One fault each (`tests/tools/judge/mutation_operators.py`), judged by the whole check but for the
trace. A mutant that passes is compared with its original outside the judge (`mutant_search.py`): on random,
structured and climbing inputs of several sizes, under several weights. Only what nothing there tells apart is
`equivalent`; the rest was missed. The rate leaves equivalent ones out."""
_A_PROGRAM = 16
_SEARCH_S = 300.0


@dataclass(frozen=True)
class Original:
    """A correct program."""

    name: str
    reference: str
    files: dict[str, bytes]
    main: str
    functions: tuple[str, ...]
    """Those that compute: faults are put there."""


@dataclass(frozen=True)
class Mutant:
    """A program with one fault."""

    original: Original
    operator: str
    line: int
    before: str
    after: str
    source: bytes

    @property
    def name(self) -> str:
        """Program, operator and place."""
        return f"{self.original.name}/{self.operator}:{self.line}"


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    program: str
    operator: str
    line: int
    before: str
    after: str
    outcome: Outcome
    status: str
    evidence: str
    """What the judge said, or how the search fared."""
    seconds: float
    search: str | None = None
    """How the search alone fares on a mutant that the judge killed; None: not tried."""


HAND_WRITTEN: dict[str, tuple[str, ...]] = {
    "weights_prepacked": ("linear_relu",),
    "shape_guard": ("softmax_wide",),
    "in_place_workspace": ("layer_norm",),
    "strided_input": ("centre",),
    "batch_norm_training": ("batch_norm",),
    "threads_from_environment": ("linear", "gelu"),
    "timed_for_debugging": ("moments",),
    "mapped_scratch": ("causal_softmax",),
    "output_written_twice": ("convolve",),
    "tasks_in_parallel": ("pool_plane",),
    "argmax_in_two_steps": ("argmax",),
}
"""Honest candidates of the zoo, and their functions that compute."""
STITCHED = ("layer_norm", "softmax", "two_layers")
"""References for which the stitcher writes the program."""


def originals() -> Iterator[Original]:
    """All correct programs."""
    honest = {case.name: case for case in load_cases("cpu", "honest")}
    for name, functions in HAND_WRITTEN.items():
        case = honest[name]
        yield Original(name, case.reference, case.files(), case.main, functions)
    for name in STITCHED:
        yield _stitched(name)


def _stitched(reference: str) -> Original:
    """The stitcher's program for one of the zoo's references."""
    from tests.planner.stitch_support import made  # torch: only where a program is written
    from tests.tools.judge.mutant_search import load_reference

    source = load_reference(ZOO / "references" / f"{reference}.py")
    stitched = made(source.Model(*source.get_init_inputs()), source.get_inputs()).stitched
    if stitched.format != "native":
        raise AssertionError(f"{reference}: the stitcher leaves something to PyTorch")
    return Original(
        f"stitched {reference}", reference, stitched.files, stitched.main, ("term", "finish", "apply")
    )


def mutants(original: Original) -> list[Mutant]:
    """The same faults of a program each time, of as many operators as fit."""
    source = original.files[original.main]
    return [
        Mutant(
            original,
            operator,
            source.count(b"\n", 0, edit.start) + 1,
            source[edit.start : edit.end].decode(),
            edit.text,
            edit.apply(source),
        )
        for operator, edit in edits(source, original.functions, _A_PROGRAM)
    ]


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    """So many of the rows, at even distances."""
    if len(rows) <= count:
        return list(rows)
    return [rows[index * len(rows) // count] for index in range(count)]


class MutantBench:
    """A warm session that judges mutants; they are built ahead, in the background."""

    def __init__(self, session: TargetSession, root: Path, *, cross_check: bool = False) -> None:
        self.session, self.root, self.cross_check = session, root, cross_check
        self.store = Store(root / "store")
        self._open = ExitStack()
        self._pool = self._open.enter_context(ThreadPoolExecutor(2))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._open.close()

    def judge(self, rows: Iterable[Mutant]) -> Iterator[Result]:
        """What became of each; those that do not compile are left out."""
        futures = [(row, self._pool.submit(self.build, row.original, row.source)) for row in rows]
        for _, group in groupby(futures, key=lambda row: row[0].original.reference):
            members = list(group)
            task = make_task(self.store, self._reference(members[0][0].original).read_bytes())
            with ReferenceServer(self.session, task, self.store) as server:
                facts = server.observe()
                for mutant, future in members:
                    program, build = future.result()
                    if build.ok:
                        yield self._judge(mutant, task, program, build, server, facts)

    def status_of(self, original: Original) -> str:
        """The judge's word on a program without a fault."""
        task = make_task(self.store, self._reference(original).read_bytes())
        program, build = self.build(original, original.files[original.main])
        with ReferenceServer(self.session, task, self.store) as server:
            check = self._check(task, program, build, server, server.observe())
        return check[0]

    def _reference(self, original: Original) -> Path:
        return ZOO / "references" / f"{original.reference}.py"

    def build(self, original: Original, source: bytes) -> tuple[Program, Build]:
        """The original with this text as its main file."""
        files = self.store.put_files({**original.files, original.main: source})
        program = Program(format="native", target="cpu", files=files, main=original.main)
        return program, compile_program(program, self.store, cache_dir=self.root / "cache")

    def _check(
        self, task: Task, program: Program, build: Build, server: ReferenceServer, facts: ReferenceFacts
    ) -> tuple[str, str]:
        check = check_program(
            Trial(
                task=task,
                program=program,
                build=build,
                session=self.session,
                store=self.store,
                facts=facts,
                reference=server,
            ),
            OPTIONS,
        )
        if check.status == "accepted" and "unguarded" in check.flags:
            return "unguarded", next(row.message for row in check.findings if row.rule == "unguarded")
        return check.status, check.message

    def _judge(
        self,
        mutant: Mutant,
        task: Task,
        program: Program,
        build: Build,
        server: ReferenceServer,
        facts: ReferenceFacts,
    ) -> Result:
        start = time.monotonic()
        status, message = self._check(task, program, build, server, facts)
        outcome: Outcome = "killed"
        search: str | None = None
        if status == "accepted":
            outcome, message = self.search(mutant, build)
        elif self.cross_check:
            search = self.search(mutant, build)[1]
        return Result(
            mutant.original.name,
            mutant.operator,
            mutant.line,
            mutant.before,
            mutant.after,
            outcome,
            status,
            message,
            time.monotonic() - start,
            search,
        )

    def search(self, mutant: Mutant, build: Build) -> tuple[Outcome, str]:
        """Whether anything tells the mutant from its original."""
        _, original = self.build(mutant.original, mutant.original.files[mutant.original.main])
        if build.artifact_sha256 == original.artifact_sha256:
            return "equivalent", "the same machine code"
        spec = {
            "original": original.artifact,
            "mutant": build.artifact,
            "libraries": build.libraries,
            "reference": str(self._reference(mutant.original)),
        }
        command = [sys.executable, "-m", "tests.tools.judge.mutant_search", json.dumps(spec)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SEARCH_S)
        except subprocess.TimeoutExpired:
            return "missed", "the search did not end in time"
        if done.returncode != 0:
            return "missed", f"the search died: {done.stderr[-300:]}"
        said = done.stdout.strip().splitlines()[-1]
        return ("equivalent" if said.startswith("same") else "missed"), said


def rate(results: Sequence[Result]) -> float:
    """Killed mutants by those that are not equivalent."""
    different = [row for row in results if row.outcome != "equivalent"]
    return sum(row.outcome == "killed" for row in different) / max(1, len(different))


def table(results: Sequence[Result]) -> str:
    """Markdown: one row an operator, then what was not killed."""
    lines = ["| operator | mutants | killed | equivalent | missed | rate |", "|---|---|---|---|---|---|"]
    for name in (*dict.fromkeys(row.operator for row in results), "all"):
        rows = [row for row in results if name in (row.operator, "all")]
        share = f"{rate(rows):.1%}" if any(row.outcome != "equivalent" for row in rows) else "-"
        counts = [sum(row.outcome == word for row in rows) for word in ("killed", "equivalent", "missed")]
        lines.append(f"| {name} | {len(rows)} | " + " | ".join(map(str, counts)) + f" | {share} |")
    lines.append("")
    for row in results:
        if row.outcome != "killed":
            lines.append(f"- {row.outcome}: {_in_words(row)}: {row.evidence}")
    tried = [row for row in results if row.search is not None]
    if tried:
        blind = [row for row in tried if row.search is not None and row.search.startswith("same")]
        told = len(tried) - len(blind)
        lines.append(
            f"- The search alone tells apart {told} of the {len(tried)} mutants that the judge killed."
        )
        lines += [f"- not by the search: {_in_words(row)}: {row.evidence}" for row in blind]
    return "\n".join(lines)


def _in_words(row: Result) -> str:
    what = " ".join(f"`{row.before}` -> `{row.after}`".split())
    return f"{row.program}, line {row.line}, {row.operator}: {what}"


def main() -> int:
    """Exit code: 0 when at least 98 % of the mutants that are not equivalent were killed."""
    parser = argparse.ArgumentParser(description="How many faults in correct programs the check notices.")
    parser.add_argument("--sample", type=int, help="judge so many, spread over all")
    parser.add_argument("--programs", nargs="*", help="only programs of these names")
    parser.add_argument("--cross-check", action="store_true", help="search for killed mutants, too")
    parser.add_argument("--json", action="store_true", help="print one object instead of a table")
    parser.add_argument("--markdown", metavar="FILE", help="write the table into a file")
    options = parser.parse_args()
    start = time.monotonic()
    chosen = [row for row in originals() if not options.programs or row.name in options.programs]
    rows = [mutant for original in chosen for mutant in mutants(original)]
    rows = spread(rows, options.sample or len(rows))
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder)
        session = TargetSession(find_interpreter(None, root), threads=1, scratch_root=root / "scratch")
        with session, MutantBench(session, root, cross_check=options.cross_check) as bench:
            for result in bench.judge(rows):
                results.append(result)
                where = f"{result.program}/{result.operator}:{result.line}"
                print(f"{result.outcome}: {where}: {result.evidence}", file=sys.stderr, flush=True)
    seconds = time.monotonic() - start
    programs = len({row.program for row in results})
    text = f"{table(results)}\n\n{len(results)} mutants of {programs} programs, {seconds:.0f} s\n"
    head = ["# Faults put into correct programs", "", *in_lines(conditions(sys.executable)), "", _WHAT, ""]
    if options.markdown:
        Path(options.markdown).write_text("\n".join([*head, text]), encoding="utf-8")
    if options.json:
        print(json.dumps({"seconds": seconds, "rate": rate(results), "mutants": [*map(asdict, results)]}))
    else:
        print(text)
    return 0 if rate(results) >= 0.98 else 1


if __name__ == "__main__":
    sys.exit(main())
