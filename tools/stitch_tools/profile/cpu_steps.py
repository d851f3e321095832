"""Marks the steps of a stitched program's source, so that a profiling build of it times each of them."""

import re

STEPS_HEADER = "stitch_profile_steps.h"
STEPS_HEADER_TEXT = 'extern "C" void stitch_step(const char* name);  // native/src/sampler.c\n'
_RUN = re.compile(r"^  int32_t run\(.*\bMemory& memory\) \{$")
_COMMENT = re.compile(r"^    // (.+)$")
_END = "    return STITCH_OK;"


def mark_steps(source: str) -> str | None:
    """The source with a mark before each commented step of its `run`; None where it is not a stitched one.

    A mark takes the place of the empty line before the comment: lines keep their numbers.
    """
    lines = source.split("\n")
    begin = next((at for at, line in enumerate(lines) if _RUN.match(line)), None)
    if begin is None:
        return None
    seen: dict[str, int] = {}
    for at in range(begin, len(lines) - 1):
        if lines[at] == _END:
            break
        comment = _COMMENT.match(lines[at + 1])
        if lines[at] == "" and comment is not None:
            name = comment[1].replace("\\", "/").replace('"', "'")
            seen[name] = seen.get(name, 0) + 1
            # Equal layers are steps of their own.
            unique = name if seen[name] == 1 else f"{name} #{seen[name]}"
            lines[at] = f'    stitch_step("{unique}");'
    return "\n".join(lines) if seen else None


def module_of(step: str) -> str:
    """The module that a step's name tells: `fc1: [8, 4] x ...` -> fc1, `gelu (feed.1)` -> feed.1; else ""."""
    before, colon, _ = step.partition(": ")
    if colon and re.fullmatch(r"[\w.]+", before):
        return before
    inside = re.search(r"\(([\w.]+)\)", step)
    if inside is not None:
        return inside[1]
    return step if re.fullmatch(r"[\w.]+", step) else ""
