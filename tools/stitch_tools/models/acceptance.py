"""Which shortcomings of a correct program are accepted, and what all evidence on it amounts to."""

from collections.abc import Iterable
from typing import Literal, Self, get_args

from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact
from stitch_tools.models.finding_kinds import AcceptableKind, finding_kind
from stitch_tools.models.verdict import CheckFlag, CheckStatus

AcceptableFlag = Literal["partial", "weak"]
"""Flags with which a correct program does not count, unless a policy accepts them."""
Shortcoming = AcceptableFlag | AcceptableKind
"""What a policy may accept, by name."""
ReasonSource = Literal["check", "memory", "timing", "flag", "finding"]

_FLAGS: tuple[AcceptableFlag, ...] = get_args(AcceptableFlag)
_KINDS: tuple[AcceptableKind, ...] = get_args(AcceptableKind)
SHORTCOMINGS: tuple[Shortcoming, ...] = (*_FLAGS, *_KINDS)
"""Every name that a policy may accept."""


def weighing_kind(rule: str) -> AcceptableKind | None:
    """The kind of a rule whose suspicious findings keep a program from counting; None for any other rule."""
    kind = finding_kind(rule)
    return next((known for known in _KINDS if known == kind), None)


class AcceptPolicy(Fact):
    """Which shortcomings of a correct program are accepted; the default accepts none."""

    flags: tuple[AcceptableFlag, ...] = ()
    """Flags that do not keep a program from counting: `partial`, `weak`."""
    kinds: tuple[AcceptableKind, ...] = ()
    """Kinds of suspicious findings that do not."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """The policy that accepts the named flags and kinds, each once and in a fixed order.

        Raises:
            UsageError: a name is neither.
        """
        wanted = set(names)
        if unknown := sorted(wanted.difference(SHORTCOMINGS)):
            raise UsageError(
                f"a policy cannot accept {unknown[0]!r}", hint=f"name one of: {', '.join(SHORTCOMINGS)}"
            )
        return cls(
            flags=tuple(flag for flag in _FLAGS if flag in wanted),
            kinds=tuple(kind for kind in _KINDS if kind in wanted),
        )

    @property
    def names(self) -> tuple[Shortcoming, ...]:
        """Everything that it accepts; () for the default."""
        return (*self.flags, *self.kinds)


class VerdictReason(Fact):
    """One reason why a program does not count, or would not under the default policy."""

    source: ReasonSource
    """Which evidence gave it: the check's status, the sanitizers, the timing, a flag, or a finding."""
    rule: str
    """A status, a flag, or the rule id of a finding."""
    accept: Shortcoming | None = None
    """The name under which a policy accepts this; None: no policy does."""
    message: str
    """One sentence."""


class Verdict(Fact):
    """What all evidence on a program amounts to. Only `stitch_tools.judge.verdict` makes one."""

    status: CheckStatus
    """`accepted`: the outputs are right, and no evidence shows a cheat or a memory error."""
    flags: tuple[CheckFlag, ...] = ()
    counts: bool
    """Whether the program may be claimed: accepted, and without a shortcoming that the policy refuses."""
    reasons: tuple[VerdictReason, ...] = ()
    """Why it does not count; () where it does."""
    excused: tuple[VerdictReason, ...] = ()
    """Shortcomings that the policy accepts and the default policy would not."""
    policy: AcceptPolicy = AcceptPolicy()
    """The policy that was applied."""

    @property
    def accepted(self) -> bool:
        """Whether the program is correct, counted or not."""
        return self.status == "accepted"

    @property
    def why_not(self) -> str:
        """Why the program does not count, as one sentence; "" where it does."""
        return "; ".join(
            row.message if row.rule == self.status else f"{row.rule}: {row.message}" for row in self.reasons
        )

    @property
    def accept(self) -> tuple[Shortcoming, ...]:
        """What a policy would have to accept beside its own for the program to count; () where none could."""
        names: list[Shortcoming] = [row.accept for row in self.reasons if row.accept is not None]
        return tuple(dict.fromkeys(names)) if len(names) == len(self.reasons) else ()
