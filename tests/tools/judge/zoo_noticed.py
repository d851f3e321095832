"""Which probe noticed what is wrong with a candidate, by the words that a Check uses."""

from stitch_tools.judge.correctness.draw_schedule import AGAIN, RELOADED, SECOND
from stitch_tools.models.verdict import Check, DrawResult
from stitch_tools.worker.reference.draw_kinds import PROBES as SENSITIVITY_PROBES
from tests.tools.judge.zoo_runner import is_of_pattern

_ENDS = {"crashed": "process", "timed_out": "process", "out_of_memory": "process", "build_failed": "build"}
_FLAGS = {"partial": "work", "library_only": "work", "unguarded": "batch_probe"}
_PREFIXES = (
    (f"{SECOND}/", "second_weights"),
    (f"{RELOADED}/", "reload_weights"),
    ("batch-", "batch_probe"),
    ("variant ", "variants"),
    *((f"{probe.name}/", "order_one_weights") for probe in SENSITIVITY_PROBES[1:]),
)
_OWN = {"own-1": "equality", "own-2": "mutate_storage", "altered": "mutate_storage", AGAIN: "late_repeat"}
_EFFECTS = {
    "memory beside": "guards",
    "modified its inputs": "guard_inputs",
    "what the contract keeps": "kept_buffers",
    "wrong outputs": "outputs",
    ", expected ": "outputs",
}
"""Words of a problem that say more than the draw's name."""


def noticed(check: Check) -> tuple[str, ...]:
    """The probes that speak against the candidate, the first one first; () where nobody doubts it."""
    wrong = [draw for draw in check.draws if not draw.ok]
    if check.status in _ENDS:
        # The draw in which it ended had nothing to compare.
        wrong = [draw for draw in wrong if draw.outputs]
    found = [name for draw in wrong for name in _of_draw(draw)]
    if found[:1] == ["equality"]:
        # What is wrong at once is wrong in later draws, too.
        found = found[:1]
    # A finding in a file is one of its text.
    if any(row.severity == "fatal" and row.file is not None for row in check.findings):
        found.append("static")
    if check.status in _ENDS:
        found.append(_ENDS[check.status])
    found += [_FLAGS[flag] for flag in check.flags if flag in _FLAGS]
    if "weak" in check.flags:
        # Without the probes one look at the reference still shows whether it depends on its inputs.
        found.append("sensitivity" if check.sensitivity else "dependence")
    if not found and check.status != "accepted":
        found.append(check.status)
    return tuple(dict.fromkeys(found))


def _of_draw(draw: DrawResult) -> list[str]:
    """What the draw is for, and what of it was wrong."""
    problem = draw.problem or next((row.problem for row in draw.outputs if row.problem), "")
    for words, probe in _EFFECTS.items():
        if words in problem:
            return [probe]
    where = _of_name(draw.draw)
    return ["pattern", where] if is_of_pattern(problem) and where == "equality" else [where]


def _of_name(name: str) -> str:
    if name.endswith(" repeated"):
        return "repeat"
    if name in _OWN:
        return _OWN[name]
    if name.startswith("own-"):
        return "own_draws"
    return next((probe for prefix, probe in _PREFIXES if name.startswith(prefix)), "structured")
