"""A language model of some 100,000 weights with a vocabulary of whole words, made on the spot.

It learns to choose among variants within minutes on a CPU; it stands for no real model.
"""

import random
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_PAD, _END, _UNKNOWN = "<pad>", "<end>", "<unknown>"
_WARM_UP_RATE = 3e-3
_WARM_UP_BATCH = 32


def make_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer with one token a word; words are separated by spaces."""
    vocabulary = {word: index for index, word in enumerate([_PAD, _END, _UNKNOWN, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        eos_token=_END,
        unk_token=_UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama of two layers with random weights, for this tokenizer."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def warm_up(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    answers: Sequence[str],
    steps: int,
    seed: int,
) -> float:
    """Teaches the form of an answer: prompts with answers drawn at random, none better than another.

    Returns the last loss; without it a random model would hardly ever write a usable choice, and groups
    would have no variance to learn from.
    """
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_WARM_UP_RATE)
    loss_value = float("nan")
    model.train()
    for _ in range(steps):
        pairs = [(rng.choice(prompts), rng.choice(answers)) for _ in range(_WARM_UP_BATCH)]
        texts = [f"{prompt}{answer} {_END}" for prompt, answer in pairs]
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        labels = batch["input_ids"].clone()
        for row, (_, answer) in enumerate(pairs):
            labels[row, : -(len(answer.split()) + 1)] = -100  # padding is on the left: answers end together
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_value = float(loss.detach())
    model.eval()
    return loss_value
