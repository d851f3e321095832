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
_ACCESS = re.compile(r"\b(read|write|atomic)\b", re.IGNORECASE)
_ADDRESSES = re.compile(r"\s*\+?0x[0-9a-fA-F]+|\s*\[\d+ hazards?\]")
_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d{1,9}) ", re.MULTILINE)
_RACES: dict[str, Severity] = {"error": "fatal", "warning": "suspicious"}


@dataclass(frozen=True)
class Kernels:
    """How the program's own kernels are recognised."""

    names: frozenset[str]
    """Names without namespaces, template arguments and parameters."""
    files: Sequence[str]
    """The program's source files, relative to its folder."""

    def owns(self, function: str | None, file: str | None) -> bool:
        """Whether a record is about the program's own code."""
        return base_name(function or "") in self.names or own_name(file or "", self.files) in self.files


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
    text = _sentence(record)
    level = next((element.text or "" for element in record.iter("level")), "").strip().lower()
    place = _device_place(record)
    function, file = place.get("func"), place.get("path")
    rule, severity = _rule(tool, text, level)
    if function is None and file is None:
        # An API call that failed, or a copy of memory that nobody wrote: no kernel did it.
        severity = "note"
    finding = SanitizerFinding(
        rule=rule,
        severity=severity,
        message=text,
        kernel=function[:160] if function else None,
        file=own_name(file or "", kernels.files),
        line=_number(place.get("line")),
    )
    return finding, kernels.owns(function, file)


def _sentence(record: ElementTree.Element) -> str:
    """The tool's own words, which can be searched for, without addresses: equal defects read equal."""
    parts = [record.findtext("what/text") or record.findtext("what"), record.findtext("what/type")]
    for side in ("source", "destination"):
        # A race says no more than that; which two accesses it is about stands beside.
        access, line = (record.findtext(f"what/{side}/{name}") for name in ("direction", "where/line"))
        parts.append(f"{access} in line {line}" if access and line else access)
    text = ". ".join(" ".join(part.split()) for part in parts if part and part.strip())
    return _ADDRESSES.sub("", text)[:200] or "no details"


def _rule(tool: SanitizerTool, text: str, level: str) -> tuple[str, Severity]:
    if tool == "racecheck":
        return "race", _RACES.get(level, "note")
    if tool == "initcheck":
        return "uninitialised-read", "suspicious"
    if tool == "synccheck":
        return "invalid-barrier", "suspicious"
    access = _ACCESS.search(text)
    if access is None:
        return "memory-error", "fatal"
    return f"{'misaligned' if 'misaligned' in text.lower() else 'invalid'}-{access[1].lower()}", "fatal"


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


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and len(text) < 10 else None
