"""One GRPO step in TRL's own environment, with a tiny model made on the spot. Prints the rewards.

The model's own completions hold no program. The reward function is asked for the row's completion as well, as
TRL asks: by keyword, with the dataset's columns.
"""

import json
import sys
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from stitch_mcp.rl.reward.adapters.trl_reward import make_reward


def main() -> None:
    row = json.load(sys.stdin)
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", "make", "it", "fast"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
    reward = make_reward(preset=row["preset"], side_by_side=1)
    seen = []

    def recorded(**given):
        seen.append(reward(**given))
        return seen[-1]

    rows = Dataset.from_list([{"prompt": "make it fast", "task": json.dumps(row["task"])}] * 2)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=4,
            max_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
        )
        GRPOTrainer(
            model=model, reward_funcs=[recorded], args=config, train_dataset=rows, processing_class=fast
        ).train()
    asked = reward(prompts=[row["prompt"]], completions=[row["completion"]], task=[json.dumps(row["task"])])
    print(json.dumps({"trained_on": seen, "reward": asked[0]}))


main()
