"""The scripted agent of scripts/profile-rounds: its prepared changes fit, and findings lead to them."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from stitch_tools.models.profile import Bottleneck, GainRange, Quantity
from stitch_tools.profile.profile_text import bottleneck_line
from tests.mcp.server.profiled_rounds import (
    MOST_ROUNDS,
    PreparedChange,
    ProfiledRound,
    choose,
    parse_finding,
    read_edits,
    rounds,
)

pytestmark = pytest.mark.anyio
EXAMPLE = Path(__file__).parents[3] / "examples" / "slow_scan"


def finding(rule: str, cause: str = "it is slow", gain: float = 1.5) -> str:
    row = Bottleneck(
        rule=rule,
        cause=cause,
        evidence=(Quantity(name="waits", value=64.0, origin="nsys"),),
        gain=GainRange(low=1.0, expected=gain, high=3.0, predicted_us=100.0),
        action="do better.",
    )
    return bottleneck_line(1, row)


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_every_order_of_changes_ends_at_the_same_program(target: str) -> None:
    edits = read_edits(EXAMPLE / f"edits.{target}.toml")
    source = (EXAMPLE / ("program.cu" if target == "cuda" else "program.cpp")).read_text(encoding="utf-8")
    ends: set[str] = set()
    for order in itertools.permutations(edits):
        changed = source
        # What needs another change first is made in a later pass.
        for edit in (*order, *order):
            changed = edit.applied(changed) or changed
        assert all(edit.applied(changed) is None for edit in edits)
        ends.add(changed)
    assert len(ends) == 1


def test_a_finding_is_read_from_the_line_that_the_server_writes() -> None:
    read = parse_finding(finding("sync_in_loop", gain=2.25))
    assert (read.rule, read.gain, read.low, read.high) == ("sync_in_loop", 2.25, 1.0, 3.0)
    with pytest.raises(ValueError, match="no finding"):
        parse_finding("nothing was found")


def test_the_first_finding_with_a_change_is_taken() -> None:
    edits = (
        PreparedChange(("kernel_problem",), "tile it", (("slow();", "fast();"),), mentions="project"),
        PreparedChange(("sync_in_loop",), "no wait", (("wait();", ""),)),
    )
    findings = [finding("host_bound"), finding("kernel_problem", "advance: x"), finding("sync_in_loop")]
    chosen = choose(findings, edits, "slow(); wait();")
    assert chosen is not None
    assert (chosen[0].rule, chosen[2]) == ("sync_in_loop", "slow(); ")
    # A change that was made is not made again.
    assert choose(findings, edits, chosen[2]) is None


async def test_rounds_follow_the_findings_until_none_has_a_change() -> None:
    edits = (
        PreparedChange(("sync_in_loop",), "no wait", (("wait();", ""),)),
        PreparedChange(("kernel_problem",), "tile it", (("slow();", "fast();"),)),
    )
    sent: list[tuple[str, Any]] = []
    times = {"slow(); wait();": 400.0, "slow(); ": 200.0, "fast(); ": 50.0}
    checked: list[str] = []

    async def send(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        sent.append((tool, arguments.get("level")))
        if tool == "analyze_reference":
            return {"run_id": "r"}
        if tool == "check_program":
            checked.append(arguments["files"]["program.cu"])
            return {"verdict": "accepted", "program_id": checked[-1]}
        if tool == "benchmark_program":
            return {
                "times_us": [f"program: {times[arguments['program']]:.2f} us +- 1 (latency)", "eager: 1 us"]
            }
        findings = [finding("sync_in_loop", gain=1.9)]
        return {
            "findings": [finding("kernel_problem", gain=3.0)] if arguments["level"] == "both" else findings
        }

    made = await rounds(send, "slow(); wait();", "program.cu", edits, "cuda")
    assert [row.latency_us for row in made] == [400.0, 200.0, 50.0]
    assert [row.edit.why if row.edit else None for row in made] == ["no wait", "tile it", None]
    assert made[0].finding is not None
    assert made[0].finding.gain == 1.9
    assert len(made) <= MOST_ROUNDS + 1
    # Kernels are looked at once the host's worst habit is gone.
    assert [level for tool, level in sent if tool == "profile_program"] == ["system", "both", "both"]


async def test_rounds_that_are_cut_off_leave_what_was_timed() -> None:
    edits = (PreparedChange(("sync_in_loop",), "no wait", (("wait();", ""),)),)
    made: list[ProfiledRound] = []

    async def send(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if tool == "benchmark_program" and len(made) == 1:
            raise TimeoutError
        answers = {
            "analyze_reference": {"run_id": "r"},
            "check_program": {"verdict": "accepted", "program_id": "p"},
            "benchmark_program": {"times_us": ["program: 400.00 us +- 1 (latency)"]},
            "profile_program": {"findings": [finding("sync_in_loop")]},
        }
        return answers[tool]

    with pytest.raises(TimeoutError):
        await rounds(send, "wait();", "program.cu", edits, "cuda", made=made)
    assert [row.latency_us for row in made] == [400.0]


async def test_a_program_that_is_not_accepted_ends_the_rounds() -> None:
    async def send(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        del arguments
        return (
            {"run_id": "r"} if tool == "analyze_reference" else {"verdict": "incorrect", "message": "wrong"}
        )

    with pytest.raises(ValueError, match="not accepted: wrong"):
        await rounds(send, "", "program.cu", (), "cuda")
