"""All that rules look at: the parsed program, and what is known of its reference."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stitch_tools.judge.source.host import HostProgram
from stitch_tools.judge.source.native import Function, NativeUnit, text_of
from stitch_tools.models import ProgramFormat


@dataclass(frozen=True)
class Reference:
    """The reference, as far as rules need it."""

    source: bytes | None
    path: str | None
    """Its main file."""
    entry: str
    """Its class or function."""


@dataclass(frozen=True)
class Trouble:
    """A region that was not scanned."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True, eq=False)
class Scanned:
    """A program as rules see it."""

    files: Mapping[str, bytes]
    format: ProgramFormat
    host: HostProgram
    native: tuple[NativeUnit, ...]
    reference: Reference
    output_bytes: int | None
    """Size of the smallest output, where it is known."""
    troubles: tuple[Trouble, ...]
    source_literals: frozenset[ast.AST] = frozenset()
    """String literals that were read as C++ or CUDA."""

    def hot_native(self) -> Iterator[tuple[NativeUnit, Function]]:
        """Host functions of C++ sources that may run in forward: all that no initialiser alone reaches."""
        cold = self._cold_names()
        for unit in self.native:
            for function in unit.functions:
                if not function.is_kernel and not function.is_device and function.name not in cold:
                    yield unit, function

    def _cold_names(self) -> set[str]:
        """Functions that only the constructor calls."""
        calls: dict[str, set[str]] = {}
        for unit in self.native:
            for call in unit.calls:
                if call.function is not None:
                    calls.setdefault(call.function.name, set()).add(call.short)
        hot_roots, cold_roots = self._called_extensions()
        cold = _closure(cold_roots | {"stitch_init", "stitch_free", "PYBIND11_MODULE"}, calls)
        return cold - _closure(hot_roots | {"stitch_forward", "stitch_plan"}, calls)

    def _called_extensions(self) -> tuple[set[str], set[str]]:
        """Names of methods that forward calls, and of those that only the rest calls."""
        hot: set[str] = set()
        cold: set[str] = set()
        for call in self.host.calls:
            phases = self.host.phases.get(call.scope, set())
            (hot if "forward" in phases or not phases else cold).add(call.method)
        return hot, cold - hot


def _closure(roots: set[str], calls: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [root for root in roots if root]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(calls.get(name, ()))
    return found


def line_text(scanned: Scanned, file: str, line: int) -> str | None:
    """The line, cut to 160 characters; None where there is none."""
    lines = scanned.files.get(file, b"").split(b"\n", line)
    if not 1 <= line <= len(lines):
        return None
    return lines[line - 1].decode("utf-8", "replace").strip()[:160] or None


def comments_of(unit: NativeUnit) -> Iterator[tuple[int, str]]:
    """Line and text of every comment."""
    for node in unit.of("comment"):
        yield unit.line(node), text_of(node)
