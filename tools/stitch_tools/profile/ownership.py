"""Whose a kernel is, by its name: the program's own, a vendor library's, or PyTorch's."""

import re
from collections.abc import Collection

from stitch_tools.models.profile import TimeOwner

_PYTORCH = re.compile(r"at::native|at_cuda_detail|\bc10::|pytorch_flash|^fmha_|at::cuda|torch::")
_INDUCTOR = re.compile(r"^triton_")


def short_name(name: str) -> str:
    """The last name in a kernel's signature, without return type, namespaces, template or parameters.

    Of PyTorch's templates the functor is what tells two kernels apart: it is kept.
    """
    functor = re.search(r"(\w*(?:Functor|functor|Op)\w*)", name) if "at::native" in name else None
    last = last_name(name)
    return f"{last}[{functor[1]}]" if functor is not None and functor[1] != last else last


def last_name(name: str) -> str:
    """A kernel's own name, by which sources and ncu call it."""
    bare = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    return bare.partition("(")[0].partition("<")[0].strip().rpartition("::")[2].rpartition(" ")[2]


def owner_of(name: str, own: Collection[str], *, is_reference: bool) -> TimeOwner:
    """Whose kernel this is.

    Args:
        name: as the profiler writes it.
        own: names of the kernels that the program defines, without namespaces and parameters.
        is_reference: a reference defines none, and Inductor's kernels in it are PyTorch's.
    """
    if last_name(name) in own or name in own:
        return "own"
    if _PYTORCH.search(name):
        return "pytorch"
    if _INDUCTOR.match(name):
        return "pytorch" if is_reference else "own"
    # Neither the program's nor PyTorch's: cuBLAS, cuDNN, CUTLASS and their kin, whoever called them.
    return "vendor"
