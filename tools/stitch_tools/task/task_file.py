"""The contract's sources: `task.toml`, the caller, and the rule that nothing is loosened silently.

Every key has one entry in `CONTRACT_KEYS` or `TASK_KEYS`; docs/task-file.md lists the same keys.
"""

import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from pydantic import ValidationError

from stitch_tools.errors import TaskError, UsageError
from stitch_tools.models.task import Contract, FieldSource, Task, Tolerance
from stitch_tools.storage.small_file import read_small

Value = str | int | float | tuple[str, ...] | None

_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


@dataclass(frozen=True)
class ContractKey:
    """One key of the `[contract]` table, also accepted from a caller."""

    name: str
    kind: Literal["number", "choice", "names"]
    meaning: str
    choices: tuple[str, ...] = ()
    """Where it is no statement: each asks for less than the one before it."""
    statement: bool = False
    """Says what is computed, not how exactly: the task file alone may say it freely.

    For a caller any other mode or range asks for less than was written down, be it the task's or the default:
    a range of inputs takes away draws, a mode takes away what the module does in the other one.
    """

    def asks_less(self, before: Value, after: Value) -> bool:
        """Whether the value `after` asks for less than `before` does."""
        if self.statement:
            return after != before
        if self.kind == "choice":
            return self.choices.index(str(after)) > self.choices.index(str(before))
        if self.kind == "names":
            return not set(cast("tuple[str, ...]", before)) <= set(cast("tuple[str, ...]", after))
        return cast("float", after) > cast("float", before)


CONTRACT_KEYS = (
    ContractKey("rtol", "number", "largest error of an output, relative to its rms"),
    ContractKey("atol", "number", "largest error of an output, in its own unit"),
    ContractKey("matmul_precision", "choice", "least precise format in matrix products", _PRECISIONS),
    ContractKey("conv_precision", "choice", "least precise format in convolutions", _PRECISIONS),
    ContractKey("mode", "choice", "mode of the module when it runs", ("train", "eval"), True),
    ContractKey(
        "shape_policy",
        "choice",
        "whether another batch size must work too",
        ("batch-probe", "fixed"),
    ),
    ContractKey(
        "buffers",
        "choice",
        "what happens to buffers that forward updates",
        ("updated", "const", "ignored"),
    ),
    ContractKey(
        "input_writes",
        "choice",
        "whether a program must write to its inputs what forward writes to them",
        ("compared", "ignored"),
    ),
    ContractKey(
        "input_structure",
        "choice",
        "whether other inputs keep what all inputs of the maker have",
        ("ignored", "kept"),
    ),
    ContractKey("variants", "names", "leading sizes, or other input makers, that must work too"),
    ContractKey("pytorch_share", "number", "share of the time that eager PyTorch may take"),
    ContractKey("input_low", "number", "smallest value of floating inputs", statement=True),
    ContractKey("input_high", "number", "largest value of floating inputs", statement=True),
)

TASK_KEYS = {
    "reference": "the Python file, relative to this one, with `:Object` if that is the entry",
    "entry": "class, instance or function in that file; the same as `:Object`",
    "name": "short name for people",
    "inputs": "function that returns the inputs of one call",
    "init_inputs": "function that returns constructor arguments",
    "files": "further files that belong to the task (weights, vocabularies), relative to this one",
    "search_path": "folders that the reference may also import from and read, relative to this one",
    "contract": "table: what a program must keep",
}


@dataclass(frozen=True)
class TaskFile:
    """What a task.toml says, checked key by key."""

    path: Path
    reference: str | None = None
    entry: str | None = None
    name: str | None = None
    inputs: str | None = None
    init_inputs: str | None = None
    files: tuple[str, ...] = ()
    search_path: tuple[str, ...] = ()
    contract: Mapping[str, Value] | None = None


def read_task_file(path: Path) -> TaskFile:
    """The file's keys.

    Raises:
        TaskError: not readable, not TOML, an unknown key (the nearest is named) or a value of a wrong kind.
    """
    try:
        data = tomllib.loads(read_small(path).decode("utf-8"))
    except OSError as error:
        raise TaskError(
            f"cannot read {path}: {error.strerror or error}", hint="check the path and its permissions"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(
            f"{path} is not valid TOML: {error}", hint="correct the line; see docs/task-file.md"
        ) from error
    except RecursionError as error:
        raise TaskError(f"{path} is nested too deeply", hint="see docs/task-file.md for its keys") from error
    for key in data:
        if key in {row.name for row in CONTRACT_KEYS}:
            raise TaskError(
                f"{path}: `{key}` belongs under [contract]", hint="move it below a line [contract]"
            )
        _known(key, tuple(TASK_KEYS), str(path), TaskError)
    contract = data.get("contract", {})
    if not isinstance(contract, dict):
        raise TaskError(f"{path}: contract must be a table", hint="write [contract] on a line of its own")
    values = contract_values(cast("dict[str, object]", contract), f"{path} [contract]", TaskError)
    return TaskFile(
        path=path,
        reference=_text(data, "reference", path),
        entry=_text(data, "entry", path),
        name=_text(data, "name", path),
        inputs=_text(data, "inputs", path),
        init_inputs=_text(data, "init_inputs", path),
        files=_texts(data, "files", path),
        search_path=_texts(data, "search_path", path),
        contract=values,
    )


def contract_values(
    given: Mapping[str, object], where: str, kind: type[UsageError] = UsageError
) -> dict[str, Value]:
    """`given` with each key known and each value of the right kind.

    Raises:
        UsageError: an unknown key or a wrong value; `kind` chooses the class.
    """
    rows = {row.name: row for row in CONTRACT_KEYS}
    checked: dict[str, Value] = {}
    for key, value in given.items():
        _known(key, tuple(rows), where, kind)
        checked[key] = _checked(rows[key], value, where, kind)
    return checked


def build_contract(
    task_values: Mapping[str, Value],
    caller_values: Mapping[str, Value],
    *,
    allow_relaxed: bool,
    target: str = "cpu",
) -> Contract:
    """The contract: defaults of the target, then values of the task, then the caller's, with their sources.

    A value that asks for less than the one before it is refused, or with `allow_relaxed` taken and marked.

    Raises:
        UsageError: a loosening without `allow_relaxed`, or values that do not fit together.
    """
    values = _defaults(target)
    sources: dict[str, FieldSource] = {}
    relaxed: list[str] = []
    layers: tuple[tuple[FieldSource, Mapping[str, Value]], ...] = (
        ("task.toml", task_values),
        ("caller", caller_values),
    )
    for source, given in layers:
        for row in CONTRACT_KEYS:
            if row.name not in given or given[row.name] == values[row.name]:
                continue
            before, after = values[row.name], given[row.name]
            is_free = row.statement and source == "task.toml"
            if not is_free and row.asks_less(before, after):
                relaxed.append(f"{row.name} = {after} ({source}), was {before}")
            values[row.name], sources[row.name] = after, source
    if relaxed and not allow_relaxed:
        raise UsageError(
            f"the contract would be loosened: {'; '.join(relaxed)}",
            hint="leave it as it is, or pass {allow_relaxed}: every result is then marked `relaxed`",
            options=("allow_relaxed",),
        )
    return _contract(values, sources, bool(relaxed))


def _defaults(target: str) -> dict[str, Value]:
    default = Contract.default_for(target)
    values: dict[str, Value] = {"rtol": default.tolerance.rtol, "atol": default.tolerance.atol}
    for row in CONTRACT_KEYS:
        if row.name not in values:
            values[row.name] = getattr(default, row.name)
    return values


def _contract(values: dict[str, Value], sources: dict[str, FieldSource], relaxed: bool) -> Contract:
    low, high = values["input_low"], values["input_high"]
    if low is not None and high is not None and cast("float", low) > cast("float", high):
        raise UsageError(f"input_low {low} is above input_high {high}", hint="exchange them")
    rest = {key: value for key, value in values.items() if key not in ("rtol", "atol")}
    tolerance = Tolerance.model_validate({"rtol": values["rtol"], "atol": values["atol"]})
    try:
        return Contract.model_validate(
            {**rest, "tolerance": tolerance, "sources": sources, "relaxed": relaxed}
        )
    except ValidationError as error:
        raise UsageError(
            f"the contract does not hold together: {error}", hint="see docs/task-file.md"
        ) from error


def _known(key: str, known: tuple[str, ...], where: str, kind: type[UsageError]) -> None:
    if key in known:
        return
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    nearest = f"did you mean `{near[0]}`? " if near else ""
    raise kind(f"{where}: unknown key `{key}`", hint=f"{nearest}known are {', '.join(known)}")


def _checked(row: ContractKey, value: object, where: str, kind: type[UsageError]) -> Value:
    if row.kind == "choice":
        if isinstance(value, str) and value in row.choices:
            return value
        raise kind(f"{where}: {row.name} = {value!r}", hint=f"allowed are {', '.join(row.choices)}")
    if row.kind == "names":
        return _names(row, value, where, kind)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise kind(f"{where}: {row.name} = {value!r} is not a finite number", hint=row.meaning)
    if value < 0 and row.name not in ("input_low", "input_high"):
        raise kind(f"{where}: {row.name} = {value} is negative", hint=row.meaning)
    if row.name == "pytorch_share" and value > 1:
        raise kind(f"{where}: pytorch_share = {value} is above 1", hint="it is a share: 0.10 is 10 percent")
    return float(value)


def _names(row: ContractKey, value: object, where: str, kind: type[UsageError]) -> tuple[str, ...]:
    """Names and sizes as texts, from a list, or from one text with commas (a caller's)."""
    items: list[object] = [value]
    if isinstance(value, (list, tuple)):
        items = list(cast("list[object] | tuple[object, ...]", value))
    elif isinstance(value, str):
        items = list(value.split(","))
    names: list[str] = []
    for item in items:
        if isinstance(item, float) and item.is_integer():
            item = int(item)
        text = str(item).strip() if isinstance(item, (str, int)) and not isinstance(item, bool) else ""
        if not (text.isidentifier() or (text.isdigit() and int(text) > 0)):
            raise kind(f"{where}: {row.name} = {value!r}", hint="each is a size above 0 or a function's name")
        names.append(text)
    return tuple(names)


def _text(data: Mapping[str, object], key: str, path: Path) -> str | None:
    value = data.get(key)
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise TaskError(f"{path}: {key} = {value!r} is not a text", hint=TASK_KEYS[key])


def _texts(data: Mapping[str, object], key: str, path: Path) -> tuple[str, ...]:
    value = data.get(key, [])
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = tuple(item for item in items if isinstance(item, str) and item)
    if not isinstance(value, list) or len(texts) != len(items):
        raise TaskError(f"{path}: {key} = {value!r} is not a list of texts", hint=TASK_KEYS[key])
    return texts


def task_file_text(reference: str, *, name: str, entry: str, inputs: str, init_inputs: str | None) -> str:
    """A task.toml for `reference` in which every key stands, those with a default commented out."""
    lines = [
        "# What a faster program must keep.",
        "# Lines that start with '#' show the default, or say that there is none.",
        f"reference = {json.dumps(reference, ensure_ascii=False)}",
        f"# entry = {json.dumps(entry, ensure_ascii=False)}  # {TASK_KEYS['entry']}",
        f"# name = {json.dumps(name, ensure_ascii=False)}  # {TASK_KEYS['name']}",
        f"inputs = {json.dumps(inputs)}",
    ]
    if init_inputs is not None:
        lines.append(f"init_inputs = {json.dumps(init_inputs)}")
    lines += [f"# {key} = []  # {TASK_KEYS[key]}" for key in ("files", "search_path")]
    lines += ["", "[contract]"]
    on_gpu = _defaults("cuda")
    for key, value in _defaults("cpu").items():
        row = next(row for row in CONTRACT_KEYS if row.name == key)
        shown = json.dumps(value) if value is not None else "0.0"  # a tuple becomes a list
        choices = f" ({', '.join(row.choices)})" if row.choices else ""
        note = "" if value is not None else ": no bound unless set"
        if on_gpu[key] != value:
            note += f"; default on a GPU: {json.dumps(on_gpu[key])}"
        lines.append(f"# {key} = {shown}  # {row.meaning}{choices}{note}")
    return "\n".join(lines) + "\n"


def stated_text(task: Task) -> str:
    """Text of a `NAME.task.toml` that makes `task` of its sources again; "" where they alone do.

    What a caller changed stands in it as if the task had said it.
    """
    head: dict[str, object] = {}
    if task.style == "object":
        head |= {"entry": task.entry, "inputs": task.inputs}
        head |= {"init_inputs": task.init_inputs} if task.init_inputs else {}
    if task.search_path:
        head["search_path"] = task.search_path
    default = Contract.default_for(task.target)
    names = [row.name for row in CONTRACT_KEYS]
    changed = {name: _value(task.contract, name) for name in names}
    changed = {name: value for name, value in changed.items() if value != _value(default, name)}
    changed |= {"mode": task.contract.mode} if task.contract.named_mode else {}
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
    lines += ["[contract]"] if changed else []
    lines += [f"{name} = {json.dumps(value)}" for name, value in changed.items()]
    return "\n".join(lines) + "\n" if lines else ""


def _value(contract: Contract, name: str) -> object:
    return getattr(contract.tolerance if name in ("rtol", "atol") else contract, name)
