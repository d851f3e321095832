"""Runs the adversarial suite in `zoo/`: reads its cases, judges them, with probes switched off if asked.

A case is a folder with `case.toml` and a candidate: `program.cpp` or `program.cu` (native), or `candidate.py`
with `ModelNew`. Of `zoo/native`, what a program includes or imports lies beside it.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, cast

from stitch_tools.compile.build import compile_program
from stitch_tools.judge.check import check_program
from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.memory import apply_sanitizers, sanitize_program
from stitch_tools.judge.trial import Trial
from stitch_tools.models import Build, Check, Contract, OutputError, Program, ReferenceFacts, Task
from stitch_tools.run.reference_server import Comparison, Expectation, Inputs, ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

ZOO = Path(__file__).parent / "zoo"
SWITCHES = tuple(row.name for row in fields(CheckOptions) if isinstance(row.default, bool))
"""Probes that CheckOptions can leave out."""
EXCHANGES = (
    "own_draws",
    "seeds",
    "equality",
    "pattern",
    "guards",
    "dependence",
    "contract",
    "work",
    "sanitize",
)
"""Probes that are taken out in another way; `without` says how."""
ELSEWHERE = ("outputs", "poison", "strides", "static", "timing", "process", "boundary")
"""Probes without a switch: `zoo_naive.py` lacks them, other tests show what they catch."""
PROBES = (*SWITCHES, *EXCHANGES, *ELSEWHERE)
_FLAGS_OF_DOUBT = ("partial", "library_only", "weak")
_FORGIVEN = 1e-2
_PUBLISHED_SEED = 42
_SHARED = {
    b'#include "zoo_tile.h"': "zoo_tile.h",  # before zoo.h, which it includes
    b'#include "zoo.h"': "zoo.h",
    b"from zoo_kernels import": "zoo_kernels.py",
}
_KEYS = {
    "reference", "family", "targets", "expected", "rules", "caught_by", "why", "flags", "missed", "slow",
    "contract", "options", "without", "harms", "static",
}  # fmt: skip
_SCALARS = ("missed", "slow", "harms", "contract", "options", "without")


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
    without: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the contract that switch the probe `contract` off."""

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
class Verdict:
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

    @property
    def passes(self) -> bool:
        """Whether nobody would doubt the candidate."""
        return self.status == "accepted" and not set(self.flags) & set(_FLAGS_OF_DOUBT)


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


class LenientServer(ReferenceServer):
    """A reference server without some of its strictness: what the ablation exchanges the real one for."""

    lenient: frozenset[str] = frozenset()

    def make_draw(
        self, kind: str, *, shared: bool = False, seed: int | None = None, on_host: bool = False
    ) -> Inputs:
        """Inputs, without secret seeds from the seed that everybody knows."""
        if "seeds" in self.lenient:
            seed = _PUBLISHED_SEED
        return super().make_draw(kind, shared=shared, seed=seed, on_host=on_host)

    def compare(self, outputs_fd: int, expectation: Expectation, generator_after: bytes = b"") -> Comparison:
        """The comparison, with what is forgiven."""
        seen = super().compare(outputs_fd, expectation, generator_after)
        if "guards" in self.lenient:
            seen = replace(seen, overrun=False)
        if "equality" in self.lenient:
            seen = replace(seen, outputs=tuple(map(_forgiven, seen.outputs)))
        if "pattern" in self.lenient:
            seen = replace(seen, outputs=tuple(map(_any_pattern, seen.outputs)))
        return seen

    def observe(self) -> ReferenceFacts:
        """What one look tells, without the doubt whether the outputs depend on the inputs."""
        facts = super().observe()
        return facts.model_copy(update={"depends_on_inputs": True}) if "dependence" in self.lenient else facts


def _forgiven(row: OutputError) -> OutputError:
    """The row without its problem where allclose with 1e-2 would see none at the worst element."""
    if row.actual is None or row.expected is None:
        return row
    is_close = abs(row.actual - row.expected) <= _FORGIVEN * (1 + abs(row.expected))
    return row.model_copy(update={"problem": None}) if is_close else row


def _any_pattern(row: OutputError) -> OutputError:
    """The row without its problem where only the pattern of non-finite values is wrong."""
    return row.model_copy(update={"problem": None}) if is_of_pattern(row.problem or "") else row


def is_of_pattern(problem: str) -> bool:
    return " values are " in problem and " where the reference has " in problem


@dataclass(frozen=True)
class Rules:
    """How strictly a case is judged."""

    options: CheckOptions
    lenient: frozenset[str] = frozenset()
    contract: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sanitize: bool = False


def full(case: Case) -> Rules:
    """The whole judge, with the case's own options."""
    return Rules(_options(case), sanitize="sanitize" in case.caught_by)


def without(case: Case, probes: Iterable[str] | None = None) -> Rules | None:
    """The judge without the probes (None: all that catch the case); None where one has no switch."""
    rules = full(case)
    if not {"work", "trace"} & set(case.caught_by):
        # Who does the work takes as long as all else, and decides about few cases.
        rules = _taken_out(rules, "trace", case)
    for probe in probes or case.caught_by:
        if probe in ELSEWHERE and probe not in SWITCHES:
            return None
        rules = _taken_out(rules, probe, case)
    return rules


def bare(case: Case, probes: Iterable[str] = ()) -> Rules:
    """One draw of the task's maker with secret seed, and nothing else but `probes`."""
    own = _options(case)
    off = {name: name in probes for name in SWITCHES}
    draws = own.own_draws if "own_draws" in probes or "mutate_storage" in probes else 1
    lenient = {"seeds", "equality", "guards"} & set(case.caught_by) - set(probes)
    loose = case.without.get("contract", {}) if "contract" not in probes else {}
    options = replace(
        own,
        **cast(dict[str, Any], {**off, "own_draws": draws, "trace": bool({"work", "trace"} & set(probes))}),
    )
    return Rules(options, frozenset(lenient), loose, "sanitize" in probes)


def _taken_out(rules: Rules, probe: str, case: Case) -> Rules:
    if probe in SWITCHES:
        return replace(rules, options=replace(rules.options, **cast(dict[str, Any], {probe: False})))
    if probe == "own_draws":
        return replace(rules, options=replace(rules.options, own_draws=1))
    if probe == "work":
        return replace(rules, options=replace(rules.options, trace=False))
    if probe == "sanitize":
        return replace(rules, sanitize=False)
    if probe == "contract":
        return replace(rules, contract=case.without["contract"])
    return replace(rules, lenient=rules.lenient | {probe})


def _options(case: Case) -> CheckOptions:
    return replace(CheckOptions(), **cast(dict[str, Any], case.options))


class Court:
    """A warm session with everything that judging needs; keeps the last reference's server."""

    def __init__(self, session: TargetSession, root: Path, target: str = "cpu") -> None:
        self.session, self.root, self.target = session, root, target
        self.store = Store(root / "store")
        self._servers = ExitStack()
        self._key: object = None
        self._kept: tuple[ReferenceServer, ReferenceFacts] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._servers.close()

    def judge(
        self, case: Case, rules: Rules | None = None, emit: Callable[[str], None] | None = None
    ) -> Verdict:
        """What the judge says of the case, by the whole judge or by other rules."""
        rules = rules or full(case)
        task = self.task(case, rules.contract)
        program, build = self.program(case)
        server, facts = self._server(task, rules.lenient)
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
            rules.options,
        )
        if rules.sanitize and check.status == "accepted":
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
        return Verdict(
            check.status,
            check.flags,
            tuple(dict.fromkeys(row.rule for row in check.findings)),
            check.message,
            check.wall_s or 0.0,
            check,
        )

    def task(self, case: Case, loose: Mapping[str, Any] | None = None) -> Task:
        """The case's task under its contract, with the fields of `loose` changed."""
        source = (ZOO / "references" / f"{case.reference}.py").read_bytes()
        return Task(
            name=case.reference,
            files=self.store.put_files({"reference.py": source}),
            main="reference.py",
            contract=Contract.model_validate({**case.contract, **(loose or {})}),
            target=self.target,
        )

    def program(self, case: Case) -> tuple[Program, Build | None]:
        """The candidate and, where it is native, its build."""
        files = self.store.put_files(case.files())
        form = "native" if case.native else "kernelbench"
        program = Program(format=form, target=self.target, files=files, main=case.main)
        build = compile_program(program, self.store, cache_dir=self.root / "cache") if case.native else None
        return program, build

    def _server(self, task: Task, lenient: frozenset[str]) -> tuple[ReferenceServer, ReferenceFacts]:
        key = (task.task_id, lenient)
        if self._kept is None or key != self._key:
            self._servers.close()
            server = self._servers.enter_context(LenientServer(self.session, task, self.store))
            server.lenient = lenient
            self._key, self._kept = key, (server, server.observe())
        return self._kept
