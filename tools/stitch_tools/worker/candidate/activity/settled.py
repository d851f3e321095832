"""Whether the samples so far leave any doubt who did the work; then no more of them are taken.

In plain Python: it runs while samples are taken, and an operator of PyTorch's would be seen as its work.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from stitch_tools.worker.candidate.activity import objects
from stitch_tools.worker.candidate.activity.objects import Belongings
from stitch_tools.worker.candidate.activity.odds import at_most

_DOUBT = 0.02
"""Probability of so few samples of others in one block, were their part as large as the contract allows
PyTorch's; there are two blocks, and both have to look so."""
_PLAINLY = 0.1
"""Share of the program's own code, far above that of a program which does nothing itself."""
_CALLED = (objects.LIBC, objects.HELPER, objects.UNNAMED)
_IDLE = (objects.PYTHON, objects.WAITING)
_MOST_WORDS = 512  # of a stack: looking must not take longer than the work


class Progress:
    """Counts samples of the program's own work, and of all else that may be somebody's.

    It judges a sample as the attribution does that looks at all of them afterwards (samples.py). What is not
    plain here counts against the program: deep stacks, objects that are loaded later, libraries of any kind.
    """

    def __init__(self, belongings: Belongings, allowed_share: float) -> None:
        """`allowed_share`: of PyTorch in the work, above which a program is `partial`."""
        self._allowed = allowed_share
        mappings = objects.executable_mappings()
        self._starts = [mapping.start for mapping in mappings]
        self._ends = [mapping.end for mapping in mappings]
        self._owners = [objects.owner_of(mapping.path, belongings) for mapping in mappings]
        self._own = self._copies = self._others = 0

    def add(self, samples: Iterable[tuple[bool, int, Sequence[int]]]) -> None:
        """Count these: whether the stack pointer points into the stack, program counter, words above it."""
        for on_stack, counter, stack in samples:
            leaf = owner = self._owner(counter)
            if leaf in _CALLED:
                callers = map(self._owner, stack[:_MOST_WORDS] if on_stack or leaf != objects.UNNAMED else ())
                owner = next((found for found in callers if found in objects.NAMED), objects.NOBODY)
            if owner == objects.OWN or (owner == objects.BRIDGE and leaf != owner):
                self._copies += leaf == objects.LIBC
                self._own += leaf != objects.LIBC
            elif owner not in _IDLE and leaf != objects.BRIDGE:
                self._others += 1

    @property
    def settled(self) -> bool:
        """Whether the work is the program's own beyond doubt."""
        return is_settled(self._own, self._copies, self._others, self._allowed)

    def _owner(self, address: int) -> int:
        index = bisect_right(self._starts, address) - 1
        return objects.NOBODY if index < 0 or address >= self._ends[index] else self._owners[index]


def is_settled(own: int, copies: int, others: int, allowed_share: float) -> bool:
    """Whether others, had they as much of the work as is allowed, would have been seen more often."""
    share, number = min(allowed_share, 0.5), own + copies + others
    if share <= 0.0 or own < _PLAINLY * number or others > share * number:
        return False
    return at_most(others, number, share) <= _DOUBT
