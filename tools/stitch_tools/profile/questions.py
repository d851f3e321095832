"""The questions that are asked about a kernel, and the order of their answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stitch_tools.models.profile import KernelAnswer, KernelQuestion
from stitch_tools.profile.compute_questions import ask_bound_by, ask_divergence, ask_stall, ask_tensor_cores
from stitch_tools.profile.launch_questions import ask_grid_size, ask_occupancy, ask_tail_wave
from stitch_tools.profile.memory_questions import ask_bank_conflicts, ask_coalescing, ask_spills
from stitch_tools.profile.ncu_metrics import metrics_of
from stitch_tools.profile.ncu_report import NcuKernel
from stitch_tools.profile.source_lines import HotLine, LineFigure


@dataclass(frozen=True)
class Question:
    """One question about a kernel and how it is answered."""

    id: KernelQuestion
    text: str
    ask: Callable[[NcuKernel], KernelAnswer]
    line: LineFigure | None = None
    """The figure of the source page whose largest line is to blame."""


QUESTIONS: tuple[Question, ...] = (
    Question("bound_by", "What bounds it: compute, memory or latency?", ask_bound_by, "samples"),
    Question("coalescing", "Is global memory accessed in whole sectors?", ask_coalescing, "excess_sectors"),
    Question("bank_conflicts", "Do shared accesses conflict?", ask_bank_conflicts, "excess_passes"),
    Question("spills", "Are registers spilled to local memory?", ask_spills, "local_sectors"),
    Question("tensor_cores", "Are the tensor cores used?", ask_tensor_cores, "instructions"),
    Question("occupancy", "Is occupancy too low, and what limits it?", ask_occupancy, "samples"),
    Question("grid_size", "Does every multiprocessor get a block?", ask_grid_size),
    Question("tail_wave", "Is the last wave half empty?", ask_tail_wave),
    Question("divergence", "Do warps take several paths?", ask_divergence, "idle_threads"),
    Question("stall", "What do warps wait for?", ask_stall, "samples"),
)
ALL_METRICS = metrics_of(question.id for question in QUESTIONS)
"""What one run of ncu collects for all questions."""


def question(name: str) -> Question | None:
    """The question of this id; None where there is none."""
    return next((row for row in QUESTIONS if row.id == name), None)


def ask(
    kernel: NcuKernel,
    asked: Iterable[KernelQuestion] | None = None,
    lines: Mapping[LineFigure, HotLine] | None = None,
) -> tuple[KernelAnswer, ...]:
    """The answers about one launch, problems first, the most costly one at the front.

    Args:
        kernel: a launch with its metrics.
        asked: which questions; None is all of them.
        lines: the source line with most of each figure, of a program built with -lineinfo.
    """
    wanted = None if asked is None else set(asked)
    rows = [row for row in QUESTIONS if wanted is None or row.id in wanted]
    return ranked([_placed(row.ask(kernel), row.line, lines or {}) for row in rows])


def ranked(answers: Sequence[KernelAnswer]) -> tuple[KernelAnswer, ...]:
    """Problems by what they cost, then those without a figure, then the rest as it was asked."""

    def cost(answer: KernelAnswer) -> tuple[int, float]:
        if not answer.is_problem:
            return 2, 0.0
        return (1, 0.0) if answer.saves_share is None else (0, -answer.saves_share)

    return tuple(sorted(answers, key=cost))


def _placed(
    answer: KernelAnswer, figure: LineFigure | None, lines: Mapping[LineFigure, HotLine]
) -> KernelAnswer:
    line = lines.get(figure) if figure is not None else None
    if line is None or not answer.is_problem:
        return answer
    return answer.model_copy(update={"file": line.file, "line": line.number})
