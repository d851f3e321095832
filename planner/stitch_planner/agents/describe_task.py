"""A task and its plan in the words of a prompt."""

from collections.abc import Iterable

from stitch_planner.agents.describe_plan import describe_plan
from stitch_planner.agents.prompting import clipped, fenced, render
from stitch_planner.context import RunContext
from stitch_planner.plan import Plan
from stitch_planner.runs.run import started
from stitch_tools.machine.devices import cpu_info
from stitch_tools.models.environment import Environment
from stitch_tools.models.graph import Ceilings
from stitch_tools.models.task import Contract, TensorSpec

_MOST_REFERENCE_CHARS = 40_000
_VECTORS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile")
_MOST_SPECS = 40


def describe_task(context: RunContext, plan: Plan) -> str:
    """What stays the same in all prompts of a run with this plan."""
    task, facts, store = context.task, context.facts, context.run.store
    environment = store.get_fact(started(context.run.state).environment, Environment)
    sources = "\n\n".join(
        f"# {file.path}\n{store.get(file.sha256).decode('utf-8', errors='replace')}" for file in task.files
    )
    return render(
        "task",
        {
            "mode": "training" if facts.training else "evaluation",
            "reference": fenced(clipped(sources, _MOST_REFERENCE_CHARS), "python data"),
            "target": task.target,
            "device": _device(environment, context.ceilings),
            "inputs": _specs(facts.inputs),
            "outputs": _specs(facts.outputs),
            "parameters": _specs(facts.parameters),
            "contract": _contract(task.contract),
            "plan": describe_plan(plan),
        },
    ).strip()


def _device(environment: Environment, ceilings: Ceilings | None) -> str:
    words = [environment.gpu or _processor(environment)]
    if ceilings is not None:
        words.append(f"copies {ceilings.copy_bytes_per_s / 1e9:.3g} GB/s")
        words += [f"{kind} products {rate / 1e9:.3g} GFLOP/s" for kind, rate in ceilings.flops_per_s.items()]
    return ", ".join(words)


def _processor(environment: Environment) -> str:
    cpu = cpu_info()
    caches = [
        f"{name} {size >> 10} KiB"
        for name, size in (("L1d", cpu.l1d_bytes), ("L2", cpu.l2_bytes), ("L3", cpu.l3_bytes))
        if size
    ]
    vectors = [name for name in _VECTORS if name in cpu.flags]
    return ", ".join([f"{environment.cpu}, {cpu.usable} usable CPUs", *caches, *vectors])


def _specs(specs: Iterable[TensorSpec]) -> str:
    rows = [
        f"{spec.name} {spec.dtype}{list(spec.shape)}"
        + (f" with strides {list(spec.stride)}" if spec.stride else "")
        for spec in specs
    ]
    rest = len(rows) - _MOST_SPECS
    return ", ".join(rows[:_MOST_SPECS]) + (f", and {rest} more" if rest > 0 else "") or "none"


def _contract(contract: Contract) -> str:
    tolerance = contract.tolerance
    words = [
        f"error at most {tolerance.atol:g} + {tolerance.rtol:g} of the output's rms",
        f"matrix products in {contract.matmul_precision} or better",
        f"convolutions in {contract.conv_precision} or better",
    ]
    if contract.shape_policy == "fixed":
        words.append("fixed shapes")
    if contract.buffers == "updated":
        words.append("buffers are updated as in the reference")
    return ", ".join(words)
