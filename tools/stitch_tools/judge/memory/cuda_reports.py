"""compute-sanitizer's XML turned into findings, the program's kernels apart from those of libraries.

The file is written in the program's own sandbox: any content is survived.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from stitch_tools.judge.memory.frames import own_name
from stitch_tools.judge.memory.reports import Findings, merged
from stitch_tools.models.sanitizer import SanitizerFinding, SanitizerTool, Severity

_ROOT = "ComputeSanitizerOutput"
_END = "</record>"
_ACCESS = re.compile(
    r"(?:__(?P<space>\w+?)__ )?(?P<deed>read|write|atomic)\b(?:.*?of size (?P<size>\d+))?", re.IGNORECASE
)
_SPACE = re.compile(r"__(global|shared|local|constant)__")
_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d{1,9}) ", re.MULTILINE)
_RACES: dict[str, Severity] = {"error": "fatal", "warning": "suspicious"}
_DEEDS = {"read": "reads", "write": "writes", "atomic": "updates"}


@dataclass(frozen=True)
class Kernels:
    """How the program's own kernels are recognised."""

    names: frozenset[str]
    """Names without namespaces, template arguments and parameters."""
    files: Sequence[str]
    """The program's source files, relative to its folder."""

    def owns(self, function: str | None, file: str | None) -> bool:
        """Whether a record is about the program's own code."""
        return base_name(function or "") in self.names or self.relative(file) in self.files

    def relative(self, file: str | None) -> str | None:
        """The program's own name of a file that the compiler saw in another folder."""
        return own_name(file or "", self.files)


def base_name(function: str) -> str:
    """The bare name of a demangled or plain kernel name."""
    depth, kept = 0, ""
    # Template arguments may hold parentheses and names, so they go first.
    for character in function.replace("(anonymous namespace)::", ""):
        depth += (character == "<") - (character == ">")
        if depth == 0 and character != ">":
            kept += character
    kept = kept.partition("(")[0]
    words = re.findall(r"\w+", kept)
    return words[-1] if words else ""


def cuda_findings(tool: SanitizerTool, xml: str, kernels: Kernels) -> Findings | None:
    """What the tool reported; None where the file is no report of it."""
    root = _parse(xml)
    if root is None:
        return None
    return merged(_finding(tool, record, kernels) for record in root.iter("record"))


def counted(stdout: str) -> int | None:
    """How many errors or hazards the tool's last line on standard output counts; None where there is none."""
    found = _SUMMARY.findall(stdout)
    return int(found[-1]) if found else None


def _parse(xml: str) -> ElementTree.Element | None:
    """The report's root. One that was cut off, because the tool was killed, counts up to its last record."""
    if f"<{_ROOT}" not in xml or "<!" in xml:
        return None  # a document type is never ours: entities could blow up
    for text in (xml, xml[: xml.rfind(_END) + len(_END)] + f"</{_ROOT}>"):
        try:
            root = ElementTree.fromstring(text)
        except ElementTree.ParseError:
            continue
        return root if root.tag == _ROOT else None
    return None


def _finding(
    tool: SanitizerTool, record: ElementTree.Element, kernels: Kernels
) -> tuple[SanitizerFinding, bool]:
    parts = (record.findtext("what/text") or record.findtext("what"), record.findtext("what/type"))
    text = ". ".join(" ".join(part.split()) for part in parts if part)
    level = next((element.text or "" for element in record.iter("level")), "").strip().lower()
    place = _device_place(record)
    function, file, line = place.get("func"), place.get("path"), _number(place.get("line"))
    rule, severity, sentence, space = _judge(tool, _race(record) or text, level)
    own = kernels.owns(function, file)
    if function is None and file is None:
        # An API call that failed, or a copy of memory that nobody wrote: no kernel did it.
        severity = "note"
    finding = SanitizerFinding(
        rule=rule,
        severity=severity,
        message=sentence,
        kernel=function[:160] if function else None,
        file=kernels.relative(file),
        line=line,
        space=space,
    )
    return finding, own


def _device_place(record: ElementTree.Element) -> dict[str, str]:
    """Function, path and line that the record names first, the host's call stack left out.

    Tools and versions nest them differently: in `where`, in each access of a race, in a device stack.
    """
    found: dict[str, str] = {}
    waiting = [record]
    while waiting:
        element = waiting.pop()
        if element.tag == "hostStack":
            continue
        text = (element.text or "").strip()
        if element.tag in ("func", "path", "line") and text:
            found.setdefault(element.tag, text)
        waiting.extend(reversed(element))
    return found


def _race(record: ElementTree.Element) -> str | None:
    """The two accesses of a race as one sentence; None where the record names no two."""
    accesses = record.find("what/source"), record.find("what/destination")
    deeds = [
        _DEEDS.get((one.findtext("direction") or "").strip().lower()) for one in accesses if one is not None
    ]
    if len(deeds) != 2 or None in deeds:
        return None
    line = _number(accesses[1].findtext("where/line")) if accesses[1] is not None else None
    return f"one {deeds[0]} what another {deeds[1]}" + (f" in line {line}" if line else "")


def _judge(tool: SanitizerTool, text: str, level: str) -> tuple[str, Severity, str, str | None]:
    """Rule, severity, sentence and address space of one record."""
    found = _SPACE.search(text)
    space = found[1] if found else None
    if tool == "racecheck":
        return (
            "race",
            _RACES.get(level, "note"),
            f"threads of one block race: {_plain(text)}",
            space or "shared",
        )
    if tool == "initcheck":
        where = f"{space or 'global'} memory"
        return "uninitialised-read", "suspicious", f"reads {where} that nobody wrote", space or "global"
    if tool == "synccheck":
        return "invalid-barrier", "suspicious", f"a barrier is misused: {_plain(text)}", space
    return _judge_access(text, space)


def _judge_access(text: str, space: str | None) -> tuple[str, Severity, str, str | None]:
    access = _ACCESS.search(text)
    if access is None:
        return "memory-error", "fatal", f"memory error: {_plain(text)}", space
    deed = access["deed"].lower()
    size = f"{access['size']} bytes of " if access["size"] else ""
    memory = f"{space or 'device'} memory"
    if "misaligned" in text.lower():
        return f"misaligned-{deed}", "fatal", f"{_DEEDS[deed]} {size}{memory} at a misaligned address", space
    return f"invalid-{deed}", "fatal", f"{_DEEDS[deed]} {size}{memory} outside of every allocation", space


def _plain(text: str) -> str:
    """The tool's own words without addresses, so that equal defects read equal."""
    return re.sub(r"\s*\+?0x[0-9a-fA-F]+|\s*\[\d+ hazards?\]", "", text)[:200] or "no details"


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and len(text) < 10 else None
