"""The markup of documentation comments (doxygen, and the reStructuredText of newer headers) as plain text."""

import re
from dataclasses import dataclass

from stitch_rag.extract.examples import Examples, prose

_LINE_START = re.compile(r"^[ \t]*(?:\*(?!\*)[ \t]?|//[/!]?<?[ \t]?)?", re.MULTILINE)
_DELIMITERS = re.compile(r"\A/\*+!?<?|\*+/\Z")
_RULE_LINE = re.compile(r"^[ \t]*[-=+*~^_#/!]+[ \t]*$", re.MULTILINE)
"""Below a heading, or around a banner: an empty line in its place ends the paragraph."""
_BOXED = re.compile(r"^[ \t]*(?:(?P<words>[^\n]*\S)??[ \t]{2,})\*+[ \t]*$", re.MULTILINE)
"""A line in a box of stars."""
_TITLE = re.compile(r"^[ \t]*+(?:[-=/]{2,}+[^\n]*[-=/]{2}|/(?:[ \t]++[^\s/]\S*+){1,4}+)[ \t]*$", re.MULTILINE)
"""Of a section: rulers around it, or few words and what is left of four slashes before them."""
_FOURTH_SLASH = re.compile(r"^[ \t]*+/[ \t]+", re.MULTILINE)
_TODO = re.compile(r"(?:(?<=[.] )|^[ \t]*+)(?:TODO|FIXME)\b(?:(?![.][ \t\n]|\n)[^\n])*+[.]?", re.MULTILINE)
"""To the end of its sentence."""
_FEWEST_WORDS = 4
"""In a box: with fewer it is a title."""
_NO_BRIEF = re.compile(r"[\W\d_]*|(?:READ|WRITE|READ[/-]WRITE|READ[ -]ONLY)\.?")
_DROPPED_BLOCK = re.compile(
    r"[\\@](?P<tag>latexonly|xmlonly|internal|htmlonly|manonly|cond)\b.*?[\\@]end(?P=tag)\b", re.DOTALL
)
_BLOCK_ENDS = re.compile(r"[\\@]end(?:latexonly|xmlonly|internal|htmlonly|manonly|cond)\b")
"""Without one of these no block ends, and none is looked for."""
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
_EMPTY_ITEM = re.compile(r"^[ \t]*-[ \t]*$", re.MULTILINE)
"""What is left of one that is a command only."""
_PLACEHOLDER = re.compile(r"___\w+?___")
"""What a vendor's scripts were to replace."""
# Not behind a template's arguments: that names a member.
_LINK = re.compile(r"(?<![\w:>])(?:::|#(?!(?:include|define|pragma|if|ifdef|ifndef|endif)\b))(?=[A-Za-z_])")
_ROLE = re.compile(r":(?:cpp:)?\w+:`([^`<]{1,300}?)[ ]*(?:<[^`>]*>)?`")
_TAG = re.compile(
    r"</?(?:a|b|br|center|code|dd|div|dl|dt|em|h[1-6]|i|img|li|ol|p|pre|small|span|strong|sub|sup|table|td|th|tr|tt|ul)"
    r"(?:[ \t][^>\n]{0,300})?/?>|(?<=[\w)])[ ]?<https?:[^>\n]{0,300}>(?=`)|(?<!\w)<\w+>(?=\.\w)"
)
"""HTML's, a link's address, what stands for an object. Other brackets hold headers or template arguments."""
_OPTION_LINE = re.compile(r"^[ \t]*:(?:align|width|height|alt|scale):[^\n]*$", re.MULTILINE)
_ADMONITION = re.compile(r"^[ \t]*\.\.[ \t]+(note|warning)::[ \t]*", re.MULTILINE)
_JOINT = re.compile(r"\\[ ](?=:sub:)")
_INFERRED = re.compile(r"\*\*\[(\w+)\]\*\*[ ]?")
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
    examples = Examples(raw[:_LONGEST_COMMENT].replace("\r", ""))
    raw = examples.set_aside()
    body = _DELIMITERS.sub("", raw.strip()) if raw.lstrip().startswith("/*") else raw
    body = _without_banners(_LINE_START.sub("", body))
    body = _PLACEHOLDER.sub("", body)
    see = group = ""
    if "@" in body or "\\" in body:
        body, see, group = _without_commands(body)
    body = _TAG.sub("", _without_rst(body))
    if "#" in body or "::" in body:
        body = _LINK.sub("", body)
    text = examples.put_back(_HEADING.sub("", _tidy(body)))
    brief = first_sentence(prose(text)).removeprefix("- ")
    return Comment("" if _NO_BRIEF.fullmatch(brief) else brief, text, see, group)


def _without_banners(body: str) -> str:
    """The text without rulers, titles of sections and what its authors have yet to do."""
    body = _FOURTH_SLASH.sub("", _TITLE.sub("", _RULE_LINE.sub("", body)))
    body = _TODO.sub("", body)
    return _BOXED.sub(_unboxed, body) if "*" in body else body


def _unboxed(match: re.Match[str]) -> str:
    text = (match["words"] or "").lstrip("*").strip()
    return text if text.count(" ") + 1 >= _FEWEST_WORDS else ""


def _without_rst(body: str) -> str:
    """The text without reStructuredText's marks."""
    body = _ROLE.sub(r"\1", _JOINT.sub(" ", body).replace("\\ ", "")).replace("``", "`")
    if ":" in body:
        body = _ADMONITION.sub(lambda match: f"{match[1].capitalize()}: ", _OPTION_LINE.sub("", body))
    return _INFERRED.sub(lambda match: "" if match[1] == "inferred" else f"[{match[1]}] ", body)


def _without_commands(body: str) -> tuple[str, str, str]:
    """The text with doxygen's commands as words, the names that it refers to, and a group's title."""
    if _BLOCK_ENDS.search(body):
        body = _DROPPED_BLOCK.sub("", body)
    group = _GROUP.search(body)
    see = " ".join(name for match in _SEE.finditer(body) for name in re.findall(r"\w{3,}", match["names"]))
    body = _DROPPED_LINE.sub("", _SEE.sub("", body))
    body = _PARAM.sub(lambda match: f"Parameter {match[1]}: ", body)
    body = _COMMAND.sub(lambda match: _WORDS.get(match[1], ""), body)
    body = _EMPTY_ITEM.sub("", body)
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
        text = line.strip()
        if not text:
            fresh = True
        elif (
            fresh or line.startswith(("    ", "\t")) or text.startswith(("- ", "* ", "Parameter ", "Returns"))
        ):
            paragraphs.append(text)
            fresh = False
        else:
            paragraphs[-1] += " " + text
    return "\n".join(paragraphs)
