"""Count on how many of 1,000 varied texts a GGUF file's tokens are those of llama.cpp.

    python scripts/compare_tokenizers.py model.gguf

Needs `pip install llama-cpp-python`, which compiles llama.cpp for some minutes; nothing else here needs it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tyler.modeling.gguf import GgufFile
from tyler.modeling.gguf_tokenizer import build_tokenizer

KINDS: dict[str, Sequence[str]] = {
    "digits": (
        "7", "42", "125", "1,250.75", "3/4", "-0.5", "1e-9", "2024-11-22", "12:30", "$3.50", "100%", "½", "²", "Ⅷ",
        "٣٤", "१२",
    ),
    "spaces": (
        " ", "  ", "    ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", " \n", "\n ", "\r\n", "\r\n\r\n",
        "\u00a0", "\u2003", "\u3000",
    ),
    "words": (
        "the", "Natalia", "HE'LL", "they're", "it's", "I'd", "naïve", "Straße", "ﬁne", "coöperate", "e\u0301", "x",
        "don’t",
    ),
    "signs": (*".,—“”()[]{}\\|~^_#@&*'\"", "...", "?!"),
    "code": (
        "def f(x):\n    return x**2\n", "for (int i=0;i<10;++i){", "<b>bold</b>", '{"a": [1, 2.5]}', "print('hi')",
        "a_b1 = 0xFF", "// 1.",
    ),
    "math": ("$x^2$", "\\frac{1}{2}", "\\boxed{42}", "<<48/2=24>>", "Step 2:", "∑_{i=1}^n", "≤", "π≈3.14", "#### 72"),
    "emoji": ("😀", "👍🏽", "7️⃣", "👨‍👩‍👧", "🇩🇪", "❤️", "→", "✓"),
    "scripts": ("中文字符", "日本語のテキスト", "한국어", "Привет", "γειά", "שלום", "مرحبا", "हिन्दी", "ไทย", "Việt"),
    "special": ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|>user\n", "<|not_special|>"),
}  # fmt: skip


def varied_texts(count: int, seed: int) -> list[str]:
    """Texts of 1 to 24 pieces of all kinds, some glued together and some with a space between."""
    generator = random.Random(seed)
    texts = []
    for _ in range(count):
        kinds = generator.sample(list(KINDS), generator.randint(1, len(KINDS)))
        glue = generator.choice(("", " ", None))
        pieces = [generator.choice(KINDS[generator.choice(kinds)]) for _ in range(generator.randint(1, 24))]
        texts.append("".join(piece + (generator.choice(("", " ")) if glue is None else glue) for piece in pieces))
    return texts


def main() -> int:
    """Print each text whose tokens differ, and the count of those that agree; 1 where any differs."""
    from llama_cpp import Llama

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ours = build_tokenizer(GgufFile.open(options.file).metadata, source=str(options.file), max_length=8192)
    theirs = Llama(str(options.file), vocab_only=True, verbose=False)
    agreed = 0
    for text in varied_texts(options.count, options.seed):
        found = ours(text, add_special_tokens=False).input_ids
        expected = theirs.tokenize(text.encode(), add_bos=False, special=True)
        agreed += found == expected
        if found != expected:
            print(f"{text!r}\n  here      {ours.convert_ids_to_tokens(found)}")
            print(f"  llama.cpp {ours.convert_ids_to_tokens(expected)}")
    print(f"{agreed} of {options.count} texts have the same tokens")
    return int(agreed != options.count)


if __name__ == "__main__":
    sys.exit(main())
