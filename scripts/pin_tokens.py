"""Write what pins SmolLM2's tokens: texts with their ids, and those of its tokens and merges that are in the texts.

    python scripts/pin_tokens.py smollm2

A merge whose tokens occur in no text cannot act in it, so that the few that are kept give the same ids.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel

from tyler.modeling.architectures import located
from tyler.modeling.tokenizer import load_tokenizer

PAGE = Path(__file__).parent.parent / "tests" / "modeling" / "smollm2_tokens.json"

TEXTS = (
    "125", "1,250.75 + 3/4 = ?", "in 2024 it's 12:30", "x\n\n1. y", "x \n \n\n  1", "   four spaces   ", "\t\ttabs\t1",
    "\r\nlines\r\n\r\n2", "HE'LL they're I'd", "def f(x):\n    return x**2 + 10\n", '{"a": [1, 2.5, null]}', "100%",
    "Step 1: $48 / 2 = 24$\n\nStep 2: $48 + 24 = 72$\n\n\\boxed{72}", "<<48/2=24>>24\n#### 72", "😀👍🏽 7️⃣", "→ ≤ π",
    "中文字符 123 と かな", "é e\u0301 ﬁ ½ ² Ⅷ ٣٤", "naïve café", "\u00a0nbsp\u2003em",
    "<|im_start|>user\n5<|im_end|>\n", "a<|endoftext|>b<|no_token|>", "",
)  # fmt: skip


def main(id: str) -> None:
    """Write the page from the tokenizer of a backbone."""
    tokenizer = load_tokenizer(located(id))
    spelled = ["".join(part for part, _ in ByteLevel(False, use_regex=False).pre_tokenize_str(text)) for text in TEXTS]
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
    special = set(tokenizer.all_special_tokens)

    def occurs(token: str) -> bool:
        return any(token in text for text in spelled)

    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    content = {
        "size": len(tokenizer),
        "special": {token: tokenizer.convert_tokens_to_ids(token) for token in sorted(special)},
        "tokens": {token: id for token, id in model["vocab"].items() if occurs(token) and token not in special},
        "merges": [" ".join(merge) for merge in model["merges"] if occurs("".join(merge))],
        "texts": list(zip(TEXTS, ids, strict=True)),
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items())
    PAGE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
