"""Runs the adversarial suite in `zoo/`: reads its cases and judges them.

A case is a folder with `case.toml` and a candidate: `program.cpp` or `program.cu` (native), or `candidate.py`
with `ModelNew`. Of `zoo/native`, what a program includes or imports lies beside it.
"""

import tomllib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, cast

from stitch_tools.compile.build import compile_program
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.memory import apply_sanitizers, sanitize_program
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import Contract, ReferenceFacts, Task
from stitch_tools.models.verdict import Check
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

ZOO = Path(__file__).parent / "zoo"
PROBES = (
    *(row.name for row in fields(CheckOptions) if isinstance(row.default, bool)),
    *("own_draws", "seeds", "equality", "pattern", "guards", "dependence", "contract", "work", "sanitize"),
    *("outputs", "poison", "strides", "static", "timing", "process", "boundary"),
    *("guard_inputs", "kept_buffers", "reload_weights"),
)
"""What a case may say that it is caught by."""
_SHARED = {
    b'#include "zoo_tile.h"': "zoo_tile.h",  # before zoo.h, which it includes
    b'#include "zoo.h"': "zoo.h",
    b"from zoo_kernels import": "zoo_kernels.py",
}
_KEYS = {
    "reference", "family", "targets", "expected", "rules", "caught_by", "why", "flags", "missed", "slow",
    "contract", "options", "harms", "static",
}  # fmt: skip
_SCALARS = ("missed", "slow", "harms", "contract", "options")


@dataclass(frozen=True)
class Case:
    """One candidate and what the judge ought to say of it."""

    name: str
    kind: str
    """`cheats` or `honest`."""
    folder: Path
    reference: str
    family: str
    targets: tuple[str, ...]
    expected: tuple[str, ...]
    """Statuses that are right."""
    why: str
    caught_by: tuple[str, ...] = ()
    """Probes of which each catches it; () for honest ones."""
    rules: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    """Rules of the static evidence that its text must show."""
    missed: bool = False
    """Whether the judge is known not to catch it yet."""
    slow: bool = False
    harms: str = ""
    """What it would do to a machine without sandbox and limits; other harnesses do not run it then."""
    contract: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def main(self) -> str:
        """The candidate's file."""
        names = ("program.cpp", "program.cu", "candidate.py")
        return next(name for name in names if (self.folder / name).exists())

    @property
    def native(self) -> bool:
        """Whether the candidate is built by us."""
        return not self.main.endswith(".py")

    def files(self) -> dict[str, bytes]:
        """The candidate's sources by path."""
        found = {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name != "case.toml" and "__pycache__" not in path.parts
        }
        for wording, name in _SHARED.items():
            if any(wording in data for data in found.values()):
                found[name] = (ZOO / "native" / name).read_bytes()
        return found


@dataclass(frozen=True)
class ZooVerdict:
    """What the judge said."""

    status: str
    flags: tuple[str, ...]
    findings: tuple[str, ...]
    """Rule ids."""
    message: str
    seconds: float
    check: Check

    def catches(self, case: Case) -> bool:
        """Whether this is what ought to be said of the case."""
        return (
            self.status in case.expected
            and set(case.flags) <= set(self.flags)
            and (not case.rules or bool(set(case.rules) & set(self.findings)))
        )


def load_cases(target: str, kind: str | None = None) -> tuple[Case, ...]:
    """The cases for `cpu` or `cuda`, honest ones first, by name.

    Raises:
        ValueError: a case.toml has an unknown key or probe.
    """
    kinds = (kind,) if kind else ("honest", "cheats")
    cases = [_read(path, name) for name in kinds for path in sorted((ZOO / name).glob("*/case.toml"))]
    return tuple(case for case in cases if target.partition(":")[0] in case.targets)


def _read(path: Path, kind: str) -> Case:
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = raw.keys() - _KEYS
    probes = raw.get("caught_by", [])
    probes = [probes] if isinstance(probes, str) else probes
    unknown |= set(probes) - set(PROBES)
    if unknown:
        raise ValueError(f"{path.parent.name}/case.toml: unknown: {', '.join(sorted(unknown))}")
    lists = {name: tuple(raw.get(name, ())) for name in ("targets", "expected", "rules", "flags", "static")}
    rest = {name: raw[name] for name in _SCALARS if name in raw}
    return Case(
        name=path.parent.name,
        kind=kind,
        folder=path.parent,
        reference=raw["reference"],
        family=raw["family"],
        why=raw["why"],
        caught_by=tuple(probes),
        **lists,
        **rest,
    )


def is_of_pattern(problem: str) -> bool:
    return " values are " in problem and " where the reference has " in problem


class Court:
    """A warm session with everything that judging needs; keeps the last reference's server."""

    def __init__(self, session: TargetSession, root: Path, target: str = "cpu") -> None:
        self.session, self.root, self.target = session, root, target
        self.store = Store(root / "store")
        self._servers = ExitStack()
        self._task_id = ""
        self._kept: tuple[ReferenceServer, ReferenceFacts] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._servers.close()

    def judge(self, case: Case, emit: Callable[[str], None] | None = None) -> ZooVerdict:
        """What the judge says of the case."""
        task = self.task(case)
        program, build = self.program(case)
        server, facts = self._server(task)
        check = check_program(
            Trial(
                task=task,
                program=program,
                build=build,
                session=self.session,
                store=self.store,
                facts=facts,
                reference=server,
                emit=emit,
            ),
            replace(CheckOptions(), **cast(dict[str, Any], case.options)),
        )
        if "sanitize" in case.caught_by and check.status == "accepted":
            runs = sanitize_program(
                Trial(
                    task=task,
                    program=program,
                    build=build,
                    session=self.session,
                    store=self.store,
                    facts=facts,
                    reference=server,
                )
            )
            check = apply_sanitizers(check, runs)
        return ZooVerdict(
            check.status,
            check.flags,
            tuple(dict.fromkeys(row.rule for row in check.findings)),
            check.message,
            check.wall_s or 0.0,
            check,
        )

    def task(self, case: Case) -> Task:
        """The case's task under its contract."""
        source = (ZOO / "references" / f"{case.reference}.py").read_bytes()
        return Task(
            name=case.reference,
            files=self.store.put_files({"reference.py": source}),
            main="reference.py",
            contract=Contract.model_validate(dict(case.contract)),
            target=self.target,
        )

    def program(self, case: Case) -> tuple[Program, Build | None]:
        """The candidate and, where it is native, its build."""
        files = self.store.put_files(case.files())
        form = "native" if case.native else "kernelbench"
        program = Program(format=form, target=self.target, files=files, main=case.main)
        build = compile_program(program, self.store) if case.native else None
        return program, build

    def _server(self, task: Task) -> tuple[ReferenceServer, ReferenceFacts]:
        if self._kept is None or task.task_id != self._task_id:
            self._servers.close()
            server = self._servers.enter_context(ReferenceServer(self.session, task, self.store))
            self._task_id, self._kept = task.task_id, (server, server.observe())
        return self._kept
