"""Reports of AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer turned into findings.

The text comes out of the program's process: any text is survived, and what it says is the program's own word.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from stitch_tools.judge.memory.frames import CodeLocation, Owner, StackFrame, first_stack, own_name
from stitch_tools.models.sanitizer import SanitizerFinding, Severity

MOST_FINDINGS = 50
_ASAN = re.compile(r"ERROR: AddressSanitizer: (?:attempting )?([\w-]+(?: on unknown address)?)(.*)$")
_ACCESS = re.compile(r"^(?:READ|WRITE) of size \d+|caused by a (?:READ|WRITE)")
_REGION = re.compile(r"is located (\d+ bytes [\w ]+ \d+-byte region)")
_UBSAN = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):\d+: runtime error: (?P<message>.*)$")
_TSAN = re.compile(r"WARNING: ThreadSanitizer: ([^(]+?)\s*(?:\(pid=\d+\))?$")
_TSAN_STACK = re.compile(r"^  (?:Previous )?(?:atomic )?(read|write) of size (\d+) at ", re.IGNORECASE)
_NOT_FATAL = {"alloc-dealloc-mismatch", "odr-violation", "memcpy-param-overlap"}
_UBSAN_KIND = re.compile(r"^SUMMARY: UndefinedBehaviorSanitizer: ([\w-]+)")


@dataclass(frozen=True)
class Findings:
    """What a report says: about the program's own code, and about libraries."""

    own: tuple[SanitizerFinding, ...]
    libraries: tuple[SanitizerFinding, ...]


def address_findings(text: str, owner: Owner) -> Findings:
    """What AddressSanitizer reported."""
    return merged(_address_finding(block, owner) for block in _blocks(text, _ASAN))


def undefined_findings(text: str, owner: Owner) -> Findings:
    """What UndefinedBehaviorSanitizer reported."""
    return merged(_undefined_finding(block, owner) for block in _blocks(text, _UBSAN))


def thread_findings(text: str, owner: Owner) -> Findings:
    """What ThreadSanitizer reported."""
    return merged(_thread_finding(block, owner) for block in _blocks(text, _TSAN))


def _blocks(text: str, start: re.Pattern[str]) -> Iterator[list[str]]:
    """The reports in `text`: each begins at a line that `start` matches and ends before the next one."""
    block: list[str] = []
    for line in text.splitlines():
        if start.search(line):
            if block:
                yield block
            block = [line]
        elif block:
            block.append(line)
    if block:
        yield block


def _address_finding(block: Sequence[str], owner: Owner) -> tuple[SanitizerFinding, bool]:
    head = _ASAN.search(block[0])
    rule = (head[1] if head else "memory-error").removesuffix(" on unknown address")
    rule = "segmentation-fault" if rule == "SEGV" else rule.lower()
    place, own = owner.locate(first_stack(block))
    severity: Severity = "suspicious" if rule in _NOT_FATAL else "fatal"
    return _finding(rule, severity, _address_sentence(rule, block), place), own


def _address_sentence(rule: str, block: Sequence[str]) -> str:
    """What was done and where, in AddressSanitizer's words, without addresses: equal defects read equal."""
    access = next((match for line in block if (match := _ACCESS.search(line))), None)
    region = next((match for line in block if (match := _REGION.search(line))), None)
    deed = f"{rule}: {access[0]}" if access else rule
    return f"{deed}, {region[1]}" if region else deed


def _undefined_finding(block: Sequence[str], owner: Owner) -> tuple[SanitizerFinding, bool]:
    head = _UBSAN.match(block[0])
    message = head["message"] if head else ""
    rule = next((match[1] for line in block if (match := _UBSAN_KIND.match(line))), "undefined-behavior")
    stack = first_stack(block)
    place, own = owner.locate(stack)
    if place.line is None and head is not None:
        line = int(head["line"]) if len(head["line"]) < 10 else None
        place = CodeLocation(place.function, own_name(head["file"], owner.files), line)
    # Where no stack was printed, nothing but instrumented code can have reported: that is the program's.
    return _finding(rule, "suspicious", f"undefined behavior: {message}"[:400], place), own or not stack


def _thread_finding(block: Sequence[str], owner: Owner) -> tuple[SanitizerFinding, bool]:
    head = _TSAN.search(block[0])
    kind = head[1].strip() if head else "thread error"
    stacks = list(_access_stacks(block))
    located = [owner.locate(frames) for _, frames in stacks] or [owner.locate(first_stack(block))]
    place, own = next(((place, own) for place, own in located if own), located[0])
    rule = kind.lower().replace(" ", "-")
    if kind != "data race":
        return _finding(rule, "suspicious", f"threads: {kind}", place), own
    deeds = [f"{deed}s" for deed, _ in stacks[:2]] or ["accesses"]
    other = located[1][0] if len(located) > 1 else None
    where = f" ({other.file}:{other.line})" if other and other.file and other.line else ""
    sentence = f"data race: one thread {deeds[0]} what another {deeds[-1]} at the same time{where}"
    return _finding(rule, "fatal", sentence, place), own


def _access_stacks(block: Sequence[str]) -> Iterator[tuple[str, list[StackFrame]]]:
    for number, line in enumerate(block):
        match = _TSAN_STACK.match(line)
        if match is not None:
            yield match[1].lower(), first_stack(block[number + 1 :])


def _finding(rule: str, severity: Severity, message: str, place: CodeLocation) -> SanitizerFinding:
    return SanitizerFinding(
        rule=rule[:60],
        severity=severity,
        message=message,
        kernel=place.function,
        file=place.file,
        line=place.line,
    )


def merged(rows: Iterable[tuple[SanitizerFinding, bool]]) -> Findings:
    """Equal findings fall together; the first of each stays, with a count."""
    kept: dict[tuple[bool, str, str | None, int | None, str | None], SanitizerFinding] = {}
    for row, own in rows:
        key = (own, row.rule, row.file, row.line, row.kernel)
        seen = kept.get(key)
        kept[key] = row if seen is None else seen.model_copy(update={"count": seen.count + row.count})
    own_rows = tuple(row for (own, *_), row in kept.items() if own)
    others = tuple(row for (own, *_), row in kept.items() if not own)
    return Findings(own_rows[:MOST_FINDINGS], others[:MOST_FINDINGS])
