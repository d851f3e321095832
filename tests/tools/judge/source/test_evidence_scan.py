"""The scan as a whole: lines that point at the source, order, any bytes, and the published table."""
# ruff: noqa: E501  # quoted programs keep their lines

import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_tools.judge.source import RULES, scan_program
from stitch_tools.models.finding_kinds import FINDING_KINDS, STATIC_RULE_KINDS, finding_kind
from stitch_tools.models.verdict import Finding
from tests.tools.judge.source.pairs import PAIRS
from tests.tools.judge.source.programs import HONEST, HONEST_NATIVE, scale_with

PUBLISHED = (Path(__file__).parents[4] / "docs/rules.md").read_text(encoding="utf-8")


def scan(text: str | bytes, name: str = "program.py") -> tuple[Finding, ...]:
    data = text.encode("utf-8") if isinstance(text, str) else text
    return scan_program({name: data}, format="kernelbench" if name.endswith(".py") else "native")


def test_the_published_rules_are_the_current_ones() -> None:
    rows = [line.split(" | ") for line in PUBLISHED.splitlines() if line.startswith("| `")]
    assert [(row[0].strip("| `"), row[1], row[2]) for row in rows] == [
        (rule.id, rule.severity, STATIC_RULE_KINDS[rule.id]) for rule in RULES
    ]
    assert all(len(row) == 5 for row in rows)


def test_every_rule_has_a_kind() -> None:
    assert {rule.id for rule in RULES} == set(STATIC_RULE_KINDS)
    assert set(STATIC_RULE_KINDS) <= set(FINDING_KINDS)


def test_a_rule_of_a_sanitizer_is_a_memory_error_and_an_unknown_one_decides_nothing() -> None:
    assert finding_kind("result_cached_by_pointer") == "earlier_result_kept"  # of a stored check
    assert finding_kind("what_a_later_version_finds") == "not_decided"


def test_equal_programs_give_equal_findings_the_gravest_first() -> None:
    every = {f"{number}/{path}": data for number, (cheats, _) in enumerate(PAIRS.values())
             for path, data in cheats[0].items()}  # fmt: skip
    first = scan_program(every, format="kernelbench")
    again = scan_program(dict(reversed(every.items())), format="kernelbench")
    assert first == again
    weights = [("fatal", "suspicious", "note").index(row.severity) for row in first]
    assert weights == sorted(weights)
    assert weights[0] == 0


CONCATENATED = '''import torch
from torch.utils.cpp_extension import load_inline
HEAD = """
#include <torch/extension.h>
"""
BODY = r"""
__global__ void k(float* y) { y[0] = 1; }

torch::Tensor scale(torch::Tensor x) {
  return at::relu(x);
}
"""
PARTS = ("__global__ void two(float* y) {}\\n"
         "void three() { two<<<1, 1>>>(0); }\\n"
         "void four() { fork(); }\\n")
ext = load_inline("e", cpp_sources="torch::Tensor scale(torch::Tensor x);", cuda_sources=[HEAD + BODY, PARTS])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return ext.scale(x)
'''


def test_a_line_inside_a_string_points_into_the_python_file() -> None:
    places = {(row.rule, row.line) for row in scan(CONCATENATED)}
    assert ("torch_op_in_forward", 10) in places
    assert ("work_not_joined", 15) in places
    assert ("kernel_not_launched", 7) in places


def test_a_finding_quotes_its_line() -> None:
    row = next(row for row in scan(CONCATENATED) if row.rule == "torch_op_in_forward")
    assert row.quote == "return at::relu(x);"
    assert row.file == "program.py"


ATTRIBUTES = """
#define FN __host__ __device__ \\
    __forceinline__
FN float twice(float x) { return 2 * x; }
template <int N> __global__ void __cluster_dims__(2, 1, 1) __maxnreg__(64) __launch_bounds__(256, 2) one(float* y) {
  extern __shared__ __align__(16) float buffer[];
  auto f = [=] __device__ (int i) { return twice(i); };
  _Pragma("unroll") for (int i = 0; i < 4; ++i) y[i] = f(i);
}
__global__ void two(float* y) { y[0] = 1; }
struct __align__(8) Pair { float a, b; };
extern "C" int stitch_forward(void*) { one<4><<<1, 1>>>(0); return 0; }
"""


def test_attribute_macros_do_not_hide_kernels() -> None:
    found = scan(ATTRIBUTES, "program.cu")
    assert [row.rule for row in found] == ["kernel_not_launched"]
    assert [(row.line, row.severity) for row in found] == [(10, "note")]


def test_a_region_that_does_not_parse_is_a_note_and_the_rest_is_used() -> None:
    text = "void f( { ] ;;\n@@@ !!\n\nint stitch_forward(void*) {\n  fork();\n  return 0;\n}\n"
    found = scan(text, "program.cu")
    assert {row.rule for row in found} == {"not_scanned", "work_not_joined"}
    assert next(row.severity for row in found if row.rule == "not_scanned") == "note"


def test_a_syntax_error_names_its_line() -> None:
    found = scan("import torch\n\nclass ModelNew(:\n")
    assert [(row.rule, row.line) for row in found] == [("not_scanned", 3)]


def test_comments_and_strings_alone_never_convict() -> None:
    words = PUBLISHED.replace('"', "'")
    text = HONEST["program.py"].decode("utf-8")
    commented = "".join(f"# {line}\n" for line in words.splitlines())
    code = ("import os; torch.allclose = None; open('/proc/1/mem'); ptrace(); import stitch_tools; "
            "print({'status': 'accepted'}); torch.cuda.synchronize = id")  # fmt: skip
    found = scan(f'"""{words}\n{code}"""\n{commented}# {code}\nNOTE = """{code}"""\n{text}')
    assert [row for row in found if row.severity == "fatal"] == []
    native = HONEST_NATIVE["program.cu"].decode("utf-8")
    found = scan(f'/* {words} {code} */\n// {code}\nconst char* note = "{code}";\n{native}', "program.cu")
    assert [row for row in found if row.severity == "fatal"] == []


def test_a_macro_hides_no_early_return_and_a_raise_ends_a_handler() -> None:
    assert [
        row.rule for row in scan_program(scale_with("TORCH_CHECK(x.dim() == 2);"), format="kernelbench")
    ] == []


DEEP = {
    "parentheses": "x = " + "(" * 5000 + "1" + ")" * 5000,
    "brackets": "x = " + "[" * 150 + "1" + "]" * 150,
    "sums": "x = " + "+".join(["'a'"] * 20_000),
    "signs": "x = " + "-" * 3000 + "1",
    "attributes": "import torch\nx = torch" + ".a" * 3000,
    "calls": "import torch\nx = torch" + "()" * 3000,
    "elifs": "def f(x):\n    if x: pass\n" + "    elif x: pass\n" * 2000,
    "functions": "".join("    " * depth + f"def f{depth}():\n" for depth in range(90)) + "    " * 90 + "pass",
    "lambdas": "x = " + "lambda: " * 2000 + "1",
    "cycles": "".join(f"a{i} = a{(i * 7 + 1) % 60}(a{(i * 3 + 2) % 60}, a{(i * 5 + 3) % 60})\n" for i in range(60)),
    "branches": "".join(f"a = b{i} if a else c{i}\nb{i} = a\nc{i} = a or b{i}\n" for i in range(300)),
    "classes": "".join(f"class A{i}(A{i + 1}, A{i + 2}):\n    forward = A{i + 1}.forward\n" for i in range(200)),
    "bomb": "x = 'a' * 1000 * 1000 * 1000 * 1000\ny = 9 ** 9 ** 9 ** 9\nz = 'a' * 10 ** 10",
    "hexadecimal": "x = 0x" + "f" * 10_000 + "\ny = f'{x}' + str(x)\nz = '%s' % x",
    "doubling": "a0 = 'x' * 100\n" + "".join(f"a{i + 1} = f'{{a{i}}}{{a{i}}}'\nb{i + 1} = a{i} + a{i}\n" for i in range(40)),
    "joining": "a = 'x' * 1000000\nb = a.join([a] * 5)\nc = a.join([a, a, a, a])\nd = a.replace('x', a)",
    "sources": "a0 = '#include <a>'\n" + "".join(f"a{i + 1} = a{i} + a{i}\n" for i in range(60)) + "load_inline('e', a60, [a59])",
    "digits": "x = " + "9" * 10_000,
    "escapes": "x = '\\d\\q'\ny = 1if 1else 2\nassert (1, 'a')",
    "exec": "exec('exec(\"exec(1)\")')\nexec(compile('exec(x)', 'a', 'exec'))\nx = 'exec(x)'\nexec(x)",
    "surrogates": "x = '\\ud800'\nopen('\\udcff')\nexec('\\ud800')",
    "self": "class ModelNew:\n    def forward(self, x):\n        return self.forward(self(x))\nModelNew = ModelNew()",
}  # fmt: skip


@pytest.mark.parametrize("name", DEEP)
def test_pathological_python_is_scanned_or_noted(name: str) -> None:
    assert isinstance(scan(DEEP[name]), tuple)
    assert isinstance(
        scan(f"class ModelNew:\n    def forward(self, x):\n        {DEEP['sums'][:500]}"), tuple
    )


NATIVE_DEEP = {
    "parentheses": b"(" * 20_000,
    "braces": b"void f() {" * 5_000,
    "angles": b"a<" * 2_000,
    "quotes": b'"x' * 5_000,
    "raw": b'R"(' + b"x" * 10_000,
    "macros": b"".join(b"#define A%d A%d \\\n" % (i, i + 1) for i in range(2_000)),
    "attributes": b"__launch_bounds__(" * 5_000,
    "conditions": b"void f() {" + b"if (x.data == y) { return; } else " * 500 + b"{}}",
    "comment": b"/*" * 10_000,
    "carriage": b"#define X \\\r\nint f() { return 1; }\r\n" * 100,
}


@pytest.mark.parametrize("name", NATIVE_DEEP)
def test_pathological_sources_are_scanned_or_noted(name: str) -> None:
    assert isinstance(scan(NATIVE_DEEP[name], "program.cu"), tuple)


LONG: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "comments": ("program.cu", lambda n: b"/*" * n),
    "raw strings": ("program.cu", lambda n: b'R"(' * n),
    "attributes": ("program.cu", lambda n: b"__launch_bounds__(" * n),
    "one name": ("program.py", lambda n: b"def f(x):\n    return f(x)\n" * (n // 10)),
    "a chain of classes": (
        "program.py",
        lambda n: "".join(f"class A{i}(A{i + 1}):\n    def forward(self, x): return self.z(x)\n"
                          for i in range(n // 10)).encode(),
    ),
    "returns": (
        "program.py",
        lambda n: b"class ModelNew:\n    def forward(self, x):\n"
        + b"        if x: return self.a\n        self.a = g(x)\n" * (n // 20),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_time_grows_with_the_size_and_not_with_its_square(name: str) -> None:
    file, make = LONG[name]
    used: list[float] = []
    for size in (4_000, 16_000):
        source, takes = make(size), list[float]()
        # What other tests left in memory takes the collector longer the more a scan allocates.
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                start = time.process_time()
                scan(source, file)
                takes.append(time.process_time() - start)
        finally:
            gc.enable()
        used.append(min(takes))
    # Four times the size would take sixteen times as long if it were the square.
    assert used[1] < 10 * max(used[0], 0.01)


CORPUS = [
    data
    for cheats, twins in PAIRS.values()
    for files in (*cheats, *twins)
    for data in files.values()
    if len(data) < 4000
]


@given(data=st.binary(max_size=400), name=st.sampled_from(["program.py", "program.cu", "a.h", "b.bin"]))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_scanned(data: bytes, name: str) -> None:
    assert isinstance(scan(data, name), tuple)


@given(text=st.text(max_size=400), name=st.sampled_from(["program.py", "program.cu"]))
@settings(max_examples=150, deadline=None)
def test_any_text_is_scanned(text: str, name: str) -> None:
    assert isinstance(scan(text.encode("utf-8", "surrogatepass"), name), tuple)


@given(
    data=st.sampled_from(CORPUS),
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.binary(max_size=12)), min_size=1, max_size=4
    ),
    name=st.sampled_from(["program.py", "program.cu"]),
)
@settings(max_examples=200, deadline=None)
def test_damaged_programs_are_scanned(data: bytes, cuts: list[tuple[float, float, bytes]], name: str) -> None:
    for start, length, filling in cuts:
        place = int(start * len(data))
        data = data[:place] + filling + data[place + int(length * 40) :]
    assert isinstance(scan(data, name), tuple)


@given(
    lines=st.lists(st.sampled_from(sorted({
        line.strip() for data in CORPUS for line in data.decode("utf-8", "replace").splitlines() if line.strip()
    })), max_size=30),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_shuffled_lines_are_scanned(lines: list[str]) -> None:
    body = "\n        ".join(lines)
    assert isinstance(scan(f"class ModelNew:\n    def forward(self, x):\n        {body}"), tuple)
    assert isinstance(scan("\n".join(lines), "program.cu"), tuple)


def test_notes_of_one_rule_on_one_file_are_one_that_counts_them() -> None:
    text = "import torch\ntorch.manual_seed(0)\ntorch.manual_seed(1)\ntorch.manual_seed(2)\n"
    notes = [row for row in scan(text) if row.rule == "global_setting"]
    assert [(row.severity, row.line) for row in notes] == [("note", 2)]
    assert notes[0].message.endswith("(3 times, also on lines 3, 4)")


def test_graver_findings_of_one_rule_stay_apart() -> None:
    twice = "int stitch_forward(void*) {\n  fork();\n  fork();\n}\n"
    assert [row.line for row in scan(twice, "program.cu") if row.rule == "work_not_joined"] == [2, 3]
