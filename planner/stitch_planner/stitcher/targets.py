"""What a target decides: which templates lower its graph, and which language its program is written in."""

from stitch_planner.stitcher.emit.cpu import emit_cpp
from stitch_planner.stitcher.emit.cuda import emit_cuda as emit_cu
from stitch_planner.stitcher.graph.passing import for_gpu
from stitch_planner.stitcher.graph.simplify import simplify, writes_unseen
from stitch_planner.stitcher.lower.cuda.templates import cuda_templates
from stitch_planner.stitcher.lower.graph_index import GraphIndex
from stitch_planner.stitcher.lower.kernel_ir import KernelProgram
from stitch_planner.stitcher.lower.templates import TEMPLATES, Template
from stitch_planner.stitcher.lower.templates.batch_norm import BatchNorm
from stitch_tools.models.graph import Graph, GraphNode
from stitch_tools.models.task import ReferenceFacts, Task


def simple_graph(task: Task, facts: ReferenceFacts, graph: Graph) -> Graph:
    """The graph of what a program of this task has to compute."""
    input_writes = task.contract.input_writes == "compared"
    updates = updates_buffers(task, facts)
    simple = simplify(graph, updates=updates, input_writes=input_writes)
    if task.target == "cpu":
        return simple  # oneDNN adds biases for nothing
    return for_gpu(simple, updates=updates or writes_unseen(simple))


def templates_for(task: Task, facts: ReferenceFacts, simple: Graph) -> tuple[Template, ...]:
    """Lowering templates of the task's target, in the order in which they are asked.

    Where running statistics have to be written, batch_norm is left to PyTorch: no template writes them.
    """
    among = TEMPLATES if task.target == "cpu" else cuda_templates(task.contract)
    updates = updates_buffers(task, facts) or writes_unseen(simple)
    return tuple(Updating() if updates and isinstance(one, BatchNorm) else one for one in among)


class Updating(BatchNorm):
    """batch_norm in training mode whose running statistics have to be written."""

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """Why PyTorch computes it; as the base class does where it is not batch_norm at all."""
        refusal = super().refuses(node, index)
        return refusal or "its running statistics have to be written, which PyTorch does"


def updates_buffers(task: Task, facts: ReferenceFacts) -> bool:
    """Whether a program of this task has to write buffers."""
    return task.contract.buffers == "updated" and bool(facts.mutated_buffers)


def write_files(program: KernelProgram, title: str, summary: list[str]) -> tuple[dict[str, bytes], str]:
    """The program's files, headers included, and which of them is compiled."""
    if program.target.startswith("cuda"):
        return emit_cu.cuda_files(program, title, summary), emit_cu.MAIN
    return emit_cpp.emit_cpu(program, title, summary), emit_cpp.MAIN
