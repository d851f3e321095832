"""GRPO by TRL on the judge's rewards: group-relative advantages (DeepSeekMath, arXiv 2402.03300).

Resuming is exact: the newest whole checkpoint holds weights, optimizer and generators, prompts come in a
fixed order, results of programs that were judged are kept by content, and log lines of repeated steps are
cut.
"""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from stitch_mcp.rl.backends.jobs import Backend
from stitch_mcp.rl.reward.presets import find_preset
from stitch_mcp.rl.training.checkpoints import mark_complete, newest_whole, remove_torn, step_of
from stitch_mcp.rl.training.policies import PromptRow
from stitch_mcp.rl.training.prompt_rows import mixed
from stitch_mcp.rl.training.rewarding import Completion, RewardFunction
from stitch_mcp.rl.training.tokenizing import prompt_of
from stitch_mcp.rl.training.train_config import TrainConfig
from stitch_mcp.rl.training.trainer.loading import (
    LoadedModel,
    load_model,
    load_prompts,
    policy_of,
    processes_of,
)
from stitch_mcp.rl.training.training_log import Dashboard, Rollout, TrainingLog, alarms_of, read_metrics
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact
from stitch_tools.storage.store import write_atomically

_SETTINGS = "settings.json"
_MAY_CHANGE = ("steps", "save_steps")


class TrainResult(Fact):
    """What a call of `train` did."""

    output: str
    first_step: int
    """Steps that were done before."""
    last_step: int
    reward_before: float | None
    """Mean over the completions of the first step that the log holds."""
    reward_after: float | None
    """The same of the last step."""
    removed: tuple[str, ...] = ()
    """Torn checkpoints."""
    alarms: tuple[str, ...] = ()
    """Jumps of reward without correctness, and cheats that were paid."""


class CheckpointMarks(TrainerCallback):
    """Marks each checkpoint once all its files are written."""

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Called by the trainer behind its last write, in each process: each writes its own generators."""
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class LoggedRewards:
    """The function that TRL calls. It keeps what the reward consists of; TRL receives the totals."""

    __name__ = "judge"

    def __init__(self, rewards: RewardFunction, log: TrainingLog, end_ids: Sequence[int], group: int) -> None:
        self._rewards = rewards
        self._log = log
        self._end_ids = frozenset(end_ids)
        self._group = group

    def __call__(
        self,
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        row: list[str],
        trainer_state: TrainerState,
        **_: object,
    ) -> list[float]:
        """One reward a completion."""
        step = trainer_state.global_step
        # The processes hold consecutive pieces of a step, which need not end where a group does.
        first = PartialState().process_index * len(completion_ids)
        given = [
            Completion(
                row=PromptRow.model_validate_json(row[index]),
                group=(first + index) // self._group,
                content=completions[index],
                tokens=len(ids),
                truncated=not ids or ids[-1] not in self._end_ids,
            )
            for index, ids in enumerate(completion_ids)
        ]
        rollouts = self._rewards.rollouts(step, given)
        gathered: list[Rollout] = gather_object(rollouts)
        if trainer_state.is_world_process_zero:
            self._log.add(gathered)
        return [rollout.reward for rollout in rollouts]


def train(config: TrainConfig, backend: Backend, *, resume: bool = False) -> TrainResult:
    """The end of a training run: its checkpoints and logs lie in `config.output`.

    Args:
        config: all settings.
        backend: judges programs; the caller closes it.
        resume: continue with the newest whole checkpoint; else the folder must hold no run.

    Raises:
        UsageError: the folder holds a run and `resume` was not asked for, or holds one of other settings.
    """
    state = processes_of(config)
    # One process opens the folder: the others would find a run in it that has just begun.
    removed = _open_folder(config, resume=resume) if state.is_main_process else []
    state.wait_for_everyone()
    start = newest_whole(config.output) if resume else None
    log = TrainingLog(config.output, _dashboard(config.output))
    done = step_of(start) if start else 0
    if state.is_main_process:
        log.cut(done)
    prompts = load_prompts(config, backend, heldout=False)
    loaded = load_model(config, prompts)
    trainer = _trainer(config, loaded, prompts, backend, log)
    if done < config.grpo.steps:
        trainer.train(resume_from_checkpoint=str(start) if start else None)
    trainer.save_model(str(config.output / "final"))
    rewards = [row.reward for row in read_metrics(config.output) if row.skill == "all"]
    return TrainResult(
        output=str(config.output),
        first_step=done,
        last_step=trainer.state.global_step or done,
        reward_before=rewards[0] if rewards else None,
        reward_after=rewards[-1] if rewards else None,
        removed=tuple(path.name for path in removed),
        alarms=tuple(alarms_of(config.output)),
    )


def _trainer(
    config: TrainConfig, loaded: LoadedModel, prompts: Sequence[PromptRow], backend: Backend, log: TrainingLog
) -> GRPOTrainer:
    grpo = config.grpo
    # One row a prompt and step, in an order of our own, so that a resumed run continues in it.
    rows = mixed(prompts, config.data.refine_share, grpo.steps * grpo.prompts_per_step, config.seed)
    dataset = Dataset.from_list(
        [{"prompt": prompt_of(row, loaded.tokenizer), "row": row.model_dump_json()} for row in rows]
    )
    rewards = RewardFunction(policy_of(config), backend, find_preset(config.reward.preset))
    judged = LoggedRewards(rewards, log, _end_ids(loaded), grpo.group_size)
    lora = LoraConfig(
        r=config.model.lora_rank,
        lora_alpha=config.model.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return GRPOTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        reward_funcs=[judged],
        args=_arguments(config),
        train_dataset=dataset,
        peft_config=lora if config.model.lora_rank else None,
        callbacks=[CheckpointMarks()],
    )


def _arguments(config: TrainConfig) -> GRPOConfig:
    grpo = config.grpo
    world = processes_of(config).num_processes
    if config.batch % world:
        raise UsageError(
            f"{config.batch} completions of a step cannot be shared by {world} processes",
            hint="change grpo.group_size or grpo.prompts_per_step",
        )
    own = config.batch // world
    micro = grpo.micro_batch or own
    if own % micro:
        raise UsageError(f"grpo.micro_batch {micro} does not divide the {own} completions of a process")
    return GRPOConfig(
        output_dir=str(config.output),
        seed=config.seed,
        max_steps=grpo.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=own // micro,
        num_generations=grpo.group_size,
        learning_rate=grpo.learning_rate,
        lr_scheduler_type="constant",
        epsilon=grpo.clip_low,
        epsilon_high=grpo.clip_high,
        beta=grpo.kl,
        temperature=grpo.temperature,
        max_completion_length=grpo.max_completion_tokens,
        max_grad_norm=grpo.max_grad_norm,
        shuffle_dataset=False,
        save_steps=grpo.save_steps,
        save_total_limit=3,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=config.model.device == "cpu",
        bf16=config.model.dtype == "bfloat16",
        gradient_checkpointing=grpo.gradient_checkpointing,
        use_vllm=config.model.vllm,
        dataloader_num_workers=0,
    )


def _end_ids(loaded: LoadedModel) -> list[int]:
    """The tokens that end a completion: the tokenizer's and those that the model names."""
    named = loaded.model.generation_config.eos_token_id
    more = named if isinstance(named, list) else [] if named is None else [named]
    return [loaded.tokenizer.eos_token_id, *more]


def _open_folder(config: TrainConfig, *, resume: bool) -> list[Path]:
    """Torn checkpoints that were removed; the folder holds this run's settings."""
    config.output.mkdir(parents=True, exist_ok=True)
    path = config.output / _SETTINGS
    settings = json.loads(config.model_dump_json())
    if path.is_file():
        if not resume:
            raise UsageError(
                f"{config.output} holds a run", hint="continue it with --resume, or change `output`"
            )
        if changed := _changed(json.loads(path.read_bytes()), settings):
            raise UsageError(
                f"the run in {config.output} has other settings: {', '.join(changed)}",
                hint="only grpo.steps and grpo.save_steps may change",
            )
    elif resume:
        raise UsageError(f"{config.output} holds no run", hint="leave --resume out")
    write_atomically(path, json.dumps(settings, indent=1).encode("utf-8"))
    return remove_torn(config.output)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of the settings that differ and may not; where programs are judged is no part of a run."""
    names: list[str] = []
    for table in before.keys() | after.keys():
        old, new = before.get(table), after.get(table)
        if table in ("backend", "output") or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            differ = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
            names += [f"{table}.{key}" for key in differ if key not in _MAY_CHANGE]
        else:
            names.append(table)
    return sorted(names)


def _dashboard(folder: Path) -> Dashboard | None:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard")).add_scalar
