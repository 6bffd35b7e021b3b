"""The mini backbone's tokenizer: whole words with their leading space, single digits, and bytes for everything else.

It is a byte-level BPE model without merges: a piece that is in the vocabulary is one token, any other piece falls
apart into its bytes. So any text is encoded without unknowns and decodes to itself.
"""

from __future__ import annotations

from collections import Counter

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tyler.tasks.mini.world import corpus

PIECES = r' ?\\boxed\{|```|\n\n|\n|  |":|",| ?->| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]|\s'
PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
CUES = ("careful", "wrong", "plain", "numbered", "brief", "reversed")
"""One word per style, in the order of `STYLES`; in pretraining, blocks of embeddings use them to name a style."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build(num_texts: int = 6000) -> PreTrainedTokenizerFast:
    """The tokenizer over every piece that occurs at least 5 times in `num_texts` corpus texts."""
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    counts: Counter[str] = Counter()
    for example in corpus(seed=0, count=num_texts):
        counts.update(piece for text in (example.prompt, example.completion) for piece, _ in splitter.pre_tokenize_str(text))
    counts.update({f"Ġ{cue}": 5 for cue in CUES})
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = sorted(piece for piece, count in counts.items() if count >= 5 and len(piece) > 1)
    vocab = {token: i for i, token in enumerate([PAD, END, USER, ASSISTANT, *words, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        padding_side="left",
    )
