"""Compiler messages read back. Golden outputs were captured from g++ 12.2.0 and nvcc 13.0.88."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.compile.diagnostics import MOST_DIAGNOSTICS, parse_diagnostics
from stitch_tools.compile.resources import parse_resources

NVCC = """\
main.cu(1): error: identifier "__shfl_dwn_sync" is undefined
  __attribute__((global)) void k(float*p){ __shfl_dwn_sync(1,2,3);
                                           ^

main.cu(2): warning #177-D: variable "unused" was declared but never referenced
  int g(){ int unused; k<<<1,1>>>(nullptr); }
               ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

main.cu(2): warning #177-D: variable "unused" was declared but never referenced
  int g(){ int unused; k<<<1,1>>>(nullptr); }
               ^

1 error detected in the compilation of "main.cu".
"""

PTXAS = """\
ptxas error   : Entry function '_Z1kPf' uses too much shared data (0x3a980 bytes, 0xc000 max)
ptxas /a b/tmpxft_00002018-6_bad3.ptx, line 27; error   : Not a name of any known instruction: 'bogus'
ptxas fatal   : Ptx assembly aborted due to errors
nvcc fatal   : Unsupported gpu architecture 'sm_999'
"""

LINKER = """\
/usr/bin/ld: /tmp/ccmOw2A0.o: in function `g()':
main.cpp:(.text+0xa): undefined reference to `missing(int)'
collect2: error: ld returned 1 exit status
"""

GNU = """\
In file included from main.cpp:1:
/build/x/part.h: In instantiation of 'void h(T) [with T = int]':
main.cpp:4:34:   required from here
/build/x/part.h:3:28: error: request for member 'foo' in 't', which is of non-class type 'int'
    3 | template<class T> void h(T t){ t.foo(); }
      |                                ~~^~~
main.cpp:5:7: warning: unused variable 'u' [-Wunused-variable]
main.cpp:1:10: fatal error: nothere.h: No such file or directory
compilation terminated.
g++: internal compiler error: Killed signal terminated program cc1plus
"""

RESOURCES = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1tILi3EEvPf' for 'sm_80'
ptxas info    : Function properties for _Z1tILi3EEvPf
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 128 bytes smem, 360 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 13.235 ms
ptxas info    : Function properties for helper
    400 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_90'
ptxas info    : Function properties for _Z1kPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers
"""


def test_nvcc_messages_appear_once_with_their_line() -> None:
    source = "__global__ void k(float*p){ __shfl_dwn_sync(1,2,3); }\nint g(){ int unused; }\n"
    error, warning = parse_diagnostics(NVCC, {"main.cu": source})
    assert (error.severity, error.file, error.line) == ("error", "main.cu", 1)
    assert error.source_line == source.split("\n")[0]
    assert error.doc_query == "CUDA identifier __shfl_dwn_sync is undefined"
    assert (warning.severity, warning.line, warning.code) == ("warning", 2, "177-D")


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("main.cpp:1:2: error: #error choose a backend", "#error choose a backend"),
        ("main.cpp:1:2: error: choose a backend", "  # error choose a backend"),
        ("main.cpp:1:10: fatal error: mine.h: No such file or directory", '#include "mine.h"'),
        ("main.cpp:1:10: fatal error: /etc/shadow: Permission denied", '#include "/etc/shadow"'),
        ("main.cpp:1:10: fatal error: 'mine.h' file not found", '#include "mine.h"'),
    ],
)
def test_what_no_page_is_about_is_not_looked_up(line: str, source: str) -> None:
    (error,) = parse_diagnostics(line, {"main.cpp": source})
    assert error.doc_query == ""


def test_a_library_s_header_that_is_missing_is_looked_up() -> None:
    line = "main.cpp:1:10: fatal error: cudnn.h: No such file or directory"
    (error,) = parse_diagnostics(line, {"main.cpp": "#include <cudnn.h>"})
    assert error.doc_query == "C++ cudnn.h No such file or directory"


def test_what_the_parser_expected_is_looked_up_as_a_syntax_error() -> None:
    (error,) = parse_diagnostics('main.cu(1): error: expected a ";"', {"main.cu": "int x = 1 }"})
    assert error.doc_query == "CUDA syntax error expected a"


def test_no_path_is_part_of_a_query() -> None:
    line = "main.cpp:1:2: error: '/opt/some-place/build.d/x.h' conflicts with and/or 'operator/' of a::b"
    (error,) = parse_diagnostics(line, {})
    assert error.doc_query == "C++ conflicts with operator of a::b"


def test_a_template_s_numbers_are_looked_up_and_a_type_is_named_once() -> None:
    use, alias = (
        f"nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 17, 16, 16, {name}, nvcuda::wmma::row_major>"
        for name in ("half", "__half")
    )
    line = f'main.cu(3): error: incomplete type "{use}" (aka "{alias}") is not allowed'
    (error,) = parse_diagnostics(line, {})
    assert error.doc_query == (
        "CUDA incomplete type nvcuda::wmma::fragment nvcuda::wmma::matrix_a 17 16 16 half "
        "nvcuda::wmma::row_major is not allowed"
    )


def test_a_long_query_ends_with_a_whole_word() -> None:
    (error,) = parse_diagnostics(f"main.cu(1): error: {' '.join(['identifier_of_mine'] * 20)}", {})
    assert set(error.doc_query.split()) == {"CUDA", "identifier_of_mine"}
    assert len(error.doc_query) <= 160


@pytest.mark.parametrize(
    ("line", "column", "name"),
    [
        ("void*p; cudaMalloc(&p); cudaMemcpyAsync(p,p,4);", 45, "cudaMemcpyAsync"),
        ("cudaMemPrefetchAsync(p, size(4), 0, 0);", 34, "cudaMemPrefetchAsync"),
        ("scale_all<float><<<1, n>>>(p);", 27, "scale_all"),
        ("plain(p);", 6, ""),
        ("p = 4;", 4, ""),
    ],
)
def test_the_call_that_is_refused_is_read_from_the_line_that_nvcc_prints(
    line: str, column: int, name: str
) -> None:
    output = f"main.cu(2): error: too few arguments in function call\n  {line}\n  {' ' * column}^\n"
    (error,) = parse_diagnostics(output, {"main.cu": f"\n{line}"})
    assert error.doc_query == f"CUDA too few arguments in function call {name}".strip()
    assert error.message == "too few arguments in function call"


def test_ptxas_and_driver_messages_have_no_file_but_their_tool() -> None:
    shared, unknown, aborted, arch = parse_diagnostics(PTXAS, {})
    assert [row.severity for row in (shared, unknown, aborted, arch)] == ["error", "error", "fatal", "fatal"]
    assert [row.code for row in (shared, unknown, aborted, arch)] == ["ptxas", "ptxas", "ptxas", "nvcc"]
    assert (bool(unknown.doc_query), aborted.doc_query) == (True, ""), "its last words say nothing more"
    assert "too much shared data" in shared.message
    assert "'bogus'" in unknown.message
    assert "/a b/" not in unknown.message


def test_linker_messages_name_the_source_where_it_is_ours() -> None:
    undefined, summary = parse_diagnostics(LINKER, {"main.cpp": "int missing(int);\n"})
    assert undefined.message == "undefined reference to `missing(int)'"
    assert (undefined.file, undefined.line, undefined.code) == ("main.cpp", None, "ld")
    assert summary.message == "ld returned 1 exit status"


def test_gnu_messages_are_cut_to_paths_inside_the_program() -> None:
    rows = parse_diagnostics(GNU, {"part.h": "\n\ntemplate<class T> ...\n"}, folder="/build/x")
    assert [row.severity for row in rows] == ["error", "warning", "fatal", "fatal"]
    assert (rows[0].file, rows[0].line, rows[0].column) == ("part.h", 3, 28)
    assert rows[0].source_line == "template<class T> ..."
    assert rows[1].code == "-Wunused-variable"
    assert rows[1].message == "unused variable 'u'"


def test_errors_survive_when_there_are_too_many_messages() -> None:
    noise = "".join(f"main.cpp:{number}:1: warning: number {number}\n" for number in range(1, 200))
    rows = parse_diagnostics(noise + "main.cpp:500:1: error: the cause\n", {})
    assert len(rows) == MOST_DIAGNOSTICS
    assert rows[0].message == "the cause"


def test_resources_are_per_kernel_and_architecture() -> None:
    first, second = parse_resources(RESOURCES)
    assert (first.kernel, first.arch) == ("void t<3>(float*)", "sm_80")
    assert (first.registers, first.shared_bytes, first.constant_bytes) == (255, 128, 368)
    assert (first.stack_bytes, first.spill_store_bytes, first.spill_load_bytes) == (16, 8, 4)
    assert (second.kernel, second.arch, second.stack_bytes) == ("k(float*)", "sm_90", 0)


FRAGMENTS = st.sampled_from(
    ["main.cpp", ":", "3", "(", ")", "error", "fatal", " : ", ": ", "warning #1-D", "ptxas ", "nvcc", "ld: ",
     "\n", ", line 9; ", "bytes smem", "Used 3 registers", "9" * 30,
     "Compiling entry function 'k' for 'sm_90'",
     "Function properties for k", "\x00", "\r", "\u2028", "/", "undefined reference to `x'", " [-Wall]"]
)  # fmt: skip


@given(st.one_of(st.text(max_size=400), st.lists(FRAGMENTS, max_size=60).map("".join)))
def test_any_text_is_survived(text: str) -> None:
    for row in parse_diagnostics(text, {"main.cpp": "a\nb\u2028c\n"}, folder="/x"):
        assert row.line is None or row.line >= 0
    parse_resources(text)


def test_a_type_is_asked_once_with_its_numbers_and_no_name_is_cut() -> None:
    long = "nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 17, 16, 16, {}, nvcuda::wmma::row_major>"
    message = f'incomplete type "{long.format("half")}" (aka "{long.format("__half")}") is not allowed'
    (found,) = parse_diagnostics(f"main.cu(1): error: {message}\n", {"main.cu": "wmma::fragment<> a;\n"})
    assert "17 16 16 half" in found.doc_query
    assert "aka" not in found.doc_query
    assert found.doc_query.endswith("is not allowed")
