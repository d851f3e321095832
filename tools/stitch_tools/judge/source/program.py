"""What rules look at (the parsed program), what they are, and what they hand back."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from stitch_tools.judge.source.cuda_source import CudaFunction, CudaSource
from stitch_tools.judge.source.python_reach import PythonCall, PythonFiles
from stitch_tools.judge.source.python_scopes import Scope
from stitch_tools.models.program import ProgramFormat
from stitch_tools.models.verdict import Severity


@dataclass(frozen=True, eq=False)
class ScannedProgram:
    """A program as rules see it."""

    files: Mapping[str, bytes]
    format: ProgramFormat
    python: PythonFiles
    cuda: tuple[CudaSource, ...]
    """C++ and CUDA: files, and texts in strings of Python files."""
    reference_source: bytes | None
    """The reference's main file."""
    unread: tuple["RuleHit", ...]
    """Regions that were not scanned."""
    source_literals: frozenset[ast.AST]
    """String literals that were read as C++ or CUDA."""

    def hot_functions(self) -> set[CudaFunction]:
        """Functions of C++ sources that may run in forward: all that Python does not call elsewhere only."""
        hot, cold = (
            {call.method for call in self.python.calls if (call.scope in self.python.hot) is is_hot}
            for is_hot in (True, False)
        )
        functions = (function for source in self.cuda for function in source.functions)
        return {row for row in functions if row.name != "stitch_init" and row.name not in cold - hot}

    def calls_to(self, paths: Iterable[str]) -> Iterator[tuple[PythonCall, str]]:
        """Calls in Python files of these functions of other modules."""
        wanted = frozenset(paths)
        for call in self.python.calls:
            path = next((path for path in call.paths if path in wanted), None)
            if path is not None:
                yield call, path


@dataclass(frozen=True)
class RuleHit:
    """One place that a rule found."""

    file: str
    line: int
    message: str
    severity: Severity | None = None
    """Where this one weighs less than the rule's own severity."""


@dataclass(frozen=True)
class SourceRule:
    """One rule; docs/rules.md says what it means and what to do about it."""

    id: str
    severity: Severity
    """The strongest severity that the rule gives."""
    find: Callable[[ScannedProgram], Iterable[RuleHit]]


def hit_in(
    program: ScannedProgram, scope: Scope, node: ast.AST, message: str, severity: Severity = "suspicious"
) -> RuleHit:
    """A hit in a Python file; one step weaker where nothing was seen to run the code."""
    if scope not in program.python.reached:
        severity = "suspicious" if severity == "fatal" else "note"
    return RuleHit(scope.file, getattr(node, "lineno", 1), message, severity)
