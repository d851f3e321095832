"""Measures a checkpoint on held-out tasks."""

from pathlib import Path

from peft import PeftModel

from stitch_mcp.rl.backends.jobs import Backend
from stitch_mcp.rl.reward.presets import find_preset
from stitch_mcp.rl.training.checkpoints import newest_whole
from stitch_mcp.rl.training.evaluation import ModelEvaluation, evaluate_rollouts, write_evaluation
from stitch_mcp.rl.training.rewarding import RewardFunction
from stitch_mcp.rl.training.train_config import TrainConfig
from stitch_mcp.rl.training.trainer.generation import generate
from stitch_mcp.rl.training.trainer.loading import LoadedModel, load_model, load_prompts, policy_of
from stitch_tools.errors import UsageError

BASE, NEWEST = "base", "newest"


def evaluate(
    config: TrainConfig, backend: Backend, *, checkpoint: str = NEWEST, samples: int = 4
) -> ModelEvaluation:
    """A model on the held-out prompts of its run; kept in the run's folder.

    Args:
        config: the run's settings.
        backend: judges programs.
        checkpoint: `base` (before training), `newest`, or a folder's name such as checkpoint-20 or final.
        samples: completions of each prompt.

    Raises:
        UsageError: there is no such checkpoint, or nothing is held out.
    """
    folder = _folder(config, checkpoint)
    # A tiny model is made with the training prompts: the run's folder has it unless nothing was trained yet.
    loaded = load_model(config, load_prompts(config, backend, heldout=False))
    if folder is not None and config.model.lora_rank:
        adapted = PeftModel.from_pretrained(loaded.model, str(folder))
        loaded = LoadedModel(adapted, loaded.tokenizer)
    elif folder is not None:
        trained = type(loaded.model).from_pretrained(str(folder))
        loaded = LoadedModel(trained, loaded.tokenizer)
    if config.model.device == "cuda":
        loaded.model.to("cuda")
    prompts = load_prompts(config, backend, heldout=True)
    completions = generate(
        loaded,
        prompts,
        samples=samples,
        temperature=config.grpo.temperature,
        most_tokens=config.grpo.max_completion_tokens,
        seed=config.seed,
    )
    rewards = RewardFunction(policy_of(config), backend, find_preset(config.reward.preset))
    rollouts = rewards.rollouts(0, completions)
    name = BASE if folder is None else folder.name
    evaluation = evaluate_rollouts(rollouts, checkpoint=name, samples=samples, seed=config.seed)
    write_evaluation(evaluation, config.output)
    return evaluation


def _folder(config: TrainConfig, checkpoint: str) -> Path | None:
    """The folder of a checkpoint; None: the model before training."""
    if checkpoint == BASE:
        return None
    found = newest_whole(config.output) if checkpoint == NEWEST else config.output / checkpoint
    if found is None or not found.is_dir():
        raise UsageError(
            f"{config.output} holds no checkpoint {checkpoint}", hint="train first, or name --checkpoint base"
        )
    return found
