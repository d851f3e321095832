"""Computes memory, time of a step and GPU-hours of a training run from unit costs. Pure arithmetic."""

import math

from pydantic import Field

from stitch_tools.models.base import Fact

_GB = 1e9
_ADAM_BYTES = 16
"""A trained weight in mixed precision: weight and gradient in 16 bits, fp32 copy and two moments."""
_ACTIVATION_BYTES_PER_TOKEN_LAYER_WIDTH = 34
"""Without recomputation, attention scores left out as fused kernels keep none (Korthikanti et al., arXiv
2205.05198, section 4.1); with recomputation each layer keeps its input alone, 2 bytes a value."""


class ModelShape(Fact):
    """A decoder-only transformer."""

    weights_billion: float = Field(gt=0)
    layers: int = Field(gt=0)
    width: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_width: int = Field(gt=0)

    def lora_weights(self, rank: int) -> float:
        """Weights of adapters on all linear layers: about 2 x rank x (in + out) of seven matrices a layer."""
        # Attention's four matrices are near width x width, the three of the feed-forward near width x 4
        # width.
        return self.layers * rank * self.width * (4 * 2 + 3 * 5)

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token in 16 bits."""
        return 2.0 * self.layers * self.kv_heads * self.head_width * 2


class RunShape(Fact):
    """What is run."""

    steps: int = Field(default=200, gt=0)
    group_size: int = Field(default=8, gt=0)
    prompts_per_step: int = Field(default=16, gt=0)
    prompt_tokens: int = Field(default=6_000, gt=0)
    completion_tokens: int = Field(default=6_000, gt=0)
    """Mean of a completion."""
    longest_tokens: int = Field(default=16_384, gt=0)
    """Prompt and completion together, of the longest."""
    lora_rank: int = Field(default=64, ge=0)
    """0 trains all weights."""
    usable_share: float = Field(default=0.8, ge=0, le=1)
    """Completions that give a program to judge."""
    accepted_share: float = Field(default=0.4, ge=0, le=1)
    """Completions whose program is correct, which is then timed."""
    repeated_share: float = Field(default=0.1, ge=0, lt=1)
    """Programs that were judged before, equal by content."""


class UnitCosts(Fact):
    """What one unit takes; measure them on your own machines."""

    build_cpu_s: float = Field(default=3.0, gt=0)
    """Compiler, of one native program."""
    check_gpu_s: float = Field(default=2.5, gt=0)
    """Check of a program: many may run on a GPU side by side."""
    time_gpu_s: float = Field(default=4.0, gt=0)
    """Timing of an accepted program: one at a time on a GPU."""
    checks_side_by_side: int = Field(default=4, gt=0)
    peak_tflops: float = Field(default=989.0, gt=0)
    """Of a training GPU, dense 16-bit."""
    train_utilization: float = Field(default=0.35, gt=0, le=1)
    decode_tokens_per_s: float = Field(default=1_500.0, gt=0)
    """Of one GPU that holds its share of the model, over all sequences at once."""


class ClusterShape(Fact):
    """What it runs on."""

    train_gpus: int = Field(default=4, gt=0)
    """They generate and train in turn."""
    judge_gpus: int = Field(default=1, gt=0)
    """They only check and time: no training beside a timing."""
    gpu_memory_gb: float = Field(default=141.0, gt=0)
    judge_cpu_cores: int = Field(default=32, gt=0)
    replicas: int = Field(default=1, gt=0)
    """Copies of the model over the training GPUs; each is shared by train_gpus / replicas."""


class Sizing(Fact):
    """What a run takes."""

    memory_gb: float
    """Of one training GPU, at its largest phase."""
    memory_parts_gb: dict[str, float]
    fits: bool
    sequences_at_once: int
    """Longest sequences whose keys and values fit beside the weights, of one replica."""
    generate_s: float
    """Of a step."""
    judge_s: float
    judge_parts_s: dict[str, float]
    """Builds over all cores, checks and timings over all judge GPUs; they overlap, so the largest counts."""
    train_s: float
    step_s: float
    slowest: str
    rollouts_per_hour: float
    hours: float
    train_gpu_hours: float
    judge_gpu_hours: float


def size_run(
    model: ModelShape,
    run: RunShape | None = None,
    costs: UnitCosts | None = None,
    cluster: ClusterShape | None = None,
) -> Sizing:
    """Memory, time and GPU-hours of a run; the phases of a step follow one another.

    Args:
        model: shape of the policy.
        run: what is run.
        costs: what one unit takes.
        cluster: what it runs on.
    """
    run, costs, cluster = run or RunShape(), costs or UnitCosts(), cluster or ClusterShape()
    memory = _memory_gb(model, run, cluster)
    # Training and generation take turns: the cache of one and the activations of the other share the rest.
    fixed = memory["weights"] + memory["trained"]
    shared = max(cluster.train_gpus // cluster.replicas, 1)
    room = max(0.9 * cluster.gpu_memory_gb - fixed, 0.0) * _GB * shared
    at_once = int(room / (model.kv_bytes_per_token * run.longest_tokens))
    total = fixed + max(memory["activations"], memory["one_sequence_cache"])
    completions = run.group_size * run.prompts_per_step
    generate_s = completions * run.completion_tokens / (costs.decode_tokens_per_s * cluster.train_gpus)
    judge_parts = _judge_s(completions, run, costs, cluster)
    tokens = completions * (run.prompt_tokens + run.completion_tokens)
    # Forward and backward through frozen weights is 4 operations a weight and token, through trained ones 6;
    # the forward of the old policy's probabilities adds 2.
    per_weight = 8.0 if run.lora_rank == 0 else 6.0
    rate = costs.peak_tflops * 1e12 * costs.train_utilization * cluster.train_gpus
    train_s = per_weight * model.weights_billion * 1e9 * tokens / rate
    phases = {"generate": generate_s, "judge": max(judge_parts.values()), "train": train_s}
    step_s = sum(phases.values())
    hours = step_s * run.steps / 3600
    return Sizing(
        memory_gb=total,
        memory_parts_gb=memory,
        fits=total <= 0.95 * cluster.gpu_memory_gb and at_once >= 1,
        sequences_at_once=at_once,
        generate_s=generate_s,
        judge_s=phases["judge"],
        judge_parts_s=judge_parts,
        train_s=train_s,
        step_s=step_s,
        slowest=max(phases, key=lambda name: phases[name]),
        rollouts_per_hour=completions * 3600 / step_s,
        hours=hours,
        train_gpu_hours=hours * cluster.train_gpus,
        judge_gpu_hours=hours * cluster.judge_gpus,
    )


def _memory_gb(model: ModelShape, run: RunShape, cluster: ClusterShape) -> dict[str, float]:
    """Of one training GPU, by part; weights and states are sharded over a replica's GPUs."""
    shared = max(cluster.train_gpus // cluster.replicas, 1)
    weights = model.weights_billion * 1e9
    trained = model.lora_weights(run.lora_rank) if run.lora_rank else weights
    # Full training holds the 16-bit weights within its states.
    states = trained * (_ADAM_BYTES if run.lora_rank else _ADAM_BYTES - 2)
    kept = 2.0 * run.longest_tokens * model.width * model.layers
    one_layer = _ACTIVATION_BYTES_PER_TOKEN_LAYER_WIDTH * run.longest_tokens * model.width
    return {
        "weights": 2 * weights / shared / _GB,
        "trained": states / shared / _GB,
        "activations": (kept + one_layer) / _GB,
        "one_sequence_cache": model.kv_bytes_per_token * run.longest_tokens / shared / _GB,
    }


def _judge_s(completions: int, run: RunShape, costs: UnitCosts, cluster: ClusterShape) -> dict[str, float]:
    """Seconds of a step for builds, checks and timings, each over all that works at it."""
    programs = math.ceil(completions * run.usable_share * (1 - run.repeated_share))
    timed = completions * run.accepted_share * (1 - run.repeated_share)
    return {
        "build": programs * costs.build_cpu_s / cluster.judge_cpu_cores,
        "check": programs * costs.check_gpu_s / (cluster.judge_gpus * costs.checks_side_by_side),
        "time": timed * costs.time_gpu_s / cluster.judge_gpus,
    }
