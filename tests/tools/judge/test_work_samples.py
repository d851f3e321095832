"""Samples made of real addresses: who owns them, and what they are called."""

import _ctypes
import ctypes
import json
import mmap
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from stitch_tools.compile.host_build import build_sampler
from stitch_tools.worker.candidate.activity import objects
from stitch_tools.worker.candidate.activity.calls import ends_with_call
from stitch_tools.worker.candidate.activity.objects import Belongings
from stitch_tools.worker.candidate.activity.samples import Attribution, Work

LIBRARIES = Path(torch.__file__).parent / "lib"
MULTIPLY = "_ZN2at4_ops2mm4callERKNS_6TensorES4_"
MAKE = "_ZN2at4_ops5alias4callERKNS_6TensorE"
PAST_THE_DISPATCHER = "_ZN2at3cpu2mmERKNS_6TensorES3_"
NO_OPERATOR = "_ZN2at15get_num_threadsEv"
MINE = str(Path(_ctypes.__file__).resolve())
"""A loaded library in the place of the program's own."""


def behind_call(start: int) -> int:
    """The first return address from here on."""
    ends = (start + size for size in range(7, 4096))
    return next(end for end in ends if ends_with_call(ctypes.string_at(end - 7, 7)))


def entry(symbol: str, library: str = "libtorch_cpu.so") -> int:
    """Where a function of PyTorch's begins."""
    function = ctypes.CDLL(str(LIBRARIES / library))[symbol]
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def code_of(owner: int) -> int:
    """A return address in code of this owner."""
    belongings = Belongings((MINE,), (), ())
    rows = objects.executable_mappings()
    return behind_call(next(row.start for row in rows if objects.owner_of(row.path, belongings) == owner))


LEAF = entry(NO_OPERATOR)
MM, ALIAS, DIRECT_MM = (behind_call(entry(symbol)) for symbol in (MULTIPLY, MAKE, PAST_THE_DISPATCHER))
ALLOCATOR = entry("_ZN3c1015GetCPUAllocatorEv", "libc10.so")
OWN, PYTHON, LIBC = map(code_of, (objects.OWN, objects.PYTHON, objects.LIBC))


@pytest.fixture(scope="module")
def attribution() -> Attribution:
    return Attribution(Belongings((MINE,), (), ()))


def counted(attribution: Attribution, *samples: tuple[int, ...], on_stack: bool = True) -> Counter[Work]:
    """Of samples with their innermost address first."""
    rows = torch.zeros(len(samples), 8, dtype=torch.int64)
    for row, (leaf, *stack) in zip(rows, samples, strict=True):
        row[: 3 + len(stack)] = torch.tensor([leaf, on_stack, 8 * len(stack), *stack])
    return attribution.count(rows)


def test_a_sample_of_the_pool_bears_the_name_of_the_operator_that_was_seen_before() -> None:
    attribution = Attribution(Belongings((MINE,), (), ()))
    assert counted(attribution, (LEAF, 0)) == {("pytorch", "libtorch_cpu.so"): 1}
    assert counted(attribution, (LEAF, MM, PYTHON), (LEAF, 0), (LEAF, 0)) == {("pytorch", "aten::mm"): 3}


@pytest.mark.parametrize(
    "stack",
    [
        (LEAF,),
        (LEAF, ALIAS),  # left behind: nobody makes tensors in a pool
        (LEAF, DIRECT_MM),
        (ALLOCATOR, DIRECT_MM),
        (LEAF, ALIAS, DIRECT_MM, OWN),
    ],
)
def test_work_of_pytorch_stays_pytorch_s_whoever_worked_before(
    attribution: Attribution, stack: tuple[int, ...]
) -> None:
    for before in ((OWN, PYTHON), (LEAF, MM, PYTHON)):
        found = counted(attribution, before, stack)
        own = {("own", name) for owner, name in found if owner == "own"}
        assert sum(found[work] for work in own) == (before[0] == OWN)
        assert sum(number for (owner, _), number in found.items() if owner == "pytorch") == 2 - len(own)


@pytest.mark.parametrize("stack", [(LEAF, ALIAS, PYTHON), (LEAF, ALIAS, OWN), (ALLOCATOR, OWN, PYTHON)])
def test_tensors_that_are_only_made_are_no_work(attribution: Attribution, stack: tuple[int, ...]) -> None:
    assert counted(attribution, stack) == {("other", "tensors made and viewed"): 1}


def test_an_operator_s_address_in_the_program_s_own_frame_excuses_nothing(attribution: Attribution) -> None:
    found = counted(attribution, (LEAF, OWN, ALIAS, ALIAS, PYTHON))
    assert {owner for owner, _ in found} == {"pytorch"}


def test_data_is_no_caller_of_generated_code() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        first = ctypes.c_char.from_buffer(page)
        generated = ctypes.addressof(first)
        attribution = Attribution(Belongings((MINE,), (), ()))
        stack = (generated, MM, PYTHON)
        assert counted(attribution, stack) == {("pytorch", "aten::mm"): 1}
        assert counted(attribution, stack, on_stack=False) == {("own", "generated code"): 1}
        del first


def test_data_that_looks_like_an_address_is_no_caller(attribution: Attribution) -> None:
    """A futex call leaves its operation over the low half of a pointer, and many libraries lie everywhere."""
    found = counted(attribution, (LIBC, MM - 1, OWN - 1, DIRECT_MM + 1, PYTHON), (LIBC, MM, PYTHON))
    assert found == {("other", "interpreter and the rest"): 1, ("pytorch", "aten::mm"): 1}


def test_every_call_of_a_library_is_seen_as_one_and_hardly_anything_else() -> None:
    command = ["objdump", "-d", "-w", "--section=.text", MINE]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split("\t") for line in lines if line.count("\t") == 2]
    code = [bytes.fromhex(row[1].replace(" ", "")) for row in rows]
    calls = [row[2].startswith(("call", "notrack call", "data16 rex.W call", "addr32 call")) for row in rows]
    behind = [bytes(7) + b"".join(code[max(at - 7, 0) : at + 1]) for at in range(len(code))]
    seen = [ends_with_call(text) for text in behind]
    assert sum(calls) > 100
    assert [row[2] for row, call, found in zip(rows, calls, seen, strict=True) if call and not found] == []
    assert sum(seen) - sum(calls) < 0.02 * len(seen)


@pytest.mark.parametrize(
    ("code", "is_call"),
    [
        ("e811223344", True),  # call rel32
        ("ffd0", True),  # call *%rax
        ("41ffd4", True),  # call *%r12
        ("ff10", True),  # call *(%rax)
        ("ff1424", True),  # call *(%rsp)
        ("ff5008", True),  # call *8(%rax)
        ("ff542408", True),  # call *8(%rsp)
        ("ff1511223344", True),  # call *disp(%rip)
        ("ff9011223344", True),  # call *disp(%rax)
        ("ff942411223344", True),  # call *disp(%rsp)
        ("ff142511223344", True),  # call *disp
        ("ff14c511223344", True),  # call *disp(,%rax,8)
        ("ffe0", False),  # jmp *%rax
        ("ff30", False),  # push (%rax)
        ("ff14", False),  # cut off
        ("ff15112233", False),  # cut off
        ("e911223344", False),  # jmp rel32
        ("9090909090", False),
        ("", False),
    ],
)
def test_a_return_address_lies_behind_any_form_of_call(code: str, is_call: bool) -> None:
    assert ends_with_call(bytes.fromhex(code)) is is_call
    assert ends_with_call(bytes.fromhex("90" * 7 + code)) is is_call


# Counts down with the stack pointer on data that holds addresses of an operator, or on the stack itself.
WALK = """
import ctypes, json, mmap, sys
import torch
from stitch_tools.worker.candidate.activity.calls import ends_with_call
from stitch_tools.worker.candidate.activity.objects import Belongings
from stitch_tools.worker.candidate.activity.samples import Attribution, Sampler
sampler = Sampler(sys.argv[1], period_us=200)
page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
#  mov rax, rsp; mov rsp, rdi (or nothing); dec rsi; jnz -5; mov rsp, rax; ret
page.write(bytes.fromhex("4889e0" + sys.argv[2] + "48ffce75fb4889c4c3"))
walk = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)(
    ctypes.addressof(ctypes.c_char.from_buffer(page)))
start = ctypes.cast(ctypes.CDLL(sys.argv[3])[sys.argv[4]], ctypes.c_void_p).value
operator = next(end for end in range(start + 7, start + 4096) if ends_with_call(ctypes.string_at(end - 7, 7)))
data = (ctypes.c_uint64 * 8192)(*[operator] * 8192)
sampler.start()
for _ in range(20):
    walk(ctypes.addressof(data) + 16384, 20_000_000)
sampler.stop()
found = Attribution(Belongings((), (), ())).count(sampler.read())
owners = {}
for (owner, name), number in found.items():
    key = "generated" if name == "generated code" else owner
    owners[key] = owners.get(key, 0) + number
print(json.dumps(owners))
"""


@pytest.mark.parametrize(("move", "generated"), [("4889fc", True), ("909090", False)])
def test_the_sampler_says_where_the_stack_pointer_walks_through_data(move: str, generated: bool) -> None:
    command = [sys.executable, "-c", WALK, str(build_sampler()), move]
    operator = [str(LIBRARIES / "libtorch_cpu.so"), MULTIPLY]
    done = subprocess.run([*command, *operator], capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    assert found.get("pytorch", 0) == 0
    assert sum(found.values()) > 10
    assert (found.get("generated", 0) > 0.9 * sum(found.values())) is generated
