"""When a re-run counts as reaching a certificate's speedup."""

import pytest

from stitch_mcp.rerun_certificate import compare_speedups
from stitch_tools.models.verdict import Bench, Ratio


def bench(low: float, high: float, *, device: str = "CPU", threads: int = 2) -> Bench:
    ratio = Ratio(baseline="eager", speedup=(low + high) / 2, low=low, high=high, outcome="inconclusive")
    return Bench(
        program_id="p", task_id="t", outcome="faster", ratios=(ratio,), device=device, threads=threads
    )


@pytest.mark.parametrize(
    ("now", "claim"),
    [
        (bench(1.4, 1.6), "confirmed"),
        (bench(1.2, 1.46), "confirmed"),
        (bench(3.0, 3.1), "confirmed"),
        (bench(1.2, 1.44), "not_confirmed"),
        (bench(0.9, 1.0), "not_confirmed"),
        (bench(1.4, 1.6, device="another CPU"), "not_compared"),
        (bench(1.4, 1.6, threads=8), "not_compared"),
        (bench(1.4, 1.6).model_copy(update={"ratios": ()}), "not_compared"),
        (None, "not_compared"),
    ],
)
def test_a_speedup_is_confirmed_where_it_is_reached_on_the_same_device(now: Bench | None, claim: str) -> None:
    assert compare_speedups(bench(1.45, 1.55), now)[0] == claim


def test_doubt_and_noise_confirm_nothing() -> None:
    def sure(found: Bench) -> Bench:
        rows = tuple(row.model_copy(update={"outcome": "faster"}) for row in found.ratios)
        return found.model_copy(update={"ratios": rows})

    then, now = sure(bench(1.45, 1.55)), bench(0.7, 9.5)
    assert compare_speedups(then, now)[0] == "not_compared"
    assert compare_speedups(then, sure(now))[0] == "confirmed"
    doubted = sure(bench(3.0, 3.1)).model_copy(
        update={"doubt": "calls on inputs that never came before take 9 us"}
    )
    claim, sentence = compare_speedups(then, doubted)
    assert claim == "not_confirmed"
    assert "inputs that never came before" in sentence


@pytest.mark.parametrize(
    ("speedup", "low", "claim"),
    [(50.0, 1.0, "not_confirmed"), (1.5, float("nan"), "not_confirmed"), (1.5, 1.0, "confirmed")],
)
def test_an_interval_as_wide_as_one_likes_confirms_no_figure(speedup: float, low: float, claim: str) -> None:
    then = bench(low, 99.0)
    rows = tuple(row.model_copy(update={"speedup": speedup}) for row in then.ratios)
    assert compare_speedups(then.model_copy(update={"ratios": rows}), bench(1.36, 1.4))[0] == claim


def test_a_certificate_without_a_speedup_has_nothing_to_compare() -> None:
    assert compare_speedups(None, bench(1.4, 1.6))[0] == "not_compared"
