"""Which GPUs a caller means."""

from stitch_tools.errors import UsageError
from stitch_tools.machine.devices import GpuSearch


def gpu_pins(text: str, search: GpuSearch) -> tuple[str, ...]:
    """UUIDs of GPUs, for CUDA_VISIBLE_DEVICES, by what a caller wrote: numbers with commas between, or `all`.

    Args:
        text: numbers as CUDA counts the GPUs that are visible here.
        search: those GPUs.

    Raises:
        UsageError: there is no such GPU, or a number comes twice.
    """
    if text.strip() == "all":
        words = [str(gpu.index) for gpu in search.gpus] or [""]
    else:
        words = [word.strip() for word in text.split(",")]
    known = {str(gpu.index): gpu.uuid for gpu in search.gpus}
    here = ", ".join(known) or f"none ({search.problem})"
    for word in words:
        if word not in known:
            raise UsageError(f"there is no GPU number {word!r}", hint=f"GPUs here: {here}")
    if len(set(words)) < len(words):
        raise UsageError(f"--gpus {text} names a GPU twice", hint="--jobs sets how many runs share them")
    return tuple(known[word] for word in words)
