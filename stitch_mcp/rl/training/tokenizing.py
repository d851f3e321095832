"""Makes tokenizers fit for training, whatever their authors left out."""

from typing import Protocol

from stitch_mcp.rl.training.policies import PromptRow, plain_prompt
from stitch_tools.errors import UsageError


class TokenizerParts(Protocol):
    """What training asks of a tokenizer; those of transformers have it."""

    eos_token: str | None
    eos_token_id: int | None
    pad_token: str | None
    pad_token_id: int | None
    padding_side: str
    chat_template: object


def prepare_tokenizer(tokenizer: TokenizerParts) -> None:
    """Makes it pad on the left, with the end token where it has no padding token.

    Raises:
        UsageError: it has no end token: no completion could ever be seen as finished.
    """
    if tokenizer.eos_token_id is None:
        raise UsageError(
            "the tokenizer has no end token", hint="set eos_token in the model's tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"


def prompt_of(row: PromptRow, tokenizer: TokenizerParts) -> str | list[dict[str, str]]:
    """The prompt as a trainer takes it: messages where the tokenizer has a chat template, else plain text."""
    if not row.messages:
        return row.text
    if getattr(tokenizer, "chat_template", None):
        return [dict(message) for message in row.messages]
    return plain_prompt(row.messages)
