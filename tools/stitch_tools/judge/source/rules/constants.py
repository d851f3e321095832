"""Answers that may stand in the program's text or beside it."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.native import text_of
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import hit_in
from stitch_tools.judge.source.words import listed

_LEAST_BYTES = 1 << 10
_USUAL_BYTES = 16 << 10
_NUMBER_BYTES = 4
_TINY_BYTES = 64
"""Less than this could as well stand in the text: a small constant, and no library or code for a device."""
_ELF = b"\x7fELF"
_TEXT = listed("""
    .py .cu .cuh .cpp .cc .cxx .c .h .hpp .hh .inl .inc .md .txt .toml .json .yaml .yml .cmake
""")


def limit_bytes(scanned: Scanned) -> int:
    """From how many bytes on a constant is large: an output's size, within bounds."""
    if scanned.output_bytes is None:
        return _USUAL_BYTES
    return min(max(scanned.output_bytes, _LEAST_BYTES), _USUAL_BYTES)


def find_large_constants(scanned: Scanned) -> Iterator[Hit]:
    """Literals as large as an output."""
    limit = limit_bytes(scanned)
    for scope in scanned.host.scopes():
        for node in scope.nodes:
            if isinstance(scope.unit.parents.get(node), ast.List | ast.Tuple | ast.Dict | ast.Set | ast.Expr):
                continue
            size = _literal_bytes(node) if node not in scanned.source_literals else 0
            if size >= limit:
                yield hit_in(scanned, scope, node, f"a constant of about {size} bytes")
    yield from _native_constants(scanned, limit)


def _native_constants(scanned: Scanned, limit: int) -> Iterator[Hit]:
    for unit in scanned.native:
        for node in unit.of("initializer_list"):
            if node.parent is not None and node.parent.type == "initializer_list":
                continue
            size = _list_bytes(node)
            if size >= limit:
                yield Hit(unit.file, unit.line(node), f"a constant table of about {size} bytes")
        for node in unit.of("string_literal", "raw_string_literal"):
            if len(text_of(node)) >= limit and b"__global__" not in (node.text or b""):
                yield Hit(unit.file, unit.line(node), f"a text of about {len(text_of(node))} bytes")


def _literal_bytes(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return len(node.value)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        waiting, count = list(node.elts), 0
        while waiting:
            part = waiting.pop()
            if isinstance(part, ast.List | ast.Tuple):
                waiting.extend(part.elts)
            elif isinstance(part, ast.UnaryOp):
                waiting.append(part.operand)
            elif isinstance(part, ast.Constant):
                count += len(part.value) if isinstance(part.value, str | bytes) else _NUMBER_BYTES
        return count
    if isinstance(node, ast.Dict):
        return sum(max(_literal_bytes(part), _NUMBER_BYTES) for part in node.values)
    return 0


def _list_bytes(node: object) -> int:
    """Numbers in an initialiser, at four bytes each; commas count them without a visit to each."""
    return bytes(getattr(node, "text", b"") or b"").count(b",") * _NUMBER_BYTES


def find_data_files(scanned: Scanned) -> Iterator[Hit]:
    """Files of the program that are no source."""
    for path, data in sorted(scanned.files.items()):
        is_tiny = len(data) < _TINY_BYTES and not data.startswith(_ELF)
        if not path.endswith(_TEXT) and not is_tiny:
            yield Hit(path, 1, f"{len(data)} bytes that are no source")


RULES = (
    Rule(
        "large_constant",
        "suspicious",
        "A literal (list, text, bytes, C++ initialiser) is as large as an output: 16 KiB, or the smallest "
        "output's size where that is less.",
        "Compute tables when the program is constructed; answers are tried with inputs nobody has seen.",
        find_large_constants,
    ),
    Rule(
        "data_file",
        "suspicious",
        "The program has a file of 64 bytes or more that is no source: weights, a library, an image of "
        "device code.",
        "Ship sources only; build the rest from them.",
        find_data_files,
    ),
)
