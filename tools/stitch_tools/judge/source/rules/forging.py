"""Output that looks like a verdict."""

import ast
import json
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.host import HostCall
from stitch_tools.judge.source.native import text_of
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import hit_in, own_names
from stitch_tools.judge.source.values import Container, Plain
from stitch_tools.judge.source.words import words

_PRINTERS = words("""
    builtins.print sys.stdout.write sys.stderr.write sys.__stdout__.write sys.stdout.buffer.write os.write
    os.fdopen builtins.open
""")
_NATIVE_PRINTERS = words("printf fprintf puts fputs write dprintf std::printf std::puts std::fputs")
_VERDICT_KEYS = words("status correct correctness compiled speedup verdict accepted runtime_us score")
_VERDICTS = frozenset(("accepted", "correct", "passed", True))
_BY_NUMBER = ("os.write", "os.fdopen", "builtins.open", "write", "dprintf")
_STANDARD = (0, 1, 2)


def is_verdict(text: str) -> bool:
    """Whether a line of the text is a JSON object that claims a verdict."""
    for line in text.splitlines()[:50]:
        start = line.find("{")
        if start < 0 or len(line) > 10_000:
            continue
        try:
            value: object = json.loads(line[start:].strip())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            rows = {str(key): item for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
            keys = rows.keys() & _VERDICT_KEYS
            if len(keys) > 1 or any(
                isinstance(rows[key], str | bool) and rows[key] in _VERDICTS for key in keys
            ):
                return True
    return False


def find_forged(scanned: Scanned) -> Iterator[Hit]:
    """Printed verdicts, and writes to descriptors that are not the program's."""
    for call in scanned.host.calls:
        path = next((row for row in call.paths if row in _PRINTERS), None)
        if path is not None:
            given = [scanned.host.resolver.constant(part, call.scope) for part in call.node.args]
            claims = [*_claims(path, given), *_printed_dicts(scanned, call)]
            for message in claims:
                yield hit_in(scanned, call.scope, call.node, message, "fatal")
    for unit in scanned.native:
        own = own_names(unit)
        for call in unit.calls:
            name = call.name.removeprefix("::")
            # `write` may be the program's own; only one that takes what the system's takes is worth a look.
            is_own = name in _BY_NUMBER and call.name in own
            if name not in _NATIVE_PRINTERS or call.is_method or (is_own and len(call.arguments) != 3):
                continue
            texts = [_constant(text_of(part)) for part in call.arguments]
            for message in _claims(call.short, texts):
                yield Hit(unit.file, unit.line(call.node), message, "suspicious" if is_own else None)


def _printed_dicts(scanned: Scanned, call: HostCall) -> Iterator[str]:
    """Dicts with a verdict's keys that are printed, as they are or through json.dumps."""
    resolver = scanned.host.resolver
    for part in call.node.args:
        is_dump = isinstance(part, ast.Call) and "json.dumps" in resolver.paths(part.func, call.scope)
        shown = part.args[0] if isinstance(part, ast.Call) and is_dump and part.args else part
        for value in resolver.resolve(shown, call.scope):
            if isinstance(value, Container) and isinstance(value.node, ast.Dict):
                keys = {resolver.text(key, value.scope) for key in value.node.keys}
                if len(keys & _VERDICT_KEYS) > 1:
                    yield "a verdict is printed as if a judge had"


def _claims(printer: str, given: list[Plain]) -> Iterator[str]:
    """What is wrong with printing these arguments."""
    first = given[0] if given else None
    if printer in _BY_NUMBER and isinstance(first, int) and first not in _STANDARD:
        yield f"descriptor {first} was opened by somebody else"
    for text in given:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        if isinstance(plain, str) and is_verdict(plain):
            yield "a verdict is printed as if a judge had"


def _constant(text: str) -> Plain:
    """A C++ argument: a number, or a text without its quotes."""
    if text.isdecimal() and len(text) < 10:
        return int(text)
    return text.strip('"').replace('\\"', '"').replace("\\n", "\n") if text.startswith('"') else None


RULES = (
    Rule(
        "forged_result",
        "fatal",
        "The program prints a JSON object that claims a verdict (status accepted, correct, speedup), or "
        "writes to "
        "a descriptor that it did not open.",
        "Print nothing, or plain sentences: verdicts do not travel over a program's output.",
        find_forged,
    ),
)
