"""Takes the files of a program out of a model's answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from markdown_it import MarkdownIt

from stitch_planner.agents.edits import EditError, apply_diff, split_diff
from stitch_planner.agents.prompting import whole_sentences

_NATIVE = (".cpp", ".cu")
_MAIN = (*_NATIVE, ".py")
_SOURCES = (*_MAIN, ".h", ".hpp", ".cuh", ".inc")
_MOST_FILES, _MOST_CHARS = 32, 1 << 20
_LONGEST_SUMMARY = 600
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
_DIFFS = ("diff", "patch")
_LANGUAGES = {"cpp": "program.cpp", "c++": "program.cpp", "cuda": "program.cu", "cu": "program.cu"}


class UnusableAnswerError(ValueError):
    """An answer that gives no program; the text tells the model what to change."""


@dataclass(frozen=True)
class AnsweredProgram:
    """The files that an answer amounts to."""

    files: Mapping[str, bytes]
    main: str
    summary: str
    """What the model says about it, outside its fences."""


def read_answer(text: str, parent: Mapping[str, bytes], parent_main: str = "") -> AnsweredProgram:
    """The program of an answer: its files over those of the program that it changes.

    Args:
        text: the answer.
        parent: files of the program that was shown; empty for a new one.
        parent_main: the one of them that is compiled.

    Raises:
        UnusableAnswerError: it holds no program.
    """
    fences, summary = _blocks(text)
    edits = [(info, content) for info, content in fences if _is_diff(info)]
    blocks = [(info, content) for info, content in fences if not _is_diff(info)]
    files = {_path(info, content): content for info, content in blocks if _is_file(info)}
    if edits:
        files = _edited(edits, files, parent)
    if not files:
        # One nameless fence in a language that is compiled can only be the main file.
        nameless = [(info, content) for info, content in blocks if info.lower() in _LANGUAGES]
        if len(nameless) != 1:
            raise UnusableAnswerError(_no_files(text, len(blocks)))
        info, content = nameless[0]
        same_kind = parent_main and parent_main.endswith(_LANGUAGES[info.lower()][-3:])
        files = {parent_main if same_kind else _LANGUAGES[info.lower()]: content}
    if len(files) > _MOST_FILES or sum(map(len, files.values())) > _MOST_CHARS:
        raise UnusableAnswerError(
            f"It holds more than {_MOST_FILES} files or {_MOST_CHARS >> 20} MiB of source."
        )
    written = {path: content.encode("utf-8") for path, content in files.items()}
    main = _main(written)
    # Another main file begins a new program, which has no use for the old one's sources.
    kept = dict(parent) if not main or main == parent_main else {}
    merged = {**kept, **written}
    if not (main := main or parent_main):
        raise UnusableAnswerError(
            "No .cpp, .cu or .py file lies at the top of the folder: nothing can be compiled."
        )
    if merged == dict(parent):
        raise UnusableAnswerError("The files are those of the program that was shown: nothing changed.")
    return AnsweredProgram(merged, main, summary)


def _blocks(text: str) -> tuple[list[tuple[str, str]], str]:
    """Info line and content of each fence, and the prose around them."""
    blocks: list[tuple[str, str]] = []
    prose: list[str] = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "fence":
            blocks.append((token.info.strip(), token.content))
        elif token.type == "inline":
            prose.append(token.content)
    return blocks, whole_sentences(" ".join(" ".join(prose).split()), _LONGEST_SUMMARY)


def _is_diff(info: str) -> bool:
    return bool(info) and info.lower().split()[0] in _DIFFS


def _edited(
    edits: Sequence[tuple[str, str]], whole: Mapping[str, str], parent: Mapping[str, bytes]
) -> dict[str, str]:
    """The files that an answer gives whole, and those that its diffs change."""
    files = dict(whole)
    try:
        for info, content in edits:
            for path, hunks in split_diff(content, _named(info).removeprefix("./")).items():
                if path in whole:
                    raise EditError(f"{path} is given whole and by a diff: give one of them.")
                if path not in parent:
                    shown = ", ".join(parent) or "none"
                    raise EditError(f"A diff changes {path}, which is not among the files shown: {shown}.")
                original = files.get(path) or parent[path].decode("utf-8", errors="replace")
                files[path] = apply_diff(original, hunks, path)
    except EditError as error:
        raise UnusableAnswerError(str(error)) from error
    return files


def _is_file(info: str) -> bool:
    return bool(_named(info))


def _named(info: str) -> str:
    """The path in an info line: the last word with a source's suffix, bare or as `file=...` or `cpp:...`."""
    for word in reversed(info.split()):
        name = re.split(r"[=:]", word)[-1].strip("\"'`{}")
        if PurePosixPath(name).suffix in _SOURCES:
            return name
    return ""


def _path(info: str, content: str) -> str:
    name = _named(info).removeprefix("./")
    if not _PATH.fullmatch(name) or ".." in PurePosixPath(name).parts:
        raise UnusableAnswerError(f"{name!r} is no path inside the program's folder.")
    if not content.strip():
        raise UnusableAnswerError(f"{name} is empty: write it whole.")
    return name


def _main(files: Mapping[str, bytes]) -> str:
    """The file at the top that is compiled; "" where none is among these files."""
    for suffixes in (_NATIVE, (".py",)):
        named = [path for path in files if "/" not in path and path.endswith(suffixes)]
        if len(named) > 1:
            listed = ", ".join(named)
            raise UnusableAnswerError(
                f"{listed} lie at the top of the folder: only one is compiled, so put the others in a folder"
                " and include them."
            )
        if named:
            return named[0]
    return ""


def _no_files(text: str, fences: int) -> str:
    if not text.strip():
        return "It is empty."
    if fences:
        return f"None of its {fences} fences names a path: begin each as in ```cpp program.cpp"
    # An opened fence runs to the end of the text, so an answer that was cut off has one.
    return "It holds no files: every file has to stand in a fence that names its path."
