"""Reports of the sanitizers as text: findings, places, and any text survived."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.judge.memory.cuda import judged
from stitch_tools.judge.memory.cuda_reports import Kernels, base_name, cuda_findings
from stitch_tools.judge.memory.frames import Owner, StackFrame, own_name, read_frame, short_name
from stitch_tools.judge.memory.reports import address_findings, thread_findings, undefined_findings
from stitch_tools.models.sanitizer import SanitizerFinding, SanitizerTool
from stitch_tools.run.tool_process import Execution
from tests.tools.judge.memory.cases import bare_case

OWNER = Owner("/cache/ab/program.so", ("main.cpp", "stitch/cpu/gemm.h"))
KERNELS = Kernels(frozenset({"scale", "reduce"}), ("main.cu", "stitch/cuda/rows.cuh"))


def frame(number: int, module: str, function: str, file: str, line: int) -> str:
    return f"    @frame {number}|{module}|{function}|{file}|{line}"


# AddressSanitizer of g++ 12.2 with our frame format, shortened.
HEAP_READ = "\n".join(
    (
        "==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x6170 at pc 0x7f bp 0x7f sp 0x7f",
        "READ of size 4 at 0x617000000290 thread T0",
        frame(0, "/cache/ab/program.so", "scale(float*, long)", "/x/work/source/./stitch/cpu/gemm.h", 84),
        frame(1, "/cache/ab/program.so", "stitch_forward", "/x/work/source/main.cpp", 157),
        "",
        "0x617000000290 is located 0 bytes to the right of 400-byte region [0x617000000100,0x617000000290)",
        "allocated by thread T0 here:",
        frame(0, "/usr/lib/libasan.so.8", "posix_memalign", "../../src/libsanitizer/asan/asan_malloc.cpp", 1),
    )
)


def test_an_overrun_is_placed_in_the_header_where_it_happens() -> None:
    (finding,) = address_findings(HEAP_READ, OWNER).own
    assert (finding.file, finding.line, finding.kernel) == ("stitch/cpu/gemm.h", 84, "scale")
    assert finding.severity == "fatal"
    assert finding.message == "heap-buffer-overflow: READ of size 4, 0 bytes to the right of 400-byte region"


def test_equal_reports_are_one_finding_with_a_count() -> None:
    (finding,) = address_findings("\n".join([HEAP_READ] * 3), OWNER).own
    assert finding.count == 3


def test_what_a_library_does_is_kept_apart() -> None:
    elsewhere = HEAP_READ.replace("/cache/ab/program.so|scale", "/lib/libdnnl.so.3|jit", 1)
    found = address_findings(elsewhere, OWNER)
    assert found.own == ()
    assert found.libraries[0].file == "main.cpp"  # where the program called it


def test_an_intercepted_function_counts_as_its_caller() -> None:
    copied = HEAP_READ.replace(
        frame(0, "/cache/ab/program.so", "scale(float*, long)", "/x/work/source/./stitch/cpu/gemm.h", 84),
        frame(0, "/usr/lib/libasan.so.8", "memcpy", "", 0) + "\n"
        + frame(1, "/cache/ab/program.so", "scale(float*, long)", "/x/work/source/main.cpp", 84),
    )  # fmt: skip
    (finding,) = address_findings(copied, OWNER).own
    assert (finding.file, finding.line) == ("main.cpp", 84)


def test_what_a_system_header_inlines_is_placed_at_the_program_s_own_line() -> None:
    load = frame(0, "/cache/ab/program.so", "_mm256_loadu_ps", "/usr/lib/gcc/12/include/avxintrin.h", 905)
    first = frame(0, "/cache/ab/program.so", "scale(float*, long)", "/x/work/source/./stitch/cpu/gemm.h", 84)
    (finding,) = address_findings(HEAP_READ.replace(first, f"{load}\n{first}"), OWNER).own
    assert (finding.file, finding.line, finding.kernel) == ("stitch/cpu/gemm.h", 84, "scale")


RACE = "\n".join(
    (
        "WARNING: ThreadSanitizer: data race (pid=9)",
        "  Write of size 4 at 0x7b by thread T2:",
        frame(
            0,
            "/cache/ab/program.so",
            "(anonymous namespace)::sum(float const*) [clone ._omp_fn.0]",
            "main.cpp",
            41,
        ),
        "",
        "  Previous read of size 4 at 0x7b by main thread:",
        frame(0, "/cache/ab/program.so", "sum", "main.cpp", 40),
        "",
        "  Location is heap block of size 400 at 0x7b allocated by main thread:",
    )
)


def test_a_race_names_both_places() -> None:
    (finding,) = thread_findings(RACE, OWNER).own
    assert (finding.rule, finding.severity, finding.line) == ("data-race", "fatal", 41)
    assert finding.kernel == "sum"
    assert finding.message == "data race: one thread writes what another reads at the same time (main.cpp:40)"


def test_undefined_behavior_without_a_stack_keeps_the_compiler_s_place() -> None:
    text = (
        "/x/source/main.cpp:7:12: runtime error: shift exponent 40 is too large for 32-bit type 'int'\n\n"
        "SUMMARY: UndefinedBehaviorSanitizer: invalid-shift-exponent /x/source/main.cpp:7:12 in \n"
    )
    (finding,) = undefined_findings(text, OWNER).own
    assert (finding.rule, finding.file, finding.line) == ("invalid-shift-exponent", "main.cpp", 7)


def test_frames_are_read_back_from_our_own_format() -> None:
    line = frame(3, "/a b/program.so", "std::pair<int, int> f(int, std::less<>)", "/x/main.cpp", 12)
    assert read_frame(line) == StackFrame(
        "/a b/program.so", "std::pair<int, int> f(int, std::less<>)", "/x/main.cpp", 12
    )
    assert read_frame("    #0 0x7f in main main.cpp:3") is None
    assert short_name("Gemm::operator()(int) [clone .constprop.0]") == "Gemm::operator()"


@given(st.text(max_size=400))
def test_any_text_is_survived(text: str) -> None:
    for prefix in ("", HEAP_READ, RACE, "ERROR: AddressSanitizer: ", "WARNING: ThreadSanitizer: "):
        for read in (address_findings, undefined_findings, thread_findings):
            read(prefix + text, OWNER)
    cuda_findings("memcheck", f"<ComputeSanitizerOutput>{text}</ComputeSanitizerOutput>", KERNELS)


# What compute-sanitizer 2025.3.1 wrote on an H200 of `programs/doubled.cu` with one defect each, shortened.
REAL = Path(__file__).parent / "cuda_reports"
DOUBLED = Kernels(frozenset({"double_all"}), ("doubled.cu", "defect.h"))
MEMCHECK_WORDS = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at double_all(const float *, float *, float *, long)+0x140 in /cache/work/source/doubled.cu:40
=========     by thread (12,0,0) in block (4,0,0)
=========     Access to 0x7fd43c800834 is out of bounds
failed forward 719 the CUDA driver answered with error 719
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    ("tool", "rule", "severity", "message", "line", "count"),
    [
        (
            "memcheck",
            "invalid-read",
            "fatal",
            "Invalid __global__ read of size 4 bytes is out of bounds",
            40,
            1,
        ),
        (
            "racecheck",
            "race",
            "fatal",
            "Race condition. Write in line 40. Read in line 43",
            40,
            1,
        ),
        (
            "initcheck",
            "uninitialised-read",
            "suspicious",
            "Uninitialized __global__ memory read of size 4 bytes",
            48,
            1,
        ),
        (
            "synccheck",
            "invalid-barrier",
            "suspicious",
            "Barrier error. Divergent thread(s) in warp",
            42,
            2,
        ),
    ],
)
def test_a_report_of_the_real_tool_is_read(
    tool: SanitizerTool,
    rule: str,
    severity: str,
    message: str,
    line: int,
    count: int,
) -> None:
    found = cuda_findings(tool, (REAL / f"{tool}.xml").read_text(encoding="utf-8"), DOUBLED)
    assert found is not None
    (finding,) = found.own
    assert found.libraries == ()
    assert (finding.rule, finding.severity, finding.message) == (rule, severity, message)
    assert (finding.kernel, finding.file, finding.line) == ("double_all", "doubled.cu", line)
    assert finding.count == count


def ended(stdout: str, reports: dict[str, str] | None = None, *, late: bool = False) -> Execution:
    return Execution(0, late, 1.0, stdout, "", reports or {})


def test_a_program_that_did_not_survive_its_own_defect_has_findings() -> None:
    text = (REAL / "memcheck.xml").read_text(encoding="utf-8")
    run = judged(bare_case(), "memcheck", ended(MEMCHECK_WORDS, {"report.xml": text}), DOUBLED)
    assert (run.status, [row.rule for row in run.findings]) == ("findings", ["invalid-read"])


def test_no_record_is_clean_only_where_the_tool_counted_none() -> None:
    ran = "========= COMPUTE-SANITIZER\noutputs 0 2100\ndone\n"
    none, some = ran + "========= ERROR SUMMARY: 0 errors\n", ran + "========= ERROR SUMMARY: 3 errors\n"
    hazards = ran + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    empty = {"report.xml": "<ComputeSanitizerOutput/>"}
    for stdout, reports, status in (
        (none, empty, "clean"),
        (none, {}, "clean"),
        (hazards, {}, "clean"),
        (ran, {}, "not_checked"),
        (ran, empty, "not_checked"),
        (some, empty, "not_checked"),
        (some, {}, "not_checked"),
    ):
        assert judged(bare_case(), "memcheck", ended(stdout, reports), DOUBLED).status == status, stdout


def test_a_tool_that_was_killed_says_so_and_not_that_its_report_is_missing() -> None:
    late = ended("========= COMPUTE-SANITIZER\n", late=True)
    run = judged(bare_case("batch-probe"), "memcheck", late, DOUBLED)
    assert run.inputs == "batch-probe"
    assert (run.status, run.reason, run.too_slow) == ("not_checked", "did not finish within 10 s", True)


# In the form that the tool's documentation shows; values are ours.
def record(text: str, where: str, kind: str = "Precise", level: str = "Error") -> str:
    return (
        f"<record><kind>{kind}</kind><level>{level}</level><what><text>{text}</text></what>{where}"
        "<hostStack><frame><func>main</func><path>host.cpp</path><line>1</line></frame></hostStack></record>"
    )


def report(*records: str) -> str:
    body = "".join(records)
    return f'<?xml version="1.0" encoding="utf-8"?>\n<ComputeSanitizerOutput>{body}</ComputeSanitizerOutput>'


def where(function: str, path: str = "", line: int = 0) -> str:
    place = f"<path>{path}</path><line>{line}</line>" if path else ""
    return f"<where><func>{function}</func>{place}</where>"


WRITE = "Invalid __global__ write of size 4 bytes"
OWN = where("void scale&lt;4&gt;(float const*, float*, int)", "/tmp/work/./main.cu", 12)


def test_an_invalid_write_of_an_own_kernel_names_kernel_and_line() -> None:
    found = cuda_findings("memcheck", report(record(WRITE, OWN), record(WRITE, OWN)), KERNELS)
    assert found is not None
    (finding,) = found.own
    assert (finding.rule, finding.severity, finding.count) == ("invalid-write", "fatal", 2)
    assert (finding.file, finding.line) == ("main.cu", 12)
    assert finding.message == WRITE


def test_vendor_kernels_are_kept_apart() -> None:
    vendor = where("void cutlass::Kernel2&lt;gemm&gt;(Params)")
    found = cuda_findings("memcheck", report(record(WRITE, vendor)), KERNELS)
    assert found is not None
    assert (found.own, len(found.libraries)) == ((), 1)


def test_an_api_call_that_failed_is_a_note_and_nobody_s_kernel() -> None:
    text = (
        "Program hit cudaErrorMemoryAllocation (error 2) due to out of memory on CUDA API call to cudaMalloc."
    )
    found = cuda_findings("memcheck", report(record(text, "", kind="Api")), KERNELS)
    assert found is not None
    assert found.own == ()
    assert [row.severity for row in found.libraries] == ["note"]


@pytest.mark.parametrize(
    ("level", "severity"), [("Error", "fatal"), ("Warning", "suspicious"), ("Info", "note")]
)
def test_a_race_weighs_what_the_tool_says(level: str, severity: str) -> None:
    text = "Race reported between Write access at reduce()+0xf0 in main.cu:40 and Read access [4 hazards]"
    accesses = f"<access>{where('reduce(float*)', 'main.cu', 40)}</access>"
    found = cuda_findings("racecheck", report(record(text, accesses, "Analysis", level)), KERNELS)
    assert found is not None
    (finding,) = found.own
    assert (finding.severity, finding.line) == (severity, 40)
    assert "0xf0" not in finding.message


def test_an_unwritten_value_is_suspicious_and_misused_barriers_too() -> None:
    read = report(record("Uninitialized __global__ memory read of size 4 bytes", OWN))
    barrier = report(record("Barrier error detected. Divergent thread(s) in block", OWN))
    for tool, text, rule in (
        ("initcheck", read, "uninitialised-read"),
        ("synccheck", barrier, "invalid-barrier"),
    ):
        found = cuda_findings(tool, text, KERNELS)  # pyright: ignore[reportArgumentType] # two names of tools
        assert found is not None
        assert [(row.rule, row.severity) for row in found.own] == [(rule, "suspicious")]


def test_a_report_that_was_cut_off_counts_up_to_its_last_whole_record() -> None:
    whole = report(record(WRITE, OWN))
    found = cuda_findings(
        "memcheck", whole.replace("</ComputeSanitizerOutput>", "<record><kind>Pre"), KERNELS
    )
    assert found is not None
    assert len(found.own) == 1


def test_what_is_no_report_says_nothing() -> None:
    assert cuda_findings("memcheck", "", KERNELS) is None
    assert cuda_findings("memcheck", "<Other/>", KERNELS) is None
    bomb = '<!DOCTYPE x [<!ENTITY a "b">]>' + report()
    assert cuda_findings("memcheck", bomb, KERNELS) is None
    empty = cuda_findings("memcheck", report(), KERNELS)
    assert empty is not None
    assert (empty.own, empty.libraries) == ((), ())


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("scale(float*, int)", "scale"),
        ("void (anonymous namespace)::scale<4, float>(float const*)", "scale"),
        ("void ns::Rows<ns::Plan<3>, 4>::run<int>(int)", "run"),
        ("_Z5scalePf", "_Z5scalePf"),
        ("", ""),
    ],
)
def test_a_kernel_s_bare_name(name: str, base: str) -> None:
    assert base_name(name) == base


def test_files_below_folders_are_named_as_the_program_does() -> None:
    assert own_name("/x/source/stitch/cpu/gemm.h", OWNER.files) == "stitch/cpu/gemm.h"
    assert own_name("/usr/include/c++/12/vector", OWNER.files) == "vector"
    assert own_name("", OWNER.files) is None


def test_a_finding_of_before_is_read_without_its_address_space() -> None:
    old = {"rule": "invalid-read", "severity": "fatal", "message": "reads past the end", "space": "global"}
    assert SanitizerFinding.model_validate(old).rule == "invalid-read"
