"""Samples made of real addresses: who owns them, and what they are called."""

import _ctypes
import ctypes
from collections import Counter
from pathlib import Path

import pytest
import torch

from stitch_tools.worker.candidate.activity import objects
from stitch_tools.worker.candidate.activity.objects import Belongings
from stitch_tools.worker.candidate.activity.samples import Attribution, Work

LIBRARIES = Path(torch.__file__).parent / "lib"
INSIDE = 4
"""Bytes behind a function's start, as a return address lies."""
MULTIPLY = "_ZN2at4_ops2mm4callERKNS_6TensorES4_"
MAKE = "_ZN2at4_ops5alias4callERKNS_6TensorE"
PAST_THE_DISPATCHER = "_ZN2at3cpu2mmERKNS_6TensorES3_"
NO_OPERATOR = "_ZN2at15get_num_threadsEv"
MINE = str(Path(_ctypes.__file__).resolve())
"""A loaded library in the place of the program's own."""


def torchs(symbol: str, library: str = "libtorch_cpu.so") -> int:
    """An address inside of a function of PyTorch's."""
    function = ctypes.CDLL(str(LIBRARIES / library))[symbol]
    return (ctypes.cast(function, ctypes.c_void_p).value or 0) + INSIDE


def code_of(owner: int) -> int:
    """An address in code of this owner."""
    belongings = Belongings((MINE,), (), ())
    rows = objects.executable_mappings()
    return next(row.start for row in rows if objects.owner_of(row.path, belongings) == owner) + INSIDE


LEAF, MM, ALIAS, DIRECT_MM = map(torchs, (NO_OPERATOR, MULTIPLY, MAKE, PAST_THE_DISPATCHER))
ALLOCATOR = torchs("_ZN3c1015GetCPUAllocatorEv", "libc10.so")
OWN, PYTHON = code_of(objects.OWN), code_of(objects.PYTHON)


@pytest.fixture(scope="module")
def attribution() -> Attribution:
    return Attribution(Belongings((MINE,), (), ()))


def counted(attribution: Attribution, *samples: tuple[int, ...]) -> Counter[Work]:
    """Of samples with their innermost address first."""
    rows = torch.zeros(len(samples), 8, dtype=torch.int64)
    for row, (leaf, *stack) in zip(rows, samples, strict=True):
        row[: 3 + len(stack)] = torch.tensor([leaf, 1, 8 * len(stack), *stack])
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
