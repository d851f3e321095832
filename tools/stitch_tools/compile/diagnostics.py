"""Compiler output turned into Diagnostics: g++, clang++, nvcc's front end, assemblers and the linker.

The text comes from a compiler that read a stranger's source, so any text must be survived, and none of it is
trusted: a message is data.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Literal

from stitch_tools.compile.refused import wants_file
from stitch_tools.models.program import Diagnostic

DiagnosticSeverity = Literal["fatal", "error", "warning", "note"]

MOST_DIAGNOSTICS = 60
_LONGEST_MESSAGE = 1000
_LONGEST_SOURCE_LINE = 400
_LONGEST_QUERY = 160

_SEVERITY = r"(?P<severity>fatal error|internal compiler error|error|warning|note|remark|sorry)"
_GNU = re.compile(
    rf"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+)(?::(?P<column>\d+))?: {_SEVERITY}: (?P<message>.*)$"
)
_NVCC = re.compile(
    rf"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): (?:catastrophic )?{_SEVERITY}"
    r"(?: #(?P<code>[\w-]+))?: (?P<message>.*)$"
)
_PTXAS_LINE = re.compile(
    r"^ptxas (?:.+?), line (?P<ptx_line>\d+); (?P<severity>fatal|error|warning)\s*: (?P<message>.*)$"
)
_ASSEMBLER = re.compile(
    r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+): (?P<severity>Fatal error|Error|Warning): (?P<message>.*)$"
)
_TOOL = re.compile(
    r"^(?P<code>ptxas|nvcc|nvlink|fatbinary|cicc|cudafe\+\+|collect2|c\+\+|cc1plus|as|g\+\+(?:-\d+)?|clang\+\+|clang)"
    rf"(?:: {_SEVERITY}: |\s+(?P<other_severity>fatal|error|warning)\s*: )(?P<message>.*)$"
)
_LINKER = re.compile(
    r"^(?:\S*/)?(?:[\w.]+-)?(?:ld(?:\.\w+)?|lld): (?P<place>\S+?:(?:\([^)]*\):)? )?"
    r"(?P<message>(?:undefined|cannot|multiple|relocation|error|final link|unrecognized|warning).*)$"
)
_UNDEFINED = re.compile(
    r"^(?P<file>[^\s:][^:\n]*):(?:\([^)\n]*\)|\d+): "
    r"(?P<message>(?:undefined reference to|multiple definition of).*)$"
)
_GCC_OPTION = re.compile(r" \[(?P<code>-W[\w=+-]+)\]$")
_OWN_ERROR = re.compile(r"\s*#\s*error\b")
# What tools say after an error that they told before: nothing is to be looked up.
_LAST_WORDS = re.compile(r"Ptx assembly aborted|ld returned \d|merge_elf failed|linker command failed")
# A header of a library, by convention; those of the author stand in quotes.
_SYSTEM_HEADER = re.compile(r"\s*#\s*include\s*<")
_PATH = re.compile(r"[\w.+~-]*(?:/[\w.+~-]+)+/?")
_LONGEST_TAIL = 8
# nvcc's messages that name no function; the line that it prints does.
_REFUSED = re.compile(
    r"too (?:few|many) arguments in|argument of type .* is incompatible|no suitable constructor"
)
_CALLED = re.compile(r"(?P<name>[A-Za-z_][\w:]*)\s*(?:<[^()]*>)?\s*$")
# Looks of a library's name: a word of its own would only be one more word of the question.
_OF_LIBRARY = re.compile(r"::|_|[a-z][A-Z]")
# A type once more, as what it stands for.
_ALIAS = re.compile(r"\((?:aka|also known as) [^()]*(?:\([^()]*\)[^()]*)*\)")
# What headers of CUDA put around everything for a version and a GPU: nobody writes it.
_INLINE_NAMESPACE = re.compile(r"\b(?:CUB|THRUST)_\d\w*::|\b_V_\d\w*::|\b__\d::")
# A word, or a number among template arguments: shapes are numbers.
_QUERY_WORD = re.compile(r"[A-Za-z_][\w:.+-]*|(?<=[<,] )\d+(?=[,>])|(?<=[<,])\d+(?=[,>])")
_CONTINUATION = re.compile(r"^ {8,}\S")


def parse_diagnostics(output: str, sources: Mapping[str, str], *, folder: str = "") -> tuple[Diagnostic, ...]:
    """The messages in `output`, each once, errors first where there are too many to keep all.

    Args:
        output: what the compiler printed; any text is survived.
        sources: the program's files by relative path, for the source lines.
        folder: absolute path that is cut off the front of file names.
    """
    found: dict[Diagnostic, None] = {}
    for diagnostic in _messages(output.splitlines(), sources, folder):
        found.setdefault(diagnostic)
    rows = list(found)
    if len(rows) > MOST_DIAGNOSTICS:
        rows.sort(key=lambda row: row.severity not in ("fatal", "error"))
    return tuple(rows[:MOST_DIAGNOSTICS])


def tool_error(message: str, *, hint_query: str = "") -> Diagnostic:
    """A Diagnostic of our own about the build as a whole: a missing symbol, the time limit."""
    return Diagnostic(severity="error", message=message, doc_query=hint_query or _doc_query(message))


def _messages(lines: list[str], sources: Mapping[str, str], folder: str) -> Iterator[Diagnostic]:
    for number, line in enumerate(lines):
        for pattern, tool in _FORMS:
            if match := pattern.match(line):
                diagnostic = _diagnostic(match, tool)
                tail = _continuation(lines, number) if pattern is _NVCC else ""
                call = _refused_call(lines, number) if _REFUSED.match(diagnostic.message) else ""
                yield _completed(diagnostic, tail, sources, folder, call)
                break


# Tried in this order: the later forms would take lines of the earlier ones.
_FORMS = (
    (_PTXAS_LINE, "ptxas"),
    (_NVCC, None),
    (_GNU, None),
    (_ASSEMBLER, "as"),
    (_UNDEFINED, "ld"),
    (_TOOL, None),
    (_LINKER, "ld"),
)


def _diagnostic(match: re.Match[str], tool: str | None) -> Diagnostic:
    """What one line says; `tool` is its code where the form itself tells it."""
    parts = match.groupdict()
    message, code = match["message"], tool or parts.get("code")
    if option := _GCC_OPTION.search(message):
        message, code = message[: option.start()], option["code"]
    if "ptx_line" in parts:
        # The line counts in the intermediate PTX, which the author never sees: it stays in the message.
        message = f"{message} (line {parts['ptx_line'][:12]} of the generated PTX)"
    # The linker writes no severity but "warning", at the beginning.
    word = parts.get("severity") or parts.get("other_severity") or message.partition(":")[0]
    return Diagnostic(
        severity=_severity(word.lower()),
        message=message,
        file=parts.get("file"),
        line=_number(parts.get("line")),
        column=_number(parts.get("column")),
        code=code,
    )


def _continuation(lines: list[str], number: int) -> str:
    """The further lines of an nvcc message: deeply indented, before the echoed source line."""
    parts: list[str] = []
    for line in lines[number + 1 : number + 6]:
        if not _CONTINUATION.match(line) or line.strip() == "^":
            break
        parts.append(line.strip())
    return " ".join(parts)


def _refused_call(lines: list[str], number: int) -> str:
    """The function whose call nvcc's caret points into; "" where its name has not a library's look."""
    for line, marks in itertools.pairwise(lines[number + 1 : number + _LONGEST_TAIL]):
        if _NVCC.match(line):
            break
        if marks.strip() == "^":
            before = line[: marks.index("^")][-_LONGEST_SOURCE_LINE:]
            match = _CALLED.search(before[: _innermost(before)])
            return match["name"] if match and _OF_LIBRARY.search(match["name"]) else ""
    return ""


def _innermost(text: str) -> int:
    """Where the last parenthesis stands that is not closed; 0 if there is none."""
    closed = 0
    for place in range(len(text) - 1, -1, -1):
        closed += (text[place] == ")") - (text[place] == "(")
        if closed < 0:
            return place
    return 0


def _completed(
    raw: Diagnostic, tail: str, sources: Mapping[str, str], folder: str, call: str = ""
) -> Diagnostic:
    """`raw` with its file made relative, the source line looked up, and a query for the documentation.

    Args:
        raw: what one line says.
        tail: the further lines of the message.
        sources: the program's files by relative path.
        folder: absolute path that is cut off the front of file names.
        call: the function whose call the message refuses without naming it.
    """
    file = _relative(raw.file, folder) if raw.file else None
    message = " ".join(f"{raw.message} {tail}".split())[:_LONGEST_MESSAGE]
    line = raw.line
    if raw.code in ("as", "ld") and file not in sources:
        file = line = None  # an object or assembler file in the scratch folder tells the author nothing
    source_line = _source_line(sources.get(file or ""), line)
    # No page is about the author's own words, or about a file that only the author knows.
    own_file = wants_file(raw.message) and not _SYSTEM_HEADER.match(source_line or "")
    own = _OWN_ERROR.match(raw.message) or _OWN_ERROR.match(source_line or "") or own_file
    own = own or _LAST_WORDS.match(raw.message)
    return raw.model_copy(
        update={
            "file": file,
            "line": line,
            "message": message,
            "source_line": source_line,
            "doc_query": "" if own else _doc_query(f"{message} {call}", raw.code, file),
        }
    )


def _relative(file: str, folder: str) -> str:
    if folder and file.startswith(folder.rstrip("/") + "/"):
        file = file[len(folder.rstrip("/")) + 1 :]
    return str(PurePosixPath(file)) if file else file


def _source_line(text: str | None, line: int | None) -> str | None:
    if text is None or line is None:
        return None
    # Compilers count \n alone as the end of a line; str.splitlines would count others too.
    rows = text.split("\n")
    return rows[line - 1].rstrip()[:_LONGEST_SOURCE_LINE] if 1 <= line <= len(rows) else None


def _severity(word: str) -> DiagnosticSeverity:
    if word in ("fatal", "fatal error", "internal compiler error"):
        return "fatal"
    if word in ("note", "remark"):
        return "note"
    return "warning" if word == "warning" else "error"


def _number(text: str | None) -> int | None:
    """The number, or None when there is none or it cannot be a line of any file."""
    return int(text) if text and len(text) <= 9 else None


def _doc_query(message: str, code: str | None = None, file: str | None = None) -> str:
    """Plain words to search documentation with: the message without quotes, paths and punctuation."""
    cuda = code in ("ptxas", "nvcc", "nvlink") or (file or "").endswith((".cu", ".cuh"))
    message = _INLINE_NAMESPACE.sub("", _PATH.sub(" ", _ALIAS.sub(" ", message)))
    kept = [word.strip(":.") for word in _QUERY_WORD.findall(message)]
    if kept[:1] == ["expected"]:
        kept.insert(0, "syntax error")  # of `expected a ";"` nothing else is left that tells anything
    if code == "nvlink":
        kept.insert(0, code)  # what the host's linker says in the same words has other causes
    query = " ".join(["CUDA" if cuda else "C++", *filter(None, kept)])
    return query if len(query) <= _LONGEST_QUERY else query[: _LONGEST_QUERY + 1].rpartition(" ")[0]
