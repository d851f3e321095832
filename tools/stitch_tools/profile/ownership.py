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
    bare = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    functor = re.search(r"(\w*(?:Functor|functor|Op)\w*)", bare) if "at::native" in bare else None
    last = bare.partition("(")[0].partition("<")[0].strip().rpartition("::")[2].rpartition(" ")[2]
    return f"{last}[{functor[1]}]" if functor is not None and functor[1] != last else last


def owner_of(name: str, own: Collection[str], *, is_reference: bool) -> TimeOwner:
    """Whose kernel this is.

    Args:
        name: as the profiler writes it.
        own: names of the kernels that the program defines, without namespaces and parameters.
        is_reference: a reference defines none, and Inductor's kernels in it are PyTorch's.
    """
    last = name.partition("(")[0].partition("<")[0].strip().rpartition("::")[2].rpartition(" ")[2]
    if last in own or name in own:
        return "own"
    if _PYTORCH.search(name):
        return "pytorch"
    if _INDUCTOR.match(name):
        return "pytorch" if is_reference else "own"
    # Neither the program's nor PyTorch's: cuBLAS, cuDNN, CUTLASS and their kin, whoever called them.
    return "vendor"
