"""Perplexity of a backbone on a task's questions, with its own tokenizer and with those of other rules.

    python scripts/perplexity.py smollm2 gsm8k_test.jsonl --count 200 --rules gpt-2 qwen2 llama-bpe

A rule is what a GGUF file calls `tokenizer.ggml.pre`: how text is split into words. From rule to rule a text may have
other tokens and more of them, so bits per byte are what compares. With --numbered five questions at a time are one
text, as a list: `1. ...`, a blank line, `2. ...`.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tyler.modeling.backbone import Backbone
from tyler.modeling.gguf_tokenizer import SPLITTINGS


def with_rule(tokenizer: PreTrainedTokenizerBase, rule: str) -> PreTrainedTokenizerBase:
    """The same tokens and merges, found by another rule."""
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    other = PreTrainedTokenizerFast(tokenizer_object=copy.deepcopy(tokenizer.backend_tokenizer))
    other.backend_tokenizer.pre_tokenizer = SPLITTINGS[rule].words()
    return other


@torch.no_grad()
def nats(backbone: Backbone, ids: Sequence[int]) -> float:
    """Minus the log-probability of all tokens after the first."""
    tokens = torch.tensor([ids], device=backbone.device)
    predicted = backbone.model(tokens).logits[0, :-1].float().log_softmax(-1)
    return -predicted.gather(1, tokens[0, 1:, None]).sum().item()


def numbered(questions: Sequence[str], size: int = 5) -> list[str]:
    """Lists of `size` questions each."""
    groups = [questions[start : start + size] for start in range(0, len(questions), size)]
    return ["\n\n".join(f"{number}. {text}" for number, text in enumerate(group, 1)) for group in groups]


def main() -> None:
    """Print a line for each tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbone", help="a backbone's id")
    parser.add_argument("file", type=Path, help="JSON lines with a question each")
    parser.add_argument("--count", type=int, default=200, help="of questions, the first ones")
    parser.add_argument("--rules", nargs="*", default=[], choices=list(SPLITTINGS))
    parser.add_argument("--numbered", action="store_true", help="five questions at a time, as a list")
    options = parser.parse_args()
    lines = options.file.read_text(encoding="utf-8").splitlines()[: options.count]
    questions = [json.loads(line)["question"] for line in lines]
    texts = numbered(questions) if options.numbered else questions
    backbone = Backbone.load(options.backbone)
    own = backbone.tokenizer
    losses: dict[tuple[int, ...], float] = {}  # most texts have the same tokens by each rule
    for name, tokenizer in {"its own": own, **{rule: with_rule(own, rule) for rule in options.rules}}.items():
        read = [tuple(tokenizer(text, add_special_tokens=False).input_ids) for text in texts]
        losses |= {ids: nats(backbone, ids) for ids in read if ids not in losses}
        loss = sum(losses[ids] for ids in read)
        tokens, size = sum(len(ids) - 1 for ids in read), sum(len(text.encode()) for text in texts)
        bits = loss / math.log(2) / size
        print(f"{name:10} {tokens:6} tokens, perplexity {math.exp(loss / tokens):7.3f}, {bits:.4f} bits per byte")


if __name__ == "__main__":
    main()
