"""The suite's table: what counts as caught, as distinct and as shown, and which probe noticed a cheat."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stitch_tools.models.verdict import Check, CheckFlag, CheckStatus, DrawResult, Finding, OutputError
from tests.tools.judge.conditions import revision
from tests.tools.judge.zoo_noticed import noticed
from tests.tools.judge.zoo_record import ZooRow
from tests.tools.judge.zoo_table import report

ROOT = Path(__file__).resolve().parents[3]
CONDITIONS = {"target": "cpu", "revision": "abc1234", "machine": "a machine"}


def row(name: str, kind: str = "cheats", **fields: object) -> ZooRow:
    found = ZooRow(name, kind, "cached_by_pointer", ("mutate_storage",), False, "0", "abc1234", 0.5)
    for field, value in {"right": True, "status": "rejected_cheat", **fields}.items():
        setattr(found, field, value)
    return found


def check(*draws: DrawResult, status: CheckStatus = "incorrect", flags: tuple[CheckFlag, ...] = ()) -> Check:
    return Check(program_id="p", task_id="t", status=status, flags=flags, draws=draws)


def wrong(draw: str, problem: str = "largest error 1 of the rms is above the bound 0") -> DrawResult:
    error = OutputError(
        output="0", max_error=1.0, rms_error=1.0, reference_error=0.0, bound=0.0, problem=problem
    )
    return DrawResult(draw=draw, ok=False, outputs=(error,))


def test_two_cheats_of_one_family_caught_by_one_probe_count_once() -> None:
    rows = [row("first"), row("second"), row("third", probes=("late_repeat",)), row("missed", right=False)]
    text = report(rows, CONDITIONS, {})
    assert "Cheats caught: 3 of 4; 2 distinct pairs" in text
    assert "| cached_by_pointer | 3 | 4 | late_repeat, mutate_storage |" in text
    assert "| missed | cached_by_pointer | NO |" in text


def test_what_was_not_tried_has_no_column_and_no_sentence() -> None:
    text = report([row("cheat"), row("honest", "honest", status="accepted")], CONDITIONS, {})
    assert "KernelBench" not in text
    assert "Honest programs accepted: 1 of 1" in text


def test_cells_are_of_one_line_and_hold_no_bars() -> None:
    text = report([row("cheat", bench="unmeasured: a | b\nc" + 200 * "d")], CONDITIONS, {})
    line = next(line for line in text.splitlines() if line.startswith("| cheat |"))
    assert "a / b c" in line
    assert line.endswith("... |")


@pytest.mark.parametrize(
    ("draw", "probe"),
    [
        ("own-1", "equality"),
        ("own-2", "mutate_storage"),
        ("own-3", "own_draws"),
        ("own-3 repeated", "repeat"),
        ("own-1 again", "late_repeat"),
        ("altered", "mutate_storage"),
        ("zeros", "structured"),
        ("batch-larger", "batch_probe"),
        ("batch-probe", "batch_probe"),
        ("weights-2/own-4", "second_weights"),
        ("order-1/own-6", "order_one_weights"),
    ],
)
def test_a_wrong_draw_names_its_probe(draw: str, probe: str) -> None:
    assert noticed(check(wrong(draw))) == (probe,)


def test_memory_forms_text_ends_and_flags_name_their_probes() -> None:
    aside = DrawResult(draw="own-1", ok=False, problem="the program modified its inputs")
    assert noticed(check(aside)) == ("guard_inputs",)
    assert noticed(check(wrong("own-1", "is float16[2], expected float32[2]"))) == ("outputs",)
    odd = wrong("own-1", "3 of 4 values are NaN where the reference has a number")
    assert noticed(check(odd)) == ("pattern", "equality")
    assert noticed(check(wrong("own-1"), wrong("own-2"))) == ("equality",)
    refused = DrawResult(draw="own-1", ok=False, problem="forward: it raised")
    assert noticed(check(refused, status="crashed")) == ("process",)
    read = Finding(rule="clock_patched", severity="fatal", message="m", file="candidate.py", line=1)
    assert noticed(check(status="rejected_cheat").model_copy(update={"findings": (read,)})) == ("static",)
    assert noticed(check(status="timed_out")) == ("process",)
    assert noticed(check(status="accepted", flags=("partial",))) == ("work",)
    assert noticed(check(status="accepted", flags=("specialized",))) == ()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_is_taken_up_where_it_ended(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts/zoo"), "--only", "bias_left_out", "--resume"]
    command += ["--json", str(tmp_path / "zoo.json"), "--markdown", str(tmp_path / "zoo.md")]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=300) for _ in range(2)
    )
    assert "ok: cheats/bias_left_out: incorrect" in first.stderr
    assert "bias_left_out" not in second.stderr
    (written,) = json.loads((tmp_path / "zoo.json").read_text(encoding="utf-8"))["rows"]
    assert written["noticed"] == ["order_one_weights"]
    assert "| bias_left_out | default_weights_assumed | yes |" in (tmp_path / "zoo.md").read_text("utf-8")


def test_a_table_names_the_commit_of_a_checkout_and_of_no_copy_inside_of_another(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-C", str(tmp_path)]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True)
    copy = tmp_path / "copy"
    copy.mkdir()
    assert revision(tmp_path) == head.stdout.strip()
    assert revision(copy) == "unknown"
