"""The settings of a training run, from a TOML file."""

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stitch_mcp.rl.reward.facts import PresetName
from stitch_tools.errors import UsageError

TINY = "tiny"


class _Table(BaseModel):
    # An unknown key is an error: a misspelt setting that is ignored would change results silently.
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelTable(_Table):
    """`[model]`: what is trained."""

    path: str = TINY
    """Folder or Hugging Face name of a causal language model; `tiny`: a Llama of some 100,000 weights that is
    made on the spot."""
    lora_rank: int = Field(default=16, ge=0)
    """0 trains all weights."""
    lora_alpha: int = Field(default=32, gt=0)
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the policy runs. A GPU that times programs should train none."""
    vllm: bool = False
    """Whether vLLM generates, in the trainer's own processes."""
    warm_up_steps: int = Field(default=0, ge=0)
    """`tiny` alone: supervised steps on choices drawn at random, which teach the form of an answer and
    nothing about which is good."""


class PolicyTable(_Table):
    """`[policy]`: what a completion stands for."""

    kind: Literal["code", "choices"] = "code"
    """`code`: files of a program. `choices`: words that choose a variant, which is rendered by us."""


class DataTable(_Table):
    """`[data]`: what is trained and tested on."""

    train: Path | None = None
    """JSON lines of samples (`code`); a relative path starts at the TOML file."""
    heldout: Path | None = None
    train_rows: tuple[str, ...] = ()
    """Tasks of `choices`, as `silu 256x512`."""
    heldout_rows: tuple[str, ...] = ()
    refine_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the prompts that ask for a better program than one that was measured; the others ask for one
    from the task."""
    parents_per_task: int = Field(default=2, ge=1)
    """`choices`: measured variants of a task that prompts ask to improve."""


class RewardTable(_Table):
    """`[reward]`: how programs are rewarded."""

    preset: PresetName = "stitchcuda"


class GrpoTable(_Table):
    """`[grpo]`: the algorithm."""

    steps: int = Field(default=100, gt=0)
    group_size: int = Field(default=8, ge=2)
    """Completions of a prompt."""
    prompts_per_step: int = Field(default=4, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0)
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    kl: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the first policy; 0 keeps no reference model."""
    temperature: float = Field(default=1.0, gt=0)
    max_completion_tokens: int = Field(default=8192, ge=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    micro_batch: int | None = Field(default=None, ge=1)
    """Completions of a device in one backward pass; None: all of a step."""
    save_steps: int = Field(default=10, ge=1)
    gradient_checkpointing: bool = False


class BackendTable(_Table):
    """`[backend]`: where programs are judged."""

    kind: Literal["local", "ray"] = "local"
    address: str | None = None
    """Of a Ray cluster; None: one of this machine."""
    target: str = "cpu"
    python: str | None = None
    threads: int | None = Field(default=None, ge=1)
    workers: int = Field(default=1, ge=1)
    build_slots: int | None = Field(default=None, ge=1)
    devices: tuple[str, ...] = ()
    """GPUs that the workers take in turn, as CUDA_VISIBLE_DEVICES names them."""
    job_limit_s: float = Field(default=600.0, gt=0)
    bench_budget_s: float = Field(default=4.0, gt=0)
    compile_baselines: bool = False
    results: Path | None = None
    """Folder of results by content; None: in the output folder."""


class TrainConfig(_Table):
    """All settings of a run."""

    output: Path
    """Folder of checkpoints and logs; a relative path starts at the TOML file."""
    seed: int = 0
    model: ModelTable = ModelTable()
    policy: PolicyTable = PolicyTable()
    data: DataTable = DataTable()
    reward: RewardTable = RewardTable()
    grpo: GrpoTable = GrpoTable()
    backend: BackendTable = BackendTable()

    @model_validator(mode="after")
    def _fits(self) -> "TrainConfig":
        if self.policy.kind == "code" and self.data.train is None:
            raise ValueError("policy `code` needs data.train, a file of samples")
        if self.policy.kind == "choices" and not self.data.train_rows:
            raise ValueError("policy `choices` needs data.train_rows")
        if self.model.path == TINY and self.policy.kind != "choices":
            raise ValueError("the model `tiny` writes no program: it needs policy.kind = `choices`")
        if self.reward.preset == "milestone" and not self.backend.compile_baselines:
            raise ValueError("preset `milestone` needs backend.compile_baselines = true")
        if self.model.warm_up_steps and self.model.path != TINY:
            raise ValueError("model.warm_up_steps is for the model `tiny`")
        return self

    @property
    def batch(self) -> int:
        """Completions of one step."""
        return self.grpo.group_size * self.grpo.prompts_per_step


def read_config(path: Path) -> TrainConfig:
    """The settings in a TOML file, with absolute paths.

    Raises:
        UsageError: it cannot be read, or a setting does not fit; the message names each.
    """
    try:
        config = TrainConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="name a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}", hint="mend the file") from error
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, row['loc'])) or 'settings'}: {row['msg'].removeprefix('Value error, ')}"
            for row in error.errors()
        )
        raise UsageError(f"{path}: {wrong}", hint="see docs/rl/training.md") from error
    base = path.resolve().parent
    data = config.data.model_copy(
        update={"train": _below(base, config.data.train), "heldout": _below(base, config.data.heldout)}
    )
    backend = config.backend.model_copy(update={"results": _below(base, config.backend.results)})
    return config.model_copy(
        update={"output": (base / config.output).resolve(), "data": data, "backend": backend}
    )


def _below(base: Path, path: Path | None) -> Path | None:
    return None if path is None else (base / path).resolve()
