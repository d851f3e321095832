"""What a process that died had printed, without what only concerns us."""

import re
from itertools import pairwise

_FRAME = re.compile(r'\s*File "(?P<path>[^"]*)", line \d+')
_OURS = ("/stitch_tools/worker/", "/stitch_tools/confine/", "/stitch_tools/protocol/")
_NATIVE_CALL = re.compile(r'/runtime/native\.py", line \d+ in (init|plan|call)\n')
_FUNCTIONS = {"init": "stitch_init", "plan": "stitch_plan", "call": "stitch_forward"}
_HEADER = "(most recent call first):"
# What Python adds to the stack of a crash: one line that can be longer than all the rest.
_MODULES = "Extension modules: "


def without_modules(text: str) -> str:
    """The text without the list of modules that were loaded at a crash."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_MODULES)).rstrip()


def native_call(text: str) -> str | None:
    """The function of a native program in which a process crashed, by Python's stack; else None."""
    found = _NATIVE_CALL.search(text)
    return _FUNCTIONS[found[1]] if found else None


def own_words(text: str) -> str:
    """The text without the list of modules and the frames of our own in its stacks; may be empty."""
    kept: list[str] = []
    in_ours = False
    for line in without_modules(text).splitlines():
        frame = _FRAME.match(line)
        if frame:
            in_ours = any(folder in frame["path"] for folder in _OURS)
        elif not line.startswith("    "):  # else a frame's source line, which goes with it
            in_ours = False
        if not in_ours:
            kept.append(line)
    shown = [
        line
        for line, after in pairwise([*kept, ""])
        if _HEADER not in line or _FRAME.match(after)  # else the header of an empty stack
    ]
    return "\n".join(shown).strip()
