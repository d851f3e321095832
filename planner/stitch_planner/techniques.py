"""Names the techniques that a program's sources use, and those that a text claims of them."""

import io
import re
import tokenize
from collections.abc import Iterable
from typing import NamedTuple

from stitch_planner.runs.attempts import Attempt
from stitch_tools.models.program import Program
from stitch_tools.storage.store import Store


class Technique(NamedTuple):
    """A technique with the words that claim it and the code that shows it."""

    name: str
    claim: str
    """Regular expression, case ignored."""
    code: str
    """Regular expression over sources without comments."""


SHIPPED = ("stitch/", "stitch_runtime/", "stitch_reference/")
"""Folders that every stitched program brings along."""

TECHNIQUES = (
    Technique(
        "OpenMP threads", r"openmp|multi-?thread|parallel for|all cores", r"#pragma omp.*parallel|std::thread"
    ),
    Technique(
        "SIMD",
        r"\bsimd\b|vectori[sz]|avx|intrinsic",
        r"omp.*simd|_mm\d*_|__m(128|256|512)|vector_size|float4",
    ),
    Technique(
        "blocking", r"\bblock(ed|ing)\b|\btil(e|ed|ing)\b", r"(?i)\b(?!block(idx|dim)\b)\w*(block|tile)\w*"
    ),
    Technique("unrolling", r"unroll", r"#pragma (GCC )?unroll"),
    Technique("prefetch", r"prefetch", r"prefetch"),
    Technique("oneDNN", r"onednn", r"dnnl"),
    Technique("cuBLAS", r"cublas", r"cublas"),
    Technique("cuDNN", r"cudnn", r"cudnn"),
    Technique("tensor cores", r"tensor cores?|wmma|wgmma", r"wmma|mma\.sync|wgmma|mma_sync"),
    Technique("shared memory", r"shared memory", r"__shared__"),
    Technique("warp shuffles", r"shuffle", r"__shfl"),
    Technique(
        "asynchronous copies", r"async(hronous)? cop|cp\.async|\btma\b", r"cp\.async|memcpy_async|__pipeline"
    ),
    Technique("CUDA graph", r"cuda graph", r"cudaGraph"),
    Technique("streams", r"\bstreams\b", r"cudaStreamCreate|cudaEventRecord"),
    Technique("atomics", r"\batomic", r"atomic"),
)
_C_COMMENT = re.compile(
    r'(R"(?P<raw>[^()\\\s]{0,16})\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])*\')'
    r"|//[^\n]*|/\*.*?(?:\*/|\Z)",
    re.DOTALL,
)
_DENIED = re.compile(
    r"\b(no|not|without|instead of|removes?|avoids?|drops?|replaces?)\b[^.;,]{0,24}$", re.IGNORECASE
)


def without_comments(path: str, text: str) -> str:
    """The source without comments, and of Python without docstrings: they may address the reader."""
    return _python_code(text) if path.endswith(".py") else _c_code(text)


def _c_code(text: str) -> str:
    return _without_blank_lines(_C_COMMENT.sub(lambda match: match[1] or " ", text))


def _python_code(text: str) -> str:
    kept: list[tuple[int, str]] = []
    starts_line = True
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                continue
            if token.type == tokenize.STRING and starts_line:
                kept.append((tokenize.STRING, '""'))
                continue
            # A string of several lines usually is CUDA source, with comments of its own.
            is_source = token.type == tokenize.STRING and "\n" in token.string
            kept.append((token.type, _c_code(token.string) if is_source else token.string))
            if token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                starts_line = token.type == tokenize.NEWLINE
        return _without_blank_lines(tokenize.untokenize(kept))
    except (tokenize.TokenError, SyntaxError):
        return _without_blank_lines(_c_code(text))


def _without_blank_lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def used_techniques(code: Iterable[str]) -> frozenset[str]:
    """Names of the techniques that sources without comments show."""
    whole = "\n".join(code)
    return frozenset(row.name for row in TECHNIQUES if re.search(row.code, whole))


def claimed_techniques(text: str) -> frozenset[str]:
    """Names of the techniques that a text claims; one that it denies is not claimed."""
    return frozenset(row.name for row in TECHNIQUES if _is_claimed(row, text))


def _is_claimed(technique: Technique, text: str) -> bool:
    matches = re.finditer(technique.claim, text, re.IGNORECASE)
    return any(not _DENIED.search(text[: match.start()]) for match in matches)


def code_of(store: Store, attempt: Attempt) -> dict[str, str]:
    """The program's own sources without comments; what every stitched program brings along is left out."""
    program = store.get_fact(attempt.program.program, Program)
    own = [file for file in program.files if not file.path.startswith(SHIPPED)]
    texts = {file.path: store.get(file.sha256).decode("utf-8", errors="replace") for file in own}
    return {path: without_comments(path, text) for path, text in texts.items()}
