"""llguidance, with which `tyler serve` masks structured answers, beside xgrammar: compiling, masks, what is kept to.

    pip install xgrammar && OMP_NUM_THREADS=1 python benchmarks/grammars.py --tokenizers FOLDER:49152 FOLDER:151936

Masks are made along a text that the grammar allows. xgrammar compiles in one thread and without its cache.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from llguidance import LLTokenizer
from transformers import AutoTokenizer

from harness import Contest, Figure, Report, compete, options, read
from tyler.serving.grammar import TextGrammar, compiled

X: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}
ALLOWED: dict[str, tuple[Any, str]] = {
    "an object": (X, '{"x": 12}'),
    "1,000 names": ({"enum": [f"name{at}" for at in range(1000)]}, '"name617"'),
    "a regex": (r"(Step [0-9]+: [a-z ]{1,80}\n)+= [0-9]{1,9}", "Step 1: add them\n" * 4 + "= 61"),
}
FORBIDDEN: list[tuple[dict[str, Any], str]] = [
    ({"multipleOf": 3, "type": "integer"}, "10"),
    ({"uniqueItems": True, "type": "array"}, "[1, 1]"),
    ({"contains": {"const": 1}, "type": "array"}, "[2]"),
    ({"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 5}]}, "6"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1"),
    ({"not": {"type": "string"}}, '"x"'),
    ({"if": {"type": "integer"}, "then": {"maximum": 3}}, "4"),
    ({"propertyNames": {"maxLength": 1}, "type": "object"}, '{"yy": 1}'),
    ({"dependentRequired": {"x": ["y"]}} | X, '{"x": 1}'),
]


def ways_of(tokenizer: Any, size: int) -> dict[str, Any]:
    """Of each library: what goes on by a token, and what makes a mask, where a text of a grammar begins."""
    from xgrammar import GrammarCompiler, GrammarMatcher, TokenizerInfo, allocate_token_bitmask

    words = LLTokenizer(tokenizer.backend_tokenizer.to_str(), n_vocab=size, eos_token=tokenizer.eos_token_id)
    info, bits = TokenizerInfo.from_huggingface(tokenizer, vocab_size=size), allocate_token_bitmask(1, size)
    theirs = GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def llguidance(source: Any) -> Any:
        compiled.cache_clear()
        regex = TextGrammar(words, "regex", source) if isinstance(source, str) else None
        return (matcher := (regex or TextGrammar.of_schema(words, source)).start()).accept, matcher.mask

    def xgrammar(source: Any) -> Any:
        is_regex = isinstance(source, str)
        grammar = theirs.compile_regex(source) if is_regex else theirs.compile_json_schema(source, strict_mode=False)
        return (matcher := GrammarMatcher(grammar)).accept_token, partial(matcher.fill_next_token_bitmask, bits)

    return {"llguidance": llguidance, "xgrammar": xgrammar}


def mask_seconds(begin: Any, source: Any, ids: list[int]) -> float:
    """Of one mask."""
    (accept, mask), spent = begin(source), 0.0
    for id in ids:
        started = time.perf_counter()
        mask()
        spent += time.perf_counter() - started
        accept(id)
    return spent / len(ids)


def lets_pass(begin: Any, source: Any, ids: list[int]) -> bool:
    """Whether a schema compiles, and what it forbids passes."""
    try:
        accept, _ = begin(source)
        return all(accept(id) is not False for id in ids)
    except Exception:  # llguidance raises where xgrammar returns False
        return False


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--tokenizers", nargs="+", metavar="FOLDER:SIZE", required=True)
    arguments = read(parser)
    report = Report("grammars", arguments)
    for folder, _, size in (one.rpartition(":") for one in arguments.tokenizers):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ways, contests = ways_of(tokenizer, int(size)), list[Contest]()
        for name, (source, text) in ALLOWED.items():
            ids = tokenizer.encode(text)
            masks = {way: partial(mask_seconds, begin, source, ids) for way, begin in ways.items()}
            compiling = {way: partial(begin, source) for way, begin in ways.items()}
            contests += [Contest(f"{name}, {size}: compiled", compiling), Contest(f"{name}, {size}: a mask", masks)]
        report.add(compete(contests, arguments.rounds))
        for way, begin in ways.items():
            ended = [(schema, [*tokenizer.encode(text), tokenizer.eos_token_id]) for schema, text in FORBIDDEN]
            wrong = [next(iter(schema)) for schema, ids in ended if lets_pass(begin, schema, ids)]
            report.add([Figure(f"{way}: not kept to", ", ".join(wrong), len(wrong), f"of {len(FORBIDDEN)}")])
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
