"""The markup of documentation comments (doxygen, and the reStructuredText of newer headers) as plain text."""

import re
import textwrap
from dataclasses import dataclass

_LINE_START = re.compile(r"^[ \t]*(?:\*(?!\*)[ \t]?|//[/!]?<?[ \t]?)?", re.MULTILINE)
_DELIMITERS = re.compile(r"\A/\*+!?<?|\*+/\Z")
_RULE_LINE = re.compile(r"^[ \t]*[-=+*~^_#/]{4,}[ \t]*$", re.MULTILINE)
"""Below a heading, or around a banner: an empty line in its place ends the paragraph."""
_DROPPED_BLOCK = re.compile(
    r"[\\@](?P<tag>latexonly|xmlonly|internal|htmlonly|manonly|cond)\b.*?[\\@]end(?P=tag)\b", re.DOTALL
)
_SEE = re.compile(
    r"[\\@](?:sa|see)\b(?P<names>.*?)(?=\n[ \t]*\n|\n[ \t]*[\\@](?!ref\b|p\b|c\b)|\Z)", re.DOTALL
)
_GROUP = re.compile(r"[\\@](?:defgroup|addtogroup)[ \t]+(?P<name>\w+)[ \t]*(?P<title>[^\n]*)")
_DROPPED_LINE = re.compile(
    r"^[ \t]*[\\@](?:notefnerr|note_\w+|ingroup|endcode|code(?:\{\.\w+\})?|endverbatim|verbatim|rst|endrst|"
    r"file|par[ \t]*$|callergraph|callgraph|exception-guarantee|behavior|smemwarpreuse|smemstorage\{\w+\}|"
    r"blocked|rowmajor|granularity|anchor|headerfile|implements|\{|\}|weakgroup|hideinitializer|defgroup|"
    r"addtogroup|name)[^\n]*$",
    re.MULTILINE,
)
_PARAM = re.compile(
    r"[\\@]t?param(?:[ \t]*\[[\w, ]+\])?[ \t]+([\w.]+|<b>\[\w+\]</b>[ \t]*\w+)[ \t]*(?:-[ \t]*)?"
)
_WORDS = {
    "brief": "",
    "details": "",
    "return": "Returns: ",
    "returns": "Returns: ",
    "result": "Returns: ",
    "retval": "Returns ",
    "note": "Note: ",
    "warning": "Warning: ",
    "deprecated": "Deprecated: ",
    "remark": "Remark: ",
    "pre": "Requires: ",
    "post": "Afterwards: ",
    "par": "",
    "todo": "",
    "sa": "",
    "section": "",
    "subsection": "",
    "since": "Since ",
    "li": "- ",
    "short": "",
}
_COMMAND = re.compile(r"[\\@](\w+)(?:\{[^}\n]{0,200}\})?[ \t]?")
_PLACEHOLDER = re.compile(r"___\w+?___")
"""What a vendor's scripts were to replace."""
_LINK = re.compile(r"(?<![\w:])(?:::|#(?!include|define|if|endif|pragma))(?=[A-Za-z_])")
_ROLE = re.compile(r":(?:cpp:)?\w+:`([^`<]{1,300}?)[ ]*(?:<[^`>]*>)?`")
_TAG = re.compile(r"</?[a-zA-Z][^>\n]{0,80}>")
_BANNER_END = re.compile(r"[ \t]{2,}\*+[ \t]*$", re.MULTILINE)
"""The right edge of a box of stars."""
_DIRECTIVE = re.compile(r"^[ \t]*(?:\.\. image::|:(?:align|width|height|alt|scale):)[^\n]*$", re.MULTILINE)
_INFERRED = re.compile(r"\*\*\[inferred\]\*\*[ \t]*")
_SAYS_SOMETHING = re.compile(r"[^\W_]{2}|\A\w+\Z")
_LATER = re.compile(r"\W*(?:TODO|FIXME)\b")
"""A note of the header's author to himself."""
_ACCESS = re.compile(r"(?:READ|WRITE)(?:/WRITE)?[.,]?|(?:read|write)-only", re.IGNORECASE)
"""How a field may be used is not what it is."""
_CODE_BEGINS = re.compile(
    r"[\\@](?:code|verbatim)\b(?!.*[\\@]end)|(?P<fence>```)(?!.*```)|(?P<rst>\.\. code-block::)"
)
_CODE_ENDS = re.compile(r"[\\@]end(?:code|verbatim)\b")
_FENCE = re.compile(r"```")
_CODE_MARK = "\ue000"
"""Around the number that stands for a block of code while the prose around it is worked on."""
_MARKED = re.compile(f"{_CODE_MARK}(\\d+){_CODE_MARK}")
_SENTENCE_END = re.compile(r"(?<=[.!?])[ ]+(?=[A-Z\[\"'])|\n")
_HEADING = re.compile(r"\A(?:Overview|Description)\n")
_LONGEST_BRIEF = 300
_LONGEST_COMMENT = 30_000
"""Characters; the longest of any CUDA header has 21,000. A mark without its end takes the square of it."""


@dataclass(frozen=True, slots=True)
class Comment:
    """What a comment says."""

    brief: str = ""
    text: str = ""
    """All of it but the references, with line breaks where the author put paragraphs and lists."""
    see: str = ""
    """Names that it refers to."""
    group: str = ""
    """Title, where it opens a group."""


def read_comment(raw: str) -> Comment:
    """The content of one comment, or of several adjacent line comments joined by line breaks."""
    raw = raw[:_LONGEST_COMMENT]
    body = _DELIMITERS.sub("", raw.strip().replace("\r", "")) if raw.lstrip().startswith("/*") else raw
    body, blocks = _without_code(_LINE_START.sub("", body).replace(_CODE_MARK, ""))
    body = _DIRECTIVE.sub("", _RULE_LINE.sub("", _BANNER_END.sub("", body)))
    body = _PLACEHOLDER.sub("", body)
    see = group = ""
    if "@" in body or "\\" in body:
        body, see, group = _without_commands(body)
    if "#" in body or "::" in body:
        body = _LINK.sub("", body)
    body = _TAG.sub("", _ROLE.sub(r"\1", _INFERRED.sub("", body))).replace("``", "`").replace("\\ ", " ")
    text = _HEADING.sub("", _tidy(body))
    brief = first_sentence(_MARKED.sub("", text))
    if not _SAYS_SOMETHING.search(brief) or _LATER.match(brief) or _ACCESS.fullmatch(brief):
        brief = ""
    return Comment(brief, _MARKED.sub(lambda mark: blocks[int(mark[1])], text), see, group)


def _without_code(body: str) -> tuple[str, list[str]]:
    """The text with a mark in place of each block of code, and these blocks as they were written.

    Nothing in code is markup, and its lines are none of a paragraph: a comment would swallow what follows it.
    """
    lines: list[str] = []
    blocks: list[list[str]] = []
    ends: re.Pattern[str] | None = None
    indent: int | None = None
    """Of the directive whose deeper lines are code."""
    for line in body.split("\n"):
        words = line.strip()
        if indent is not None:
            if not words or len(line) - len(line.lstrip()) > indent:
                is_option = words.startswith(":") and not "".join(blocks[-1]).strip()
                if not is_option:
                    blocks[-1].append(line)
                continue
            indent = None
        elif ends is not None:
            if ends.match(words):
                ends = None
            else:
                blocks[-1].append(line)
            continue
        begins = _CODE_BEGINS.match(words)
        if begins is None:
            lines.append(line)
            continue
        lines += ["", f"{_CODE_MARK}{len(blocks)}{_CODE_MARK}", ""]
        blocks.append([])
        if begins["rst"]:
            indent = len(line) - len(line.lstrip())
        else:
            ends = _FENCE if begins["fence"] else _CODE_ENDS
    return "\n".join(lines), [textwrap.dedent("\n".join(block)).strip("\n") for block in blocks]


def _without_commands(body: str) -> tuple[str, str, str]:
    """The text with doxygen's commands as words, the names that it refers to, and a group's title."""
    body = _DROPPED_BLOCK.sub("", body)
    group = _GROUP.search(body)
    see = " ".join(name for match in _SEE.finditer(body) for name in re.findall(r"\w{3,}", match["names"]))
    body = _DROPPED_LINE.sub("", _SEE.sub("", body))
    body = _PARAM.sub(lambda match: f"Parameter {match[1]}: ", body)
    body = _COMMAND.sub(lambda match: _WORDS.get(match[1], ""), body)
    return body, see, group["title"].strip() if group else ""


def first_sentence(text: str) -> str:
    """The first sentence of `text` on one line, cut at 300 characters."""
    head = _SENTENCE_END.split(text.strip(), maxsplit=1)[0]
    line = " ".join(head.split())
    return line if len(line) <= _LONGEST_BRIEF else f"{line[: _LONGEST_BRIEF - 3].rstrip()}..."


def _tidy(body: str) -> str:
    """Paragraphs of one line each; list items, parameters and indented code keep their lines."""
    paragraphs: list[str] = []
    fresh = True
    for line in body.split("\n"):
        words = line.strip()
        if not words:
            fresh = True
        elif (
            fresh
            or line.startswith(("    ", "\t"))
            or words.startswith(("- ", "* ", "Parameter ", "Returns"))
        ):
            paragraphs.append(words)
            fresh = False
        else:
            paragraphs[-1] += " " + words
    return "\n".join(paragraphs)
