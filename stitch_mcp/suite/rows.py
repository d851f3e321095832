"""One line of a sweep, and the file that keeps the lines."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from stitch_tools.errors import MemoryHeldError, StoreError, UsageError
from stitch_tools.models.base import Fact
from stitch_tools.models.task import Contract
from stitch_tools.models.verdict import Bench

_AGAIN = (1, 2, 5, 6, 130, -9, -15)
"""Exit codes of a `solve` that say nothing about the task."""
EAGER, COMPILED, GRAPHED = "eager", "compile:", "cudagraph"


class SuiteRow(Fact):
    """What became of one task."""

    task: str
    exit_code: int
    """Of its `stitch-mcp solve`; 124 where its time was up."""
    status: str | None = None
    """CheckStatus of the best program; None where no run came to its end."""
    counts: bool = False
    reasons: tuple[str, ...] = ()
    """Why a correct program does not count."""
    flags: tuple[str, ...] = ()
    outcome: str | None = None
    """BenchOutcome against eager."""
    speedup: float | None = None
    """Over eager, whatever the outcome; None where it was not timed."""
    low: float | None = None
    """Lower end of its 95% interval."""
    high: float | None = None
    compiled_speedup: float | None = None
    """Over the fastest of torch.compile's modes that were timed."""
    graphed_speedup: float | None = None
    """Over eager in a CUDA graph, inputs copied in."""
    program_us: float | None = None
    eager_us: float | None = None
    own_share: float | None = None
    """Part of the work that the program's own code does."""
    library_share: float | None = None
    pytorch_share: float | None = None
    device: str = ""
    gpu: str = ""
    """UUID of the GPU that the run was pinned to; "" where CUDA chose."""
    contract: str = ""
    """Formats and mode of the run's contract, in words; "" where no run was opened."""
    insensitive: bool = False
    """Whether the task's own outputs do not depend noticeably on its inputs, or on its weights."""
    memory_held: bool = False
    """Whether it is `unmeasured` because other processes held memory of the device: it is tried again."""
    run_id: str | None = None
    message: str = ""
    wall_s: float = 0.0


class SuiteProtocol(Fact):
    """What all rows of a sweep have in common; a sweep goes on only under the same."""

    arguments: tuple[str, ...]
    """Options of each `stitch-mcp solve`."""
    revision: str
    """Version of this package."""
    task_count: int
    mode: str | None = None
    """Mode of all modules; None: as their files leave them."""
    compile_every: int = 1
    """torch.compile is timed on one of so many tasks, by number."""


def contract_words(contract: Contract) -> str:
    """What a contract allows and computes: `matmul fp32, conv tf32, train`."""
    words = [f"matmul {contract.matmul_precision}", f"conv {contract.conv_precision}", contract.mode]
    return ", ".join([*words, *(["relaxed"] if contract.relaxed else [])])


def row_of(
    task: str,
    answer: Mapping[str, object],
    exit_code: int,
    wall_s: float,
    *,
    contract: str = "",
    gpu: str = "",
) -> SuiteRow:
    """The row that the JSON object of a `stitch-mcp solve` amounts to.

    `contract` in words, and the GPU that the run was pinned to, are no part of that object.
    """
    bench = _bench(answer)
    ratios = {} if bench is None else {r.baseline: r for r in bench.ratios if r.contestant == "program"}
    eager = ratios.get(EAGER)
    compiled = [ratio.speedup for name, ratio in ratios.items() if name.startswith(COMPILED)]
    graphed = ratios.get(GRAPHED)
    timings = {} if bench is None else {timing.name: timing.latency_us for timing in bench.timings}
    check = _mapping(answer.get("check"))
    work = _mapping(check.get("work"))
    error = _mapping(answer.get("error"))
    untimed = bench.message if bench is not None and bench.memory_held else ""
    held = error.get("code") == MemoryHeldError.code or check.get("memory_held") is True or bool(untimed)
    return SuiteRow(
        task=task,
        exit_code=exit_code,
        status="unmeasured" if held else _text(answer.get("status")),
        counts=answer.get("counts") is True and not held,
        reasons=_texts(answer.get("reasons")),
        flags=_texts(check.get("flags")),
        outcome=_text(answer.get("outcome")),
        speedup=eager.speedup if eager else None,
        low=eager.low if eager else None,
        high=eager.high if eager else None,
        compiled_speedup=min(compiled, default=None),
        graphed_speedup=graphed.speedup if graphed else None,
        program_us=timings.get("program"),
        eager_us=timings.get(EAGER),
        own_share=_share(work.get("own")),
        library_share=_share(work.get("library")),
        pytorch_share=_share(work.get("pytorch")),
        device=bench.device if bench else "",
        gpu=gpu,
        contract=contract,
        insensitive=_is_insensitive(check.get("sensitivity")),
        run_id=_text(answer.get("run_id")),
        memory_held=held,
        message=_text(error.get("message")) or untimed or _text(answer.get("message")) or "",
        wall_s=round(wall_s, 1),
    )


class RowFile:
    """The rows of a sweep in its folder, one JSON object a line."""

    def __init__(self, folder: Path, protocol: SuiteProtocol) -> None:
        """Opens the folder, which is made where it is not there.

        Raises:
            UsageError: it holds a sweep of another protocol.
            StoreError: it cannot be written.
        """
        self.path = folder / "rows.jsonl"
        head = folder / "suite.json"
        make_folder(folder)
        try:
            known = SuiteProtocol.model_validate_json(head.read_bytes()) if head.is_file() else None
            if known is not None:
                _refuse_other(known, protocol, folder)
            # The rows stay when fewer tasks are chosen later.
            if known is None or known.task_count < protocol.task_count:
                head.write_text(protocol.model_dump_json(indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise _unwritable(folder, error) from error
        except ValidationError as error:
            raise UsageError(f"{head} is no sweep's", hint="name a new folder with --out") from error

    def read(self) -> dict[str, SuiteRow]:
        """The last row of each task that came to an end; a torn line counts for nothing.

        A task that a fault of the machine ended has none, so that the sweep tries it again. So it does with
        one that found no memory beside others; the row of that says so.
        """
        rows: dict[str, SuiteRow] = {}
        if self.path.is_file():
            for line in self.path.read_bytes().splitlines():
                try:
                    row = SuiteRow.model_validate_json(line)
                except ValidationError:
                    continue
                if row.status is not None or row.exit_code not in _AGAIN:
                    rows[row.task] = row
        return rows

    def add(self, row: SuiteRow) -> None:
        """Appends a row that is on the disk when this returns.

        Raises:
            StoreError: there is no room for it.
        """
        try:
            with self.path.open("ab") as file:
                # A torn line before this one must not swallow it.
                start = b"\n" if file.tell() and not _ends_with_newline(self.path) else b""
                file.write(start + row.model_dump_json().encode("utf-8") + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written: {error.strerror}", hint="make room") from error


def read_sweep(folder: Path) -> tuple[SuiteProtocol, list[SuiteRow]]:
    """What all rows of a sweep have in common, and the rows.

    Raises:
        UsageError: the folder holds no sweep.
    """
    try:
        protocol = SuiteProtocol.model_validate_json((folder / "suite.json").read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(f"{folder} holds no sweep", hint="name the --out folder of a `suite`") from error
    return protocol, list(RowFile(folder, protocol).read().values())


def make_folder(folder: Path) -> None:
    """Makes the folder where it is not there.

    Raises:
        StoreError: that cannot be done.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"{folder} cannot be written: {error.strerror}", hint="name another --out")


def parse_answer(text: str) -> Mapping[str, object]:
    """The object that `stitch-mcp solve --json` printed; empty where it is none."""
    try:
        return _mapping(json.loads(text))
    except ValueError:
        return {}


def _refuse_other(found: SuiteProtocol, protocol: SuiteProtocol, folder: Path) -> None:
    # More or fewer tasks may be chosen later: each row stands for itself.
    if found.model_copy(update={"task_count": protocol.task_count}) != protocol:
        options = " ".join(found.arguments)
        raise UsageError(
            f"{folder} holds a sweep with other options ({options}, {found.revision}, mode {found.mode},"
            f" torch.compile on one of {found.compile_every})",
            hint="name a new folder with --out: rows of one table are measured in one way",
        )


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _bench(answer: Mapping[str, object]) -> Bench | None:
    try:
        return Bench.model_validate(answer["bench"]) if answer.get("bench") else None
    except ValidationError:
        return None


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: object) -> tuple[str, ...]:
    """Texts, or the messages of objects."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(str(_mapping(item).get("message", item)) for item in items)


def _is_insensitive(value: object) -> bool:
    rows = cast("list[object]", value) if isinstance(value, list) else []
    return any(_mapping(row).get("probe") == "own" and _mapping(row).get("reacts") is False for row in rows)


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
