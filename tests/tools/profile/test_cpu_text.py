"""Marks of steps, the sampler's report and addr2line's output, read without running anything."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.profile.cpu_phases import (
    MADE_AT_RUN_TIME,
    WAITING,
    CodePlace,
    PhaseSample,
    locate,
    parse_addr2line,
    parse_phases,
)
from stitch_tools.profile.cpu_programs import hot_function, summarize
from stitch_tools.profile.cpu_steps import mark_steps, module_of

STITCHED = """struct Program : cpu::ProgramBase {
  int32_t run([[maybe_unused]] const Memory& memory) {
    auto* const out_0 = reinterpret_cast<float*>(memory.outputs[0]);

    // fc1: [8, 4] x [4, 4], relu ["packed" once]
    STITCH_TRY(gemm_fc1.run(8, x, 4, linear, 4, nullptr, 0));

    // gelu (feed.1)
    cpu::Pointwise<Gelu>::run(threads, {{cpu::read(linear)}, {cpu::write(out_0)}});

    // gelu (feed.1)
    cpu::Pointwise<Gelu>::run(threads, {{cpu::read(out_0)}, {cpu::write(out_0)}});
    return STITCH_OK;
  }

    // behind it
"""


def test_steps_are_marked_where_the_empty_line_was() -> None:
    marked = mark_steps(STITCHED)
    assert marked is not None
    before, after = STITCHED.splitlines(), marked.splitlines()
    changed = [(number, line.strip()) for number, line in enumerate(after, 1) if line != before[number - 1]]
    assert changed == [
        (4, """stitch_step("fc1: [8, 4] x [4, 4], relu ['packed' once]");"""),
        (7, 'stitch_step("gelu (feed.1)");'),
        (10, 'stitch_step("gelu (feed.1) #2");'),
    ]


def test_a_program_written_by_hand_has_no_steps_to_mark() -> None:
    assert (
        mark_steps("int32_t stitch_forward() {\n\n    // a step\n    work();\n    return STITCH_OK;\n}\n")
        is None
    )


@pytest.mark.parametrize(
    ("step", "module"),
    [
        ("attention.query: [512, 256] x [256, 256] [oneDNN matmul]", "attention.query"),
        ("layer_norm (attention_norm)", "attention_norm"),
        ("encoder.0", "encoder.0"),
        ("4 x 4 heads: something", ""),
    ],
)
def test_the_module_is_read_from_the_step_s_name(step: str, module: str) -> None:
    assert module_of(step) == module


REPORT = """calls 10 4000000 400000 3900000
step 0 10 3000000 300000 2900000 fc1: [8, 4] x [4, 4]
step 1 10 1000000 100000 990000 gelu (feed.1)
sample 30 0 7f00aa -
sample 10 0 1a20 /scratch/libgomp.so.1
symbol 1a20 /scratch/libgomp.so.1 gomp_barrier_wait
sample 8 1 2b30 /usr/lib/libm.so.6
symbol 2b30 /usr/lib/libm.so.6 expf
"""


def test_rows_are_steps_with_the_owner_that_their_samples_show() -> None:
    phases = parse_phases(REPORT)
    assert phases is not None
    report = summarize(phases, locate(phases, Path("/scratch/libprogram.so"), main="program.cpp", files=()))
    assert report.system is not None
    first, second = report.system.kernels
    assert (first.total_us, first.share, first.owner, first.module) == (300.0, 0.75, "vendor", "fc1")
    assert (second.total_us, second.owner, second.module) == (100.0, "other", "feed.1")
    assert (report.system.wall_us, report.system.busy_share, report.system.iterations) == (400.0, 1.0, 10)
    waits = report.kernels[0].answers[0]
    assert (waits.verdict, waits.is_problem, waits.saves_share) == ("threads wait", True, 0.25)
    assert report.kernels[1].answers[0].verdict == "libm: expf"


def test_on_a_busy_machine_waiting_is_no_fault_and_time_is_what_the_thread_ran() -> None:
    phases = parse_phases(REPORT)
    assert phases is not None
    places = locate(phases, Path("/scratch/libprogram.so"), main="program.cpp", files=())
    report = summarize(phases, places, is_quiet=False)
    assert report.system is not None
    assert report.system.kernels[0].total_us == 290.0
    assert [answer.is_problem for kernel in report.kernels for answer in kernel.answers] == [False, False]
    assert any("others used this machine" in note for note in report.not_measured)


def test_a_report_that_was_cut_off_or_forged_is_none() -> None:
    assert parse_phases("") is None
    assert parse_phases("step 0 1 1 1 1 a\n") is None
    assert parse_phases("calls 0 0 0 0\n") is None
    assert parse_phases("calls 1 1 1 1\nstep 7 1 1 1 1 a\n") is None


@given(st.text(alphabet="calsteympo 0123456789-\n/x", max_size=200))
def test_any_report_is_survived(text: str) -> None:
    phases = parse_phases(f"calls 3 30 10 30\n{text}")
    if phases is not None:
        places = dict.fromkeys(phases.samples, CodePlace("f", "f", "own"))
        summarize(phases, places)


def test_addresses_become_stacks_with_the_innermost_first() -> None:
    text = "0x0000000000001a20\nworked(float, int)\n/a/p.cpp:21\nlong_phase\n/a/p.cpp:30 (discriminator 3)\n"
    stacks = parse_addr2line(f"{text}0x0000000000001b00\n??\n??:0\n")
    assert stacks[0x1A20] == (
        ("worked(float, int)", "/a/p.cpp", 21),
        ("long_phase", "/a/p.cpp", 30),
    )
    assert stacks[0x1B00] == (("??", "??", None),)


def test_what_is_too_short_for_a_sample_is_unknown() -> None:
    answer = hot_function((), {})
    assert (answer.verdict, answer.reason) == ("unknown", "no sample lies in it")


def test_code_of_libraries_is_named_by_what_it_is() -> None:
    phases = parse_phases(REPORT)
    assert phases is not None
    places = locate(phases, Path("/scratch/libprogram.so"), main="program.cpp", files=())
    named = {sample.module: place.function for sample, place in places.items()}
    assert named["-"] == MADE_AT_RUN_TIME
    assert named["/scratch/libgomp.so.1"] == WAITING
    assert isinstance(phases.samples[0], PhaseSample)
