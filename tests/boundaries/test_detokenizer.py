"""Tokens and their texts, where a character may lie over several tokens."""

from pathlib import Path
from random import Random

import pytest
from tests import tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tyler.boundaries.detokenizer import IncrementalDetokenizer, is_partition, token_spans


def transcript(tokens: list[int]) -> IncrementalDetokenizer:
    transcript_of = IncrementalDetokenizer(tiny.tokenizer())
    transcript_of.tokens.extend(tokens)
    return transcript_of


def test_a_split_character_belongs_to_the_token_that_completes_it() -> None:
    tokens = tiny.ids("a😀é")
    assert len(tokens) == 1 + 4 + 2
    assert list(transcript(tokens)) == ["a", "", "", "", "😀", "", "é"]


def test_texts_join_to_what_the_tokenizer_decodes() -> None:
    random = Random(0)
    for _ in range(200):
        tokens = [random.randrange(2, len(tiny.tokenizer())) for _ in range(12)] + tiny.ids("x")
        assert "".join(transcript(tokens)) == tiny.tokenizer().decode(tokens)


def test_texts_do_not_depend_on_when_they_are_looked_at() -> None:
    random = Random(1)
    for _ in range(50):
        tokens = [random.choice([*tiny.ids("a😀é→$x"), 7, 30]) for _ in range(20)]
        eager, lazy = IncrementalDetokenizer(tiny.tokenizer()), transcript(tokens)
        seen = []
        for token in tokens:
            eager.tokens.append(token)
            seen.append(eager[len(eager) - 1])
        assert seen == list(lazy)
        assert lazy[3] == seen[3]


def test_spaces_that_a_decoder_drops_at_the_start_are_kept_between_tokens() -> None:
    """SentencePiece's decoder strips the space of whatever token comes first."""
    core = Tokenizer(models.WordLevel({"<unk>": 0, "\u2581so": 1, "\u2581x": 2, "2": 3}, unk_token="<unk>"))
    core.decoder = decoders.Metaspace()
    decoded = IncrementalDetokenizer(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>"))
    decoded.tokens += [1, 2, 3, 1, 2]
    assert list(decoded) == ["so", " x", "2", " so", " x"]
    assert decoded.text == "so x2 so x"


def test_a_broken_character_shows_once_it_cannot_be_completed() -> None:
    first, second, third, _ = tiny.ids("😀")
    assert list(transcript([first, second, *tiny.ids("x")])) == ["", "", "\ufffdx"]
    assert list(transcript([first, first, second, third])) == ["", "", "", ""]


def test_a_replacement_character_that_was_written_is_text_at_the_end_too() -> None:
    core = Tokenizer(models.BPE({letter: id for id, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    decoded = IncrementalDetokenizer(PreTrainedTokenizerFast(tokenizer_object=core))
    decoded.tokens += core.encode("x\ufffd").ids
    assert decoded.text == "".join(decoded) == "x\ufffd"
    decoded.tokens += core.encode("😀").ids[:1]
    assert decoded.text == "".join(decoded) == "x\ufffd"


def test_special_and_padding_tokens_have_no_text() -> None:
    end, padding = tiny.tokenizer().eos_token_id, len(tiny.tokenizer())
    assert list(transcript([*tiny.ids("x"), end, padding, *tiny.ids("y")])) == ["x", "", "", "y"]


def test_tokens_taken_back_and_shown_again_keep_their_texts() -> None:
    tokens = tiny.ids("a $x$é.\n\n")
    decoded = transcript(tokens)
    texts = list(decoded)
    held = decoded.tokens[2:]
    del decoded.tokens[2:]
    assert len(decoded) == 2
    decoded.tokens.extend(held)
    assert list(decoded) == texts


@pytest.mark.parametrize("text", tiny.PROMPTS)
def test_spans_divide_the_text_among_its_tokens(text: str) -> None:
    tokens = tiny.ids(text)
    spans = token_spans(tiny.tokenizer(), text, tokens)
    assert len(spans) == len(tokens)
    assert is_partition(spans, len(text))
    online = transcript(tokens)
    assert [text[start:end] for start, end in spans] == [online[index] for index in range(len(tokens))]


def test_spans_follow_the_given_tokens_even_if_the_tokenizer_would_cut_otherwise() -> None:
    tokens = [tiny.ids(character)[0] for character in "$x$ is 12"]
    assert tiny.ids("$x$ is 12") != tokens
    assert token_spans(tiny.tokenizer(), "$x$ is 12", tokens) == [(at, at + 1) for at in range(9)]


def test_a_partition_has_no_gap_and_no_overlap() -> None:
    assert is_partition([(0, 2), (2, 2), (2, 5)], 5)
    assert not is_partition([(0, 2), (3, 5)], 5)
    assert not is_partition([(0, 3), (2, 5)], 5)
    assert not is_partition([(0, 2)], 5)


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3"])
def test_real_tokenizers_give_the_same_spans_online_and_offline(name: str, data_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(data_dir / "tokenizers" / name)
    for text in (*tiny.PROMPTS, "Ünïcödé 数学 🤔🧮 ∀x∈ℝ. ½ + ⅓\n\n  indented\t\ttabs   spaces "):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        spans = token_spans(tokenizer, text, tokens)
        assert is_partition(spans, len(text)) and len(spans) == len(tokens)
        online = IncrementalDetokenizer(tokenizer)
        online.tokens.extend(tokens)
        assert "".join(online) == text
