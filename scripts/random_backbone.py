"""Write a small backbone of random weights around a real tokenizer: real input without a download.

    python scripts/random_backbone.py --tokenizer PATH --output runs/random-qwen2

It has a real model's tokenizer and chat template and a real architecture, and knows nothing. `tyler train stage1` and
`tyler solve` take the folder where they would take a Hub id.
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from tyler.modeling.backbone import no_progress_bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a folder with tokenizer.json and tokenizer_config.json")
    parser.add_argument("--output", required=True)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=arguments.dim,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.dim // 16,
        num_key_value_heads=max(1, arguments.dim // 32),
        intermediate_size=3 * arguments.dim,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=arguments.dim**-0.5,  # at the usual 0.02 so narrow a model hardly looks at its context
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    with no_progress_bar():
        model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    print(
        f"{model.num_parameters():,} random parameters and the tokenizer of {arguments.tokenizer} in {arguments.output}"
    )


if __name__ == "__main__":
    main()
