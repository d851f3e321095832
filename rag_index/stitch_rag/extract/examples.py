"""Code in documentation comments: set aside before markup is taken away, for code looks like markup."""

import re
from textwrap import dedent

_STAR = re.compile(r"[ \t]*(?:\*(?!\*)[ \t]?)")
_SLASHES = re.compile(r"[ \t]*//[/!]?<?[ \t]?")
_BEGIN = re.compile(
    r"[ \t]*(?:(?P<command>[\\@]code\b[ \t]*(?:\{[^}\n]*\})?)|(?P<fence>```)[ \t]*[\w+.-]*"
    r"|(?P<block>\.\.[ \t]+code(?:-block)?::[^\n]*)"
    r"|(?P<dropped>\.\.[ \t]+(?:image|figure|literalinclude)::[^\n]*))[ \t]*"
)
_END_COMMAND = re.compile(r"[ \t]*[\\@]endcode\b")
_FENCE = re.compile(r"[ \t]*```")
_OPTION = re.compile(r"[ \t]*:[\w-]+:")
_MARK = "\x02"
"""No header holds it; what does is read without."""
_PLACE = re.compile(rf"{_MARK}(\d+){_MARK}")
_FENCED = re.compile(r"^```\n.*?^```$", re.MULTILINE | re.DOTALL)


class Examples:
    """The examples of one comment."""

    def __init__(self, raw: str) -> None:
        self._blocks: list[str] = []
        self._lines = raw.replace(_MARK, "").split("\n")
        mark = _STAR if raw.lstrip().startswith("/*") else _SLASHES
        marked = [mark.match(line) for line in self._lines]
        self._marked = [match is not None for match in marked]
        self._plain = [
            line[match.end() :] if match else line for line, match in zip(self._lines, marked, strict=True)
        ]
        self._last_command = self._last_of(_END_COMMAND)
        self._last_fence = self._last_of(_FENCE)

    def set_aside(self) -> str:
        """The comment with a mark in the place of each example, without pictures and other files."""
        kept: list[str] = []
        at = 0
        while at < len(self._lines):
            begin = _BEGIN.fullmatch(self._plain[at])
            end = self._end(begin, at) if begin is not None else None
            if begin is None or end is None:
                kept.append(self._lines[at])
                at += 1
                continue
            body, after = end
            if not begin["dropped"]:
                self._keep(at, body, kept)
            at = after
        return "\n".join(kept)

    def put_back(self, text: str) -> str:
        """The text with each example, line by line, between fences."""
        return (
            _PLACE.sub(lambda match: f"```\n{self._blocks[int(match[1])]}\n```", text)
            if self._blocks
            else text
        )

    def _keep(self, begin: int, end: int, kept: list[str]) -> None:
        # Where the opening line bears no mark, a star or slashes at a line's beginning are code.
        source = self._plain if self._marked[begin] else self._lines
        lines = [line.rstrip() for line in source[begin + 1 : end]]
        if (match := _BEGIN.fullmatch(self._plain[begin])) is not None and match["block"]:
            while lines and _OPTION.match(lines[0]):
                del lines[0]
        code = dedent("\n".join(lines)).strip("\n")
        if code:
            kept += ["", f"{_MARK}{len(self._blocks)}{_MARK}", ""]
            self._blocks.append(code)

    def _end(self, begin: re.Match[str], at: int) -> tuple[int, int] | None:
        """The line behind the example's last one and the line to go on with; None where it has no end."""
        if begin["command"] or begin["fence"]:
            pattern, last = (
                (_END_COMMAND, self._last_command) if begin["command"] else (_FENCE, self._last_fence)
            )
            if last <= at:
                return None
            end = next(row for row in range(at + 1, last + 1) if pattern.match(self._plain[row]))
            return end, end + 1
        depth = _indent(self._plain[at])
        end = at + 1
        while end < len(self._plain) and (not self._plain[end].strip() or _indent(self._plain[end]) > depth):
            end += 1
        return end, end

    def _last_of(self, pattern: re.Pattern[str]) -> int:
        return max((row for row, line in enumerate(self._plain) if pattern.match(line)), default=-1)


def prose(text: str) -> str:
    """The text of a comment without its examples."""
    return _FENCED.sub("", text) if "```" in text else text


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
