"""Completions of a model for prompts, outside of a trainer."""

from collections.abc import Sequence

import torch

from stitch_mcp.rl.training.policies import PromptRow
from stitch_mcp.rl.training.rewarding import Completion
from stitch_mcp.rl.training.tokenizing import prompt_of
from stitch_mcp.rl.training.trainer.loading import LoadedModel


def generate(
    loaded: LoadedModel,
    rows: Sequence[PromptRow],
    *,
    samples: int,
    temperature: float,
    most_tokens: int,
    seed: int,
) -> list[Completion]:
    """`samples` completions of each prompt, one prompt after the other.

    Args:
        loaded: model and tokenizer.
        rows: the prompts.
        samples: completions of each.
        temperature: 0 takes the likeliest token: then all samples of a prompt are equal.
        most_tokens: longest completion.
        seed: of the sampling.
    """
    tokenizer, model = loaded.tokenizer, loaded.model
    torch.manual_seed(seed)
    model.eval()
    named = model.generation_config.eos_token_id
    ends = set(named if isinstance(named, list) else [named]) | {tokenizer.eos_token_id}
    sampling = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
    completions: list[Completion] = []
    for group, row in enumerate(rows):
        encoded = tokenizer([_text(row, loaded)], return_tensors="pt").to(model.device)
        with torch.inference_mode():
            answered = model.generate(
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
                max_new_tokens=most_tokens,
                num_return_sequences=samples if temperature > 0 else 1,
                pad_token_id=tokenizer.pad_token_id,
                top_k=0,
                **sampling,
            )
        for ids in answered[:, encoded["input_ids"].shape[1] :].tolist():
            end = next((place for place, token in enumerate(ids) if token in ends), None)
            own = ids if end is None else ids[: end + 1]
            text = tokenizer.decode(own, skip_special_tokens=True)
            completion = Completion(
                row=row, group=group, content=text, tokens=len(own), truncated=end is None
            )
            completions += [completion] * (1 if temperature > 0 else samples)
    return completions


def _text(row: PromptRow, loaded: LoadedModel) -> str:
    prompt = prompt_of(row, loaded.tokenizer)
    if isinstance(prompt, str):
        return prompt
    return loaded.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
