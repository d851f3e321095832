"""Reads local copies of public sets of tasks: KernelBench, KernelBook, CUDA-Agent-Ops-6K.

Only the columns that name and hold a reference are read; a row without them is refused with its number.
"""

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from stitch_mcp.rl.data.near_duplicates import fingerprint
from stitch_mcp.rl.data.sampling import family_of, level_of
from stitch_mcp.rl.data.task_filter import TaskCandidate
from stitch_tools.errors import EnvironmentMissingError, UsageError

SetFormat = Literal["kernelbench", "kernelbook", "cuda-agent-ops"]
_LEVELS = 3
_MODEL = "Model"
_MADE_BY_NAME = """

_made_with = get_init_inputs


class Model({entry}):
    \"\"\"`{entry}`, made with the arguments that its set gives.\"\"\"

    def __init__(self):
        arguments, keywords = _made_with()
        super().__init__(*arguments, **keywords)


def get_init_inputs():
    return []
"""
"""KernelBook names the class, and gives its constructor's arguments as a list and a dict."""
_MADE_ITSELF = """

_made_with = get_init_inputs


def get_init_inputs():
    arguments, keywords = _made_with()
    return keywords or arguments
"""


class _Row(BaseModel):
    """One row of a set; its further columns are not read."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    @abstractmethod
    def candidate(self, number: int) -> TaskCandidate:
        """The task of the row with this number."""


class KernelBenchRow(_Row):
    """`ScalingIntelligence/KernelBench`."""

    code: str
    level: int
    name: str
    problem_id: int

    def candidate(self, number: int) -> TaskCandidate:
        """The task of the row."""
        name = f"kernelbench-{self.level}-{self.problem_id}"
        origin = f"KernelBench level {self.level}, {self.name}"
        return _candidate(name, self.code, origin, level=min(self.level, _LEVELS))


class KernelBookRow(_Row):
    """`GPUMODE/KernelBook`."""

    entry_point: str
    python_code: str
    repo_name: str = ""
    licenses: Sequence[str] | None = None

    @field_validator("entry_point")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not value.isidentifier():
            raise ValueError("it is no name of a class")
        return value

    def candidate(self, number: int) -> TaskCandidate:
        """The task of the row: its class stands for `Model`."""
        suffix = _MADE_ITSELF if self.entry_point == _MODEL else _MADE_BY_NAME.format(entry=self.entry_point)
        name = f"kernelbook-{number}-{self.entry_point}"[:80]
        said = f" ({', '.join(self.licenses)})" if self.licenses else ""
        origin = f"KernelBook row {number}, {self.repo_name or 'unknown repository'}{said}"
        return _candidate(name, self.python_code + suffix, origin)


class CudaAgentRow(_Row):
    """`BytedTsinghua-SIA/CUDA-Agent-Ops-6K`."""

    ops: str | Sequence[str]
    """Names of the operations; a list, or its JSON text."""
    data_source: str
    code: str

    def candidate(self, number: int) -> TaskCandidate:
        """The task of the row; its level is by the number of its operations."""
        origin = f"CUDA-Agent-Ops-6K row {number}, {self.data_source}"
        return _candidate(f"cuda-agent-{number}", self.code, origin, level=level_of(len(self._names())))

    def _names(self) -> Sequence[str]:
        if not isinstance(self.ops, str):
            return self.ops
        try:
            names: object = json.loads(self.ops)
        except ValueError:
            names = self.ops.split(",")
        return cast("list[str]", names) if isinstance(names, list) else [self.ops]


ROWS: Mapping[SetFormat, type[_Row]] = {
    "kernelbench": KernelBenchRow,
    "kernelbook": KernelBookRow,
    "cuda-agent-ops": CudaAgentRow,
}


def read_set(path: Path, how: SetFormat) -> Iterator[TaskCandidate]:
    """The tasks of a local copy, in its order.

    Args:
        path: a file of JSON lines, a JSON array, or Parquet (which needs pyarrow); for `kernelbench` also a
            checkout with `level1/*.py`.
        how: whose columns it has.

    Raises:
        UsageError: it cannot be read, or a row misses a field; the message names its number.
        EnvironmentMissingError: pyarrow is not installed.
    """
    for number, fields in enumerate(_fields(path, how), 1):
        try:
            yield ROWS[how].model_validate(fields).candidate(number)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "row"
            message = f"{path}, row {number}: {where}: {first['msg'].removeprefix('Value error, ')}"
            raise UsageError(message, hint=f"its format is not {how}, or the copy is damaged") from error


def _candidate(name: str, source: str, origin: str, level: int | None = None) -> TaskCandidate:
    try:
        calls = fingerprint(source, name).calls
    except UsageError:
        calls = ()  # No Python: counted among those that do not run.
    return TaskCandidate(
        name=name,
        source=source,
        operations=calls,
        family=family_of(calls),
        level=level or level_of(len(calls)),
        origin=origin,
    )


def _fields(path: Path, how: SetFormat) -> Iterator[object]:
    if how == "kernelbench" and path.is_dir():
        yield from _checkout(path)
        return
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        with path.open("rb") as file:
            first = file.read(1)
            file.seek(0)
            yield from json.load(file) if first == b"[" else _lines(path, file)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="name a file of the set") from error
    except ValueError as error:
        raise UsageError(
            f"{path} is no JSON: {error}", hint="name JSON lines, an array or Parquet"
        ) from error


def _lines(path: Path, lines: Iterator[bytes]) -> Iterator[object]:
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}, row {number}: it is no JSON: {error}", hint="mend the line") from error


def _parquet(path: Path) -> Iterator[object]:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports, reportUnknownVariableType] # of the extra `rl`
    except ModuleNotFoundError as error:
        raise EnvironmentMissingError(
            "reading Parquet needs pyarrow", hint='install the extra: pip install "stitch-mcp[rl]"'
        ) from error
    for batch in parquet.ParquetFile(path).iter_batches():  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        yield from batch.to_pylist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _checkout(folder: Path) -> Iterator[object]:
    """The rows that the set has for the files of a checkout."""
    root = folder / "KernelBench" if (folder / "KernelBench").is_dir() else folder
    files = [(int(level.name[5:]), file) for level in root.glob("level[0-9]") for file in level.glob("*.py")]
    if not files:
        raise UsageError(f"{root} holds no level1/*.py", hint="name a checkout of KernelBench, or a file")
    for level, file in sorted(files, key=lambda row: (row[0], _number(row[1]), row[1].name)):
        text = file.read_text(encoding="utf-8")
        yield {"code": text, "level": level, "name": file.stem, "problem_id": _number(file)}


def _number(file: Path) -> int:
    digits = file.name.partition("_")[0]
    return int(digits) if digits.isdigit() else 0
