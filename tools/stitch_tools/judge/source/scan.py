"""Static evidence: what a program's text shows, without running or building any of it."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping

from stitch_tools.judge.source.attributes import Macros, find_macros
from stitch_tools.judge.source.context import Reference, Scanned, Trouble, line_text
from stitch_tools.judge.source.embedded import Sources
from stitch_tools.judge.source.host import read_host
from stitch_tools.judge.source.native import NativeUnit, parse_native
from stitch_tools.judge.source.resolver import MAX_STEPS
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.scopes import parse_python
from stitch_tools.judge.source.table import RULES
from stitch_tools.models import Finding, ProgramFormat, Severity

MAX_FILE_BYTES = 512 << 10
MAX_TOTAL_BYTES = 2 << 20
_MAX_HITS = 20
_NATIVE = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".hh", ".inl", ".inc")
_Text = tuple[str, bytes, tuple[int, ...] | None]
"""File, source, and the file's lines where the source stood in a string of it."""
_ORDER: tuple[Severity, ...] = ("fatal", "suspicious", "note")


def scan_program(
    program_files: Mapping[str, bytes],
    *,
    format: ProgramFormat,  # the fact's own word
    main: str | None = None,
    reference_source: bytes | None = None,
    reference_path: str | None = None,
    reference_entry: str = "Model",
    output_bytes: int | None = None,
    rules: Iterable[Rule] = RULES,
) -> tuple[Finding, ...]:
    """Findings, the gravest first; equal programs give equal findings, and no input makes it fail.

    Args:
        program_files: content by path inside the program's folder.
        format: `native` or `kernelbench`.
        main: the file that is compiled or imported; without it every Python file counts.
        reference_source: the reference's main file.
        reference_path: its path, to recognise a program that opens it.
        reference_entry: its class.
        output_bytes: size of the smallest output in bytes; None where it is not known.
        rules: the rules to apply.
    """
    scanned = _read(
        program_files,
        format,
        main,
        Reference(reference_source, reference_path, reference_entry),
        output_bytes,
    )
    found: dict[tuple[str, str, int], Finding] = {}
    for rule in rules:
        for hit in _first(rule.find(scanned)):
            finding = _finding(rule, hit, scanned)
            key = (rule.id, hit.file, hit.line)
            if key not in found or _ORDER.index(finding.severity) < _ORDER.index(found[key].severity):
                found[key] = finding
    return tuple(_with_notes_joined(sorted(found.values(), key=_rank)))


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


def _first(hits: Iterable[Hit]) -> list[Hit]:
    """The gravest hits of one rule, each once, in the order of lines."""
    unique = sorted(set(hits), key=lambda hit: (_ORDER.index(hit.severity or "fatal"), hit.file, hit.line))
    return unique[:_MAX_HITS]


def _finding(rule: Rule, hit: Hit, scanned: Scanned) -> Finding:
    severity = hit.severity or rule.severity
    if _ORDER.index(severity) < _ORDER.index(rule.severity):
        severity = rule.severity
    return Finding(
        rule=rule.id,
        severity=severity,
        message=hit.message,
        file=hit.file,
        line=hit.line,
        quote=line_text(scanned, hit.file, hit.line),
    )


def _rank(finding: Finding) -> tuple[int, str, int, str]:
    return (_ORDER.index(finding.severity), finding.file or "", finding.line or 0, finding.rule)


def _read(
    files: Mapping[str, bytes],
    format: ProgramFormat,
    main: str | None,
    reference: Reference,
    output_bytes: int | None,
) -> Scanned:
    troubles: list[Trouble] = []
    kept = _within_limits(files, troubles)
    trees: dict[str, ast.Module] = {}
    for path, data in kept.items():
        tree = _parse(path, data, troubles) if path.endswith(".py") else None
        if tree is not None:
            trees[path] = tree
    host = read_host(trees, main if main in trees else None)
    sources = Sources(host)
    texts: list[_Text] = [(path, data, None) for path, data in kept.items() if not path.endswith(".py")]
    texts += [(item.file, item.text.encode("utf-8", "replace"), item.lines) for item in sources.found]
    macros = find_macros(data for _, data, _ in texts)
    if host.resolver.steps >= MAX_STEPS:
        troubles.append(
            Trouble(min(trees), 1, "names refer to each other in too many ways to follow them all")
        )
    for item in sources.unresolved:
        troubles.append(Trouble(item.file, item.line, "this source text is not constant: it cannot be read"))
    native = [_native(*text, macros, troubles) for text in _fitting(texts, troubles)]
    return Scanned(
        files=files,
        format=format,
        host=host,
        native=tuple(native),
        reference=reference,
        output_bytes=output_bytes,
        troubles=tuple(troubles),
        source_literals=frozenset(sources.literals),
    )


def _within_limits(files: Mapping[str, bytes], troubles: list[Trouble]) -> dict[str, bytes]:
    """Sources that are read, by path; each that is too large is a trouble."""
    kept: dict[str, bytes] = {}
    left = MAX_TOTAL_BYTES
    for path in sorted(files):
        data = files[path]
        if not path.endswith((".py", *_NATIVE)):
            continue
        if len(data) > min(MAX_FILE_BYTES, left):
            troubles.append(Trouble(path, 1, f"{len(data)} bytes are more than are scanned"))
        elif b"\0" in data:
            troubles.append(Trouble(path, 1, "this is no text"))
        else:
            left -= len(data)
            kept[path] = data
    return kept


def _fitting(texts: list[_Text], troubles: list[Trouble]) -> list[_Text]:
    """The texts that fit under the limit, the program's own files first."""
    left = MAX_TOTAL_BYTES
    kept: list[_Text] = []
    for path, data, lines in texts:
        if len(data) > left:
            troubles.append(Trouble(path, lines[0] if lines else 1, "this text is too long to scan"))
        else:
            left -= len(data)
            kept.append((path, data, lines))
    return kept


def _parse(path: str, data: bytes, troubles: list[Trouble]) -> ast.Module | None:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
        troubles.append(Trouble(path, 1, "this is not UTF-8"))
    try:
        tree = parse_python(text)
    except SyntaxError as error:
        troubles.append(Trouble(path, error.lineno or 1, f"this does not parse: {error.msg}"))
    except (ValueError, RecursionError, MemoryError) as error:
        troubles.append(Trouble(path, 1, f"this does not parse: {type(error).__name__}"))
    else:
        return tree
    return None


def _native(
    path: str, data: bytes, lines: tuple[int, ...] | None, macros: Macros, troubles: list[Trouble]
) -> NativeUnit:
    line_of = _mapped(lines) if lines is not None else None
    unit = parse_native(path, data, line_of, embedded=lines is not None, macros=macros)
    for line in sorted({unit.line(node) for node in unit.of("ERROR")})[:3]:
        troubles.append(Trouble(path, line, "the parser does not understand this region"))
    return unit


def _mapped(lines: tuple[int, ...]) -> Callable[[int], int]:
    def line_of(line: int) -> int:
        return lines[min(line, len(lines) - 1)]

    return line_of
