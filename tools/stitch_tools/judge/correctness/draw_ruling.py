"""What one draw amounts to: right, wrong or refused, and whether it shows what no honest program does."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from stitch_tools.judge.correctness.check_record import End, Record, end_of_step
from stitch_tools.judge.correctness.check_wording import (
    describe_draw,
    describe_reason,
    describe_refusal,
    describe_undecided,
)
from stitch_tools.judge.correctness.draw_runner import Observed
from stitch_tools.judge.correctness.draw_schedule import DrawRequest
from stitch_tools.models.verdict import DrawResult
from stitch_tools.run.candidate_worker import Answer
from stitch_tools.run.reference_server import Comparison
from stitch_tools.worker.reference.draw_kinds import ALTERED

_REFUSALS = ("unsupported", "out_of_memory", "raised")
"""How a program may answer another leading size. `raised`: an exception of a `ModelNew`, as an assertion or
TORCH_CHECK on a shape ends with; a fault of the device, or of the process, is none of these."""


@dataclass(frozen=True)
class Ruling:
    """Rules on draws, and enters them in the check's record."""

    record: Record
    uses_rng: bool
    """Whether the reference draws random numbers in forward."""
    sizes_count: bool
    """Whether the contract asks for other leading sizes."""
    tell: Callable[[DrawResult], None]
    """Takes every result of a comparison once it is in the record."""

    def on(self, draw: DrawRequest, seen: Observed) -> End | None:
        """Why no further draw is made; None where the check goes on."""
        self.record.note_conditions(seen.expectation, seen.answer)
        if seen.comparison is None:
            return self._on_refusal(seen.answer, draw)
        end = self._on_comparison(draw, seen, seen.comparison)
        if end is not None or seen.repeats_bitwise is None:
            # The second call of a draw fails as any other does.
            return self._on_refusal(seen.answer, draw) if end is None and not seen.answer.ok else end
        if not seen.repeats_bitwise:
            self.record.note(
                "not_deterministic",
                f"draw {draw.name}: repeated calls on the same inputs gave other bits, {_size_of(seen)}",
            )
        if seen.repeated is None:
            return self._on_refusal(seen.answer, draw)
        again = replace(draw, name=f"{draw.name} repeated", repeat=False)
        return self._on_comparison(again, seen, seen.repeated)

    def _on_refusal(self, answer: Answer, draw: DrawRequest) -> End | None:
        # A larger size may well not fit where the task's own just did.
        if answer.status in _REFUSALS and draw.other_size:
            self.record.memory_short |= answer.status == "out_of_memory"
            self.record.flags.append("specialized")
            self.record.skipped.append(
                f"draw {draw.name}: the program refuses another leading size: {describe_reason(answer)}"
            )
            return None
        if answer.status == "other_outputs" and self._is_spared(draw):
            self._note_unguarded(f"draw {draw.name}: {describe_refusal(answer)}")
            return None
        self.record.draws.append(DrawResult(draw=draw.name, ok=False, problem=describe_refusal(answer)))
        if answer.status in ("other_outputs", "unsupported"):
            message = f"draw {draw.name}: {describe_refusal(answer)}"
            if answer.status == "other_outputs" and self._is_first_wrong_size(draw):
                self.record.note("wrong_at_other_size", message, "fatal")
            return End("incorrect", message)
        return end_of_step(answer)

    def _on_comparison(self, draw: DrawRequest, seen: Observed, comparison: Comparison) -> End | None:
        problem = self._side_effects(draw, seen, comparison)
        wrong = any(row.problem for row in comparison.outputs)
        if comparison.same_generator is False:
            if self.uses_rng:
                message = "the program does not draw random numbers as the reference does: nothing to compare"
                return End("unmeasured", message, ("unsupported_rng",))
            self.record.note("draws_random_numbers", "the program draws random numbers, the reference none")
        result = DrawResult(
            draw=draw.name,
            ok=not wrong and problem is None,
            outputs=comparison.outputs,
            repeats_bitwise=seen.repeats_bitwise if comparison is seen.comparison else None,
            problem=problem,
        )
        if wrong and problem is None and self._is_spared(draw):
            self._note_unguarded(describe_draw(result))
            return None
        left_open = describe_undecided(comparison.outputs)
        if left_open:
            self.record.leave_undecided(draw.name, left_open)
        if result.ok and not comparison.decided:
            return None
        self.record.draws.append(result)
        if comparison.agreement is not None and not draw.seed_of and comparison is seen.comparison:
            self.record.agreements.append(comparison.agreement)
        if not result.ok:
            self._convict(draw, seen, result)
        self.tell(result)
        return None

    def _side_effects(self, draw: DrawRequest, seen: Observed, comparison: Comparison) -> str | None:
        """What the program did beside its outputs, as far as it makes the draw wrong."""
        for name in seen.answer.held:
            if name not in seen.expectation.held:
                self.record.note(
                    "output_in_input_memory",
                    f"output {name} lies in the memory of an input; the reference's does not",
                )
        if seen.answer.container:
            self.record.note("other_container", seen.answer.container)
        if seen.answer.earlier_outputs:
            names = ", ".join(seen.answer.earlier_outputs[:5])
            self.record.note(
                "earlier_output_overwritten",
                f"what an earlier call returned holds other values after a later one (output {names}):"
                " a caller must copy it before the next call",
            )
        if seen.answer.earlier_inputs:
            names = ", ".join(seen.answer.earlier_inputs[:5])
            problem = f"the program wrote to the inputs of an earlier call (input {names})"
            self.record.note("earlier_inputs_modified", f"draw {draw.name}: {problem}")
            return problem
        if comparison.overrun:
            problem = "memory beside the outputs was overwritten"
            self.record.note("out_of_bounds_write", f"draw {draw.name}: {problem}")
            return problem
        if seen.answer.changed:
            names = ", ".join(seen.answer.changed[:5])
            problem = f"the program changed what the contract keeps: {names}"
            self.record.note("buffers_changed", f"draw {draw.name}: {problem}")
            return problem
        if comparison.inputs_intact is False:
            problem = "the program modified its inputs"
            self.record.note("inputs_modified", f"draw {draw.name}: {problem}")
            return problem
        return None

    def _convict(self, draw: DrawRequest, seen: Observed, result: DrawResult) -> None:
        """What is fatal about a wrong draw: results of another call, or another size that is not refused."""
        text = describe_draw(result)
        if seen.stale and draw.kind == ALTERED:
            # A program that never reads these few values gives the same, too.
            message = f"{text}; nothing changed, as where results are recognised by some of the inputs"
            self.record.note("unchanged_results", message, "suspicious")
        elif seen.stale:
            self.record.note("cached_results", f"{text}; these are the results of an earlier call", "fatal")
        elif self._is_first_wrong_size(draw):
            self.record.note(
                "wrong_at_other_size", f"{text}; a size that is not refused must be right", "fatal"
            )

    def _is_spared(self, draw: DrawRequest) -> bool:
        """Whether nobody asked for right values at this size."""
        return draw.other_size and not self.sizes_count

    def _note_unguarded(self, message: str) -> None:
        """The program is right at the size that it was asked for: its user is kept from others."""
        self.record.flags.append("unguarded")
        self.record.note("unguarded", f"{message}; another size is neither right nor refused")

    def _is_first_wrong_size(self, draw: DrawRequest) -> bool:
        """Whether another size is wrong where all before was right."""
        return draw.other_size and self.record.failures == 1


def _size_of(seen: Observed) -> str:
    """How far the repeated call is off: what adds in another order differs by rounding, a race by more."""
    if seen.repeated is None:
        return "and one of them failed"
    if not seen.repeated.right:
        return "which are wrong: by a race, or by what an earlier call left"
    return "and is right each time, as sums in another order are (atomics, threads)"
