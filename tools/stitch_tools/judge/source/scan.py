"""Static evidence: what a program's text shows, without running or building any of it."""

import ast
from collections.abc import Iterable, Iterator, Mapping

from stitch_tools.judge.source import (
    rules_attacks,
    rules_kernels,
    rules_patches,
    rules_pytorch,
    rules_reference,
    rules_text,
)
from stitch_tools.judge.source.cuda_attributes import find_macros
from stitch_tools.judge.source.cuda_source import parse_cuda
from stitch_tools.judge.source.embedded_sources import find_embedded
from stitch_tools.judge.source.program import RuleHit, ScannedProgram, SourceRule
from stitch_tools.judge.source.python_names import MAX_STEPS
from stitch_tools.judge.source.python_reach import read_python
from stitch_tools.judge.source.python_scopes import parse_python
from stitch_tools.models.program import ProgramFormat
from stitch_tools.models.verdict import Finding, Severity

MAX_FILE_BYTES = 512 << 10
MAX_TOTAL_BYTES = 2 << 20
_MAX_HITS = 20
_MAX_ERRORS = 3
_MAX_QUOTE = 160
_CUDA = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".hh", ".inl", ".inc")
_ORDER: tuple[Severity, ...] = ("fatal", "suspicious", "note")
_RULE_FILES = (rules_patches, rules_attacks, rules_reference, rules_kernels, rules_pytorch, rules_text)
RULES: tuple[SourceRule, ...] = tuple(
    sorted(
        (rule for file in _RULE_FILES for rule in file.RULES), key=lambda rule: _ORDER.index(rule.severity)
    )
)
"""In the order of docs/rules.md. A new rule is a function, an entry in its file's `RULES`, its kind in
`stitch_tools.models.finding_kinds`, and a row of that page."""


def scan_program(
    program_files: Mapping[str, bytes],
    *,
    format: ProgramFormat,  # the fact's own word
    main: str | None = None,
    reference_source: bytes | None = None,
) -> tuple[Finding, ...]:
    """Findings, the gravest first; equal programs give equal findings, and no input makes it fail.

    Args:
        program_files: content by path inside the program's folder.
        format: `native` or `kernelbench`.
        main: the file that is compiled or imported; without it every Python file counts.
        reference_source: the reference's main file.
    """
    program = _read(program_files, format, main, reference_source)
    found: dict[tuple[str, str, int], Finding] = {}
    for rule in RULES:
        hits = sorted(
            set(rule.find(program)), key=lambda hit: (_weight(rule, hit), hit.file, hit.line, hit.message)
        )
        for hit in hits[:_MAX_HITS]:
            # The gravest comes first, and stays.
            found.setdefault((rule.id, hit.file, hit.line), _finding(rule, hit, program_files))
    return tuple(_with_notes_joined(sorted(found.values(), key=_rank)))


def _weight(rule: SourceRule, hit: RuleHit) -> int:
    """Place in `_ORDER`: a hit may weigh less than its rule, never more."""
    return max(_ORDER.index(rule.severity), _ORDER.index(hit.severity or "fatal"))


def _finding(rule: SourceRule, hit: RuleHit, files: Mapping[str, bytes]) -> Finding:
    lines = files.get(hit.file, b"").split(b"\n", hit.line)
    quote = lines[hit.line - 1].decode("utf-8", "replace").strip() if hit.line <= len(lines) else ""
    return Finding(
        rule=rule.id,
        severity=_ORDER[_weight(rule, hit)],
        message=hit.message,
        file=hit.file,
        line=hit.line,
        quote=quote[:_MAX_QUOTE] or None,
    )


def _rank(finding: Finding) -> tuple[int, str, int, str]:
    return (_ORDER.index(finding.severity), finding.file or "", finding.line or 0, finding.rule)


def _with_notes_joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, notes of one rule on one file as one that counts them; graver ones stay apart."""
    notes: dict[tuple[str, str | None], list[Finding]] = {}
    for finding in findings:
        if finding.severity == "note":
            notes.setdefault((finding.rule, finding.file), []).append(finding)
        else:
            yield finding
    for first, *rest in notes.values():
        places = f"also on {'lines' if len(rest) > 1 else 'line'} {', '.join(str(row.line) for row in rest)}"
        more = f" ({len(rest) + 1} times, {places})" if rest else ""
        yield first.model_copy(update={"message": f"{first.message}{more}"})


def _read(
    files: Mapping[str, bytes], format: ProgramFormat, main: str | None, reference_source: bytes | None
) -> ScannedProgram:
    unread: list[RuleHit] = []
    kept = _within_limits(files, unread)
    parsed = {path: _parse(path, data, unread) for path, data in kept.items() if path.endswith(".py")}
    trees = {path: tree for path, tree in parsed.items() if tree is not None}
    python = read_python(trees, main if main in trees else None)
    embedded = find_embedded(python)
    texts = [(path, data, _next) for path, data in kept.items() if path not in parsed]
    texts += [(row.file, row.text.encode("utf-8", "replace"), row.line) for row in embedded]
    macros = find_macros(data for _, data, _ in texts)
    cuda = tuple(parse_cuda(path, data, line_of, macros) for path, data, line_of in texts)
    for source in cuda:
        for line in sorted({source.line(node) for node in source.of("ERROR")})[:_MAX_ERRORS]:
            unread.append(_not_scanned(source.file, line, "the parser does not understand this region"))
    if python.names.steps > MAX_STEPS:
        unread.append(_not_scanned(min(trees), 1, "too many names to follow them all"))
    literals: frozenset[ast.AST] = frozenset(row.node for row in embedded)
    return ScannedProgram(files, format, python, cuda, reference_source, tuple(unread), literals)


def _not_scanned(file: str, line: int, reason: str) -> RuleHit:
    return RuleHit(file, line, f"not scanned: {reason}", "note")


def _next(line: int) -> int:
    return line + 1


def _within_limits(files: Mapping[str, bytes], unread: list[RuleHit]) -> dict[str, bytes]:
    """Sources that are read, by path; each that is too large is a trouble."""
    kept: dict[str, bytes] = {}
    left = MAX_TOTAL_BYTES
    for path in sorted(files):
        data = files[path]
        if not path.endswith((".py", *_CUDA)):
            continue
        if len(data) > min(MAX_FILE_BYTES, left):
            unread.append(_not_scanned(path, 1, f"{len(data)} bytes are more than are scanned"))
        elif b"\0" in data:
            unread.append(_not_scanned(path, 1, "this is no text"))
        else:
            left -= len(data)
            kept[path] = data
    return kept


def _parse(path: str, data: bytes, unread: list[RuleHit]) -> ast.Module | None:
    try:
        return parse_python(data)
    except SyntaxError as error:
        unread.append(_not_scanned(path, error.lineno or 1, f"this does not parse: {error.msg}"))
    except (ValueError, RecursionError, MemoryError) as error:
        unread.append(_not_scanned(path, 1, f"this does not parse: {type(error).__name__}"))
    return None
