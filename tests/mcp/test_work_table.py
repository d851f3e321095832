"""The table on who did the work."""

from stitch_mcp.views.table import render_text
from stitch_mcp.views.work_table import short_symbol, work_sections
from stitch_tools.models.evidence import WorkEvidence, WorkItem


def test_a_traced_program_s_work_is_shown_by_share_with_owners_and_calls() -> None:
    work = WorkEvidence(
        method="kernels",
        own=0.75,
        library=0.2,
        pytorch=0.0,
        copies=0.05,
        other=0.0,
        observations=24,
        items=(
            WorkItem(name="rows(float*)", owner="own", calls=1, share=0.75),
            WorkItem(name="sm90_xmma_gemm", owner="library", calls=1, share=0.2),
            WorkItem(name="Memset (Device)", owner="copy", calls=0.5, share=0.05),
        ),
        never_launched=("spare(float*)",),
        outputs_right=True,
        launches=2.5,
        counts_match=False,
    )
    assert [render_text(section) for section in work_sections(work)] == [
        """who did the work
share  by           calls  what
-----  -----------  -----  ---------------
75.0%  the program      1  rows(float*)
20.0%  a library        1  sm90_xmma_gemm
 5.0%  copies         0.5  Memset (Device)
of the working time: own 75%, libraries 20%, PyTorch 0%, copies 5%; by 24 device activities
launches per forward: 2.5, NOT the same on two draws
never launched: spare(float*)"""
    ]


def test_shares_of_an_older_check_are_of_the_working_time_and_waiting_is_a_remark() -> None:
    work = WorkEvidence(
        method="samples",
        own=0.15,
        library=0.05,
        pytorch=0.0,
        copies=0.0,
        other=0.8,
        observations=1000,
        items=(
            WorkItem(name="waiting threads", owner="other", calls=None, share=0.8),
            WorkItem(name="stitch_forward", owner="own", calls=None, share=0.15),
            WorkItem(name="libdnnl.so", owner="library", calls=None, share=0.05),
        ),
        outputs_right=True,
    )
    (section,) = work_sections(work)
    assert section.rows == (
        ("75.0%", "the program", "-", "stitch_forward"),
        ("25.0%", "a library", "-", "libdnnl.so"),
    )
    assert section.notes == (
        "of the working time: own 75%, libraries 25%, PyTorch 0%, copies 0%; "
        "by 1000 samples of running threads",
        "beside it 80% of all was no work (waiting threads)",
    )


def test_a_program_that_was_not_traced_has_no_table() -> None:
    assert work_sections(None) == []


def test_a_long_symbol_is_shown_without_its_template_s_arguments() -> None:
    long = (
        "void stitch::rows<float, stitch::Relu<stitch::Add<" + "float, " * 30 + "int> > >(float const*, int)"
    )
    assert short_symbol(long) == "void stitch::rows<...>(float const*, int)"
    shift = f"Stream& operator<< <{'char, ' * 30}int>(Stream&)"
    assert short_symbol(shift) == "Stream& operator<< <...>(Stream&)"
    assert short_symbol("rows<float>(float*)") == "rows<float>(float*)"
    assert short_symbol("x" * 300) == "x" * 97 + "..."
