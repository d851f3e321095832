"""Stack frames in a sanitizer's report, and whose code they are."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Given to the runtimes as `stack_trace_format`: what a frame looks like is then ours to say.
MARK = "@frame"
FRAME_FORMAT = f"{MARK} %n|%m|%f|%s|%l"
_FRAME = re.compile(rf"^\s*{MARK} (\d+)\|([^|]*)\|(.*)\|([^|]*)\|(\d*)\s*$")
_RUNTIMES = re.compile(r"/lib(?:asan|ubsan|tsan|clang_rt[\w.-]*)\.so|/libsanitizer/")


@dataclass(frozen=True)
class StackFrame:
    """One frame: loaded file, function, source file, line (0: unknown)."""

    module: str
    function: str
    file: str
    line: int

    @property
    def is_runtime(self) -> bool:
        """Whether it belongs to the sanitizer itself (an intercepted memcpy, free, ...)."""
        return bool(_RUNTIMES.search(self.module) or _RUNTIMES.search(self.file))


@dataclass(frozen=True)
class CodeLocation:
    """Where a defect shows, in the program's own terms."""

    function: str | None
    file: str | None
    line: int | None


def read_frame(line: str) -> StackFrame | None:
    """The frame on a line of a report, or None."""
    match = _FRAME.match(line)
    if match is None:
        return None
    return StackFrame(match[2], match[3], match[4], int(match[5]) if match[5] and len(match[5]) < 10 else 0)


def first_stack(lines: Iterable[str]) -> list[StackFrame]:
    """The frames of the first stack in `lines`."""
    stack: list[StackFrame] = []
    for line in lines:
        frame = read_frame(line)
        if frame is not None:
            stack.append(frame)
        elif stack:
            break
    return stack


@dataclass(frozen=True)
class Owner:
    """Says which frames are the program's own."""

    module: str
    """Path of the program's library."""
    files: Sequence[str]
    """The program's source files, relative to its folder."""

    def locate(self, stack: Sequence[StackFrame]) -> tuple[CodeLocation, bool]:
        """Where the program is to be looked at, and whether the stack's innermost code is its own."""
        inner = next((frame for frame in stack if not frame.is_runtime), None)
        owned = [frame for frame in stack if self.owns(frame)]
        is_own = inner is not None and self.owns(inner)
        # What a system header inlined (a vector load) is named by the program's own line around it.
        named = (frame for frame in owned if is_own and own_name(frame.file, self.files) in self.files)
        seen = next(named, inner if is_own else next(iter(owned), inner))
        if seen is None:
            return CodeLocation(None, None, None), is_own
        file = own_name(seen.file, self.files)
        return CodeLocation(short_name(seen.function) or None, file, seen.line or None), is_own

    def owns(self, frame: StackFrame) -> bool:
        """Whether the frame's code was built from the program."""
        return Path(frame.module).name == Path(self.module).name and frame.module.endswith(self.module)


def own_name(file: str, files: Sequence[str]) -> str | None:
    """Which of the program's `files` a compiler's path means; of another file the name alone."""
    if not file:
        return None
    tail = "/".join(part for part in PurePosixPath(file).parts if part != ".")
    matches = [name for name in files if tail == name or tail.endswith("/" + name)]
    return max(matches, key=len, default=PurePosixPath(file).name)


def short_name(function: str) -> str:
    """A function's name without parameters; what the compiler cut out of it counts as itself."""
    name = function.replace("(anonymous namespace)::", "")
    name = re.sub(r"\.(?:_omp_fn|constprop|isra|part|cold)(?:\.\d+)?", "", name)
    return re.sub(r"(?<!operator)\(.*$", "", name)[:160]
