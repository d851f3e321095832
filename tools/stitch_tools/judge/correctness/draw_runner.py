"""One draw: inputs from the reference server, calls of the program, and the comparison of what they left."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.correctness.draw_schedule import DrawRequest
from stitch_tools.run.candidate_worker import Answer, Worker
from stitch_tools.run.reference_server import Comparison, Expectation, Inputs, ReferenceServer

_TELLING_BYTES = 32
_REPEATED_CALLS = 3
"""Calls at the same addresses, of which the last one is compared."""


@dataclass(frozen=True)
class Observed:
    """What one draw showed."""

    answer: Answer
    """Of the program's first call, or of the first one that was refused."""
    expectation: Expectation
    comparison: Comparison | None = None
    """None where the program did not answer `ok`."""
    repeats_bitwise: bool | None = None
    repeated: Comparison | None = None
    """Of the last call at the same addresses."""
    stale: bool = False
    """The outputs are wrong, and bit by bit those of an earlier draw, on which they were right."""


@contextmanager
def expected(
    reference: ReferenceServer, inputs: Inputs, updated: Sequence[str]
) -> Generator[tuple[Expectation, int]]:
    """What the reference gives on the inputs, and memory for the program's outputs, until the body ends."""
    try:
        expectation = reference.expect(updated)
        outputs_fd = reference.make_outputs(expectation.nbytes)
        try:
            yield expectation, outputs_fd
        finally:
            os.close(outputs_fd)
    finally:
        inputs.close()


class DrawRunner:
    """Runs draws, a program beside its reference. Remembers the inputs and outputs that later draws need."""

    def __init__(
        self, reference: ReferenceServer, worker: Worker, options: CheckOptions, updated: Sequence[str]
    ) -> None:
        self.reference, self.worker = reference, worker
        self._options, self._updated = options, updated
        self._seeds: dict[str, int] = {}
        self._kept: tuple[int, Expectation] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._forget()

    def observe(self, draw: DrawRequest) -> Observed:
        """Make the draw and call the program on it.

        Raises:
            DrawUnavailable: the draw does not apply, or cannot tell right from wrong.
            TaskError: the reference fails on it.
            ChildDied: the program does not survive it.
        """
        seed = self._seeds.get(draw.seed_of) if draw.seed_of else None
        inputs = self.reference.make_draw(draw.kind, shared=draw.shared, seed=seed)
        self._seeds[draw.name] = inputs.seed
        with expected(self.reference, inputs, self._updated) as (expectation, outputs_fd):
            return self._observe(draw, inputs, expectation, outputs_fd)

    def _observe(
        self, draw: DrawRequest, inputs: Inputs, expectation: Expectation, outputs_fd: int
    ) -> Observed:
        answer = self._call(inputs, outputs_fd, expectation, reuse=draw.reuse)
        if not answer.ok:
            return Observed(answer, expectation)
        comparison = self.reference.compare(outputs_fd, expectation, answer.generator)
        if not comparison.right:
            stale = self._is_kept(outputs_fd, expectation)
            return Observed(answer, expectation, comparison, stale=stale)
        if draw.repeat:
            return self._repeat(inputs, expectation, outputs_fd, comparison)
        if comparison.decided:
            self._keep(outputs_fd, expectation)
        return Observed(answer, expectation, comparison)

    def _repeat(self, inputs: Inputs, expectation: Expectation, first_fd: int, first: Comparison) -> Observed:
        fd = self.reference.make_outputs(expectation.nbytes)
        try:
            answer = self._call(inputs, fd, expectation)
            same = self.reference.same_bits(first_fd, fd, expectation) if answer.ok else None
            for _ in range(_REPEATED_CALLS):
                if answer.ok:
                    answer = self._call(inputs, fd, expectation, reuse=True, again=True)
            repeated = self.reference.compare(fd, expectation, answer.generator) if answer.ok else None
        finally:
            os.close(fd)
        self._keep(first_fd, expectation)
        return Observed(answer, expectation, first, same, repeated)

    def _call(
        self,
        inputs: Inputs,
        outputs_fd: int,
        expectation: Expectation,
        *,
        reuse: bool = False,
        again: bool = False,
    ) -> Answer:
        self.reference.prime(outputs_fd, expectation)
        timeout_s = max(self._options.call_timeout_s, 50 * expectation.reference_s)
        return self.worker.run(inputs, outputs_fd, expectation, reuse=reuse, again=again, timeout_s=timeout_s)

    def _keep(self, outputs_fd: int, expectation: Expectation) -> None:
        self._forget()
        self._kept = (os.dup(outputs_fd), expectation)

    def _is_kept(self, outputs_fd: int, expectation: Expectation) -> bool:
        if self._kept is None or self._kept[1].layout != expectation.layout:
            return False
        # A few numbers, a few decisions or one number everywhere may well be the same by chance.
        if not any("float" in row["dtype"] and row["nbytes"] >= _TELLING_BYTES for row in expectation.layout):
            return False
        return self.reference.same_results(self._kept[0], outputs_fd, expectation)

    def _forget(self) -> None:
        if self._kept is not None:
            os.close(self._kept[0])
            self._kept = None
