"""Loads the model and tokenizer of a run, and its prompts as the tokenizer takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from stitch_mcp.rl.backends.jobs import Backend
from stitch_mcp.rl.reward.presets import find_preset
from stitch_mcp.rl.training.policies import ChoicePolicy, CodePolicy, Policy, PromptRow
from stitch_mcp.rl.training.prompt_rows import choice_rows, parse_task, read_rows, vocabulary
from stitch_mcp.rl.training.tokenizing import prepare_tokenizer
from stitch_mcp.rl.training.train_config import TINY, TrainConfig
from stitch_mcp.rl.training.trainer.tiny_model import make_model, make_tokenizer, warm_up
from stitch_mcp.rl.training.variants.rows import all_choices
from stitch_tools.errors import EnvironmentMissingError, UsageError

_BASE = "base"


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def processes_of(config: TrainConfig) -> PartialState:
    """The training processes of this run, one a GPU."""
    return PartialState(cpu=config.model.device == "cpu")


def policy_of(config: TrainConfig) -> Policy:
    """What a completion stands for in this run."""
    return CodePolicy() if config.policy.kind == "code" else ChoicePolicy(config.backend.target)


def load_prompts(config: TrainConfig, backend: Backend, *, heldout: bool) -> list[PromptRow]:
    """The training prompts of a run, or those that are held out.

    Raises:
        UsageError: the settings name none, or a file of samples cannot be used.
    """
    data = config.data
    if config.policy.kind == "code":
        path = data.heldout if heldout else data.train
        if path is None:
            raise UsageError("the settings name no held-out samples", hint="set data.heldout")
        return read_rows(path)
    named = data.heldout_rows if heldout else data.train_rows
    if not named:
        raise UsageError("the settings name no held-out tasks", hint="set data.heldout_rows")
    return choice_rows(
        [parse_task(text) for text in named],
        config.output / "tasks",
        config.backend.target,
        backend,
        find_preset(config.reward.preset),
        parents=data.parents_per_task,
        seed=config.seed,
    )


def load_model(config: TrainConfig, prompts: Sequence[PromptRow]) -> LoadedModel:
    """The model before training; a tiny one is made once, and kept in the output folder.

    Raises:
        UsageError: the model or its tokenizer cannot be used.
        EnvironmentMissingError: it is to run on a GPU and there is none.
    """
    if config.model.device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentMissingError(
            "the policy is to run on a GPU, and there is none", hint="set model.device"
        )
    path = config.model.path
    if path == TINY:
        base = config.output / _BASE
        # One process makes it: another one would read files that are half written.
        with processes_of(config).main_process_first():
            if not (base / "config.json").is_file():
                _make_tiny(config, prompts, base)
        path = str(base)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, config.model.dtype))
    except (OSError, ValueError) as error:
        message = str(error).splitlines()[0]
        raise UsageError(f"the model {path} cannot be loaded: {message}", hint="set model.path") from error
    prepare_tokenizer(tokenizer)
    return LoadedModel(model, tokenizer)


def _make_tiny(config: TrainConfig, prompts: Sequence[PromptRow], base: Path) -> None:
    target = config.backend.target
    tasks = [parse_task(text) for text in (*config.data.train_rows, *config.data.heldout_rows)]
    tokenizer = make_tokenizer(vocabulary(tasks, target))
    model = make_model(tokenizer, config.seed)
    if config.model.warm_up_steps:
        answers = [" ".join(choice) for choice in all_choices(target)]
        texts = [row.text for row in prompts]
        warm_up(model, tokenizer, texts, answers, config.model.warm_up_steps, config.seed)
    tokenizer.save_pretrained(base)
    model.save_pretrained(base)  # Its config.json is written last but one: see `load_model`.
