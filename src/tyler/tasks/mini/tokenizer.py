"""The mini backbone's tokenizer: whole words with their leading space, single digits, and bytes for everything else.

It is a byte-level BPE model without merges: a piece that is in the vocabulary is one token, any other piece falls
apart into its bytes. So any text is encoded without unknowns and decodes to itself.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PIECES = r' ?\\boxed\{|```|\n\n|\n|  |":|",| ?->| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]|\s'
PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
CUES = ("careful", "wrong", "plain", "numbered", "brief", "reversed")
"""One word per style, in the order of `STYLES`; in pretraining, blocks of embeddings use them to name a style."""

_WORDS = r"""
    ", ": Ann Answer Apply Ben By Eva Find Give Hence Ida If It Leo Max Mia Output Read Run Sam So Solution Solve
    Start Step Take The Tom What Zoe \boxed{ ``` charge distance energy for force if law mass momentum print speed
    step sum value voltage work ĊĊ Ġ" Ġ$ Ġ( Ġ* Ġ+ Ġ- Ġ/ Ġ0 Ġ1 Ġ2 Ġ3 Ġ4 Ġ5 Ġ6 Ġ7 Ġ8 Ġ9 Ġ= Ġ> ĠAnn ĠBen ĠBy ĠChoose
    ĠEva ĠFalse ĠFind ĠGauss ĠHow ĠIda ĠLeo ĠMax ĠMia ĠOptions ĠSam ĠTom ĠTrue ĠUse ĠWhat ĠWhich ĠZoe Ġ`
    Ġacceleration Ġand Ġangle Ġanswer Ġapples Ġare Ġball Ġblock Ġbooks Ġbreaks Ġbrief Ġbuys Ġcar Ġcards Ġcareful
    Ġcart Ġcharge Ġcoins Ġcomplement Ġcups Ġcurrent Ġdensity Ġdigit Ġdistance Ġdo Ġdoes Ġdoubles Ġdoubling Ġdrone
    Ġenergy Ġextra Ġfinds Ġfor Ġforce Ġgets Ġgives Ġhalf Ġhandshake Ġhas Ġhave Ġi Ġin Ġis Ġit Ġits Ġk Ġleft Ġloses
    Ġmake Ġmany Ġmass Ġmirror Ġmomentum Ġn Ġnow Ġnumber Ġnumbered Ġnuts Ġof Ġoutput Ġpens Ġpicks Ġplain Ġprint
    Ġprints Ġprogram Ġrange Ġresistance Ġresult Ġreversed Ġright Ġrobot Ġsells Ġshells Ġshift Ġsled Ġsolution
    Ġspeed Ġsquare Ġstamps Ġstone Ġstones Ġtell Ġthe Ġthem Ġtheorem Ġtheorems Ġthis Ġthrough Ġtime Ġto Ġtotal
    Ġtrain Ġtree Ġtriples Ġunit Ġvoltage Ġvolume Ġwhat Ġwhen Ġwire Ġwith Ġwork Ġwrong Ġx Ġy Ġz Ġ| ĠĠ
"""
WORDS: tuple[str, ...] = tuple(_WORDS.split())
"""The pieces that are one token, in the order of their ids; `Ġ` spells a space and `Ċ` a newline.
Frozen, so that a change of the world never moves the ids of shipped weights."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build() -> PreTrainedTokenizerFast:
    """The tokenizer: 4 special tokens, the words, and the 256 bytes."""
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([PAD, END, USER, ASSISTANT, *WORDS, *letters])}
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
        instruction="",  # problems are put to mini as they are (`tyler.tasks.prompts.Prompt.of`)
    )
