"""How many of torch's threads take part in work of our own."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

# Elements below which one thread is quick enough.
_SMALL = 1 << 22


@contextmanager
def one_thread() -> Generator[None, None, None]:
    """Without torch's other threads: on a busy machine each small operation would wait for all of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def threads_for(elements: int) -> AbstractContextManager[None]:
    """One thread for operations on few elements, all of them for many."""
    return one_thread() if elements < _SMALL else nullcontext()
