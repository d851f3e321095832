"""One draw: inputs from the reference server, calls of the program, and the comparison of what they left."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from stitch_tools.judge.check_options import CheckOptions
from stitch_tools.judge.correctness.draw_schedule import DrawRequest
from stitch_tools.run.candidate_worker import Answer, Worker
from stitch_tools.run.reference_server import Comparison, Expectation, Inputs, ReferenceServer

_TELLING_BYTES = 32
_REPEATED_CALLS = 3
_REPEATED_GPU_CALLS = 10
"""Calls at the same addresses, whose bits are compared with those of the first call. On a GPU more of them:
a race between its blocks shows now and then only, and calls are short there."""


@dataclass(frozen=True)
class Observed:
    """What one draw showed."""

    answer: Answer
    """Of the program's first call, or of the first one that was refused."""
    expectation: Expectation
    comparison: Comparison | None = None
    """None where the program did not answer `ok`."""
    repeats_bitwise: bool | None = None
    """Whether all calls on the same inputs gave the same bits."""
    repeated: Comparison | None = None
    """Of the first repeated call that is wrong, else of the last one."""
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
            first = Observed(answer, expectation, comparison)
            return self._repeat(first, inputs, outputs_fd)
        if comparison.decided:
            self._keep(outputs_fd, expectation)
        return Observed(answer, expectation, comparison)

    def _repeat(self, first: Observed, inputs: Inputs, first_fd: int) -> Observed:
        """Call the program in fresh memory, then several times at the same addresses."""
        expectation, answers = first.expectation, [first.answer]
        fd = self.reference.make_outputs(expectation.nbytes)
        on_gpu = self.reference.task.target.startswith("cuda")
        last = _REPEATED_GPU_CALLS if on_gpu else _REPEATED_CALLS
        same: bool | None = None
        repeated: Comparison | None = None
        try:
            answer = self._call(inputs, fd, expectation)
            for number in range(last + 1):
                if number and answer.ok:
                    answer = self._call(inputs, fd, expectation, reuse=True, again=True)
                answers.append(answer)
                if not answer.ok:
                    repeated = None
                    break
                alike = self.reference.same_bits(first_fd, fd, expectation)
                same = alike and same is not False
                # Sums by atomics differ by rounding, a race by more: other bits are compared as outputs are.
                if not alike or number == last:
                    repeated = self.reference.compare(fd, expectation, answer.generator)
                    if not repeated.right:
                        break
        finally:
            os.close(fd)
        self._keep(first_fd, expectation)
        return replace(first, answer=_gathered(answers), repeats_bitwise=same, repeated=repeated)

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


def _gathered(answers: Sequence[Answer]) -> Answer:
    """The last answer, with all that any of the calls wrote to memory of earlier ones."""
    return replace(
        answers[-1],
        earlier_inputs=tuple(dict.fromkeys(name for row in answers for name in row.earlier_inputs)),
        earlier_outputs=tuple(dict.fromkeys(name for row in answers for name in row.earlier_outputs)),
    )
