"""The cost of one operator call against context length, beside encoding the whole context again.

    OMP_NUM_THREADS=2 python benchmarks/operator_call.py [--json out.json]

A row of the given context decodes 8 tokens between calls; the first call, which reads the whole context once, is not
counted. Lengths are interleaved, so that a machine whose speed drifts slows all of them. The floor of a call is reading
the new tokens and the queries with the synthesizer, and the latents with the policy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from tyler import GLOBAL, PROCEDURE, STATE, Forced, Request, Tyler
from tyler.backbone import Backbone
from tyler.tasks.prompts import Prompt

SPACING = 8
NEW = SPACING + STATE.num_latents


def build(layers: int, dim: int) -> Tyler:
    """A random Qwen3 of the given size with mini's tokenizer; nothing is downloaded."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=8192,
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=dim // 64,
        num_key_value_heads=max(1, dim // 128),
        head_dim=64,
        intermediate_size=3 * dim,
        max_position_embeddings=16384,
        eos_token_id=None,
    )
    tokenizer = AutoTokenizer.from_pretrained(str(Path(__file__).parent.parent / "src" / "tyler" / "assets" / "mini"))
    model = Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa")
    return Tyler.start(Backbone("random", model, tokenizer), (GLOBAL, STATE, PROCEDURE), prompt=Prompt(""))


def time_calls(model: Tyler, length: int, calls: int) -> list[float]:
    """Seconds of each call but the first."""
    router = Forced({SPACING * place: ("state",) for place in range(1, calls + 2)})
    engine = model.engine(slots=1)
    engine.submit(Request([5] * length, router, max_new_tokens=SPACING * (calls + 2) + calls))
    spent, seconds = 0.0, []
    while engine.waiting or engine.rows:
        engine.step()
        if engine.timings.synthesis > spent:
            seconds.append(engine.timings.synthesis - spent)
            spent = engine.timings.synthesis
    return seconds[1:]


@torch.no_grad()
def time_encoding(model: Tyler, length: int) -> float:
    """Seconds of a call without a cache: the synthesizer reads everything, then the policy reads the latents."""
    embeds = torch.zeros(1, length + STATE.num_latents, model.backbone.dim)
    decoder = model.synthesizer.decoder()
    started = time.perf_counter()
    decoder(inputs_embeds=embeds, use_cache=False)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    model = build(arguments.layers, arguments.dim)
    calls: dict[int, list[float]] = {length: [] for length in arguments.lengths}
    encodings: dict[int, list[float]] = {length: [] for length in arguments.lengths}
    for _ in range(arguments.rounds):
        for length in arguments.lengths:
            calls[length] += time_calls(model, length, arguments.calls)
            encodings[length].append(time_encoding(model, length))
    first = statistics.median(calls[arguments.lengths[0]])
    threads = torch.get_num_threads()
    print(f"{arguments.layers} layers, width {arguments.dim}, {threads} threads, {NEW} new positions a call")
    print(f"{'context':>8} {'call ms':>9} {'min':>7} {'max':>7} {'x first':>8} {'encode all ms':>14} {'ratio':>7}")
    for length in arguments.lengths:
        call, encode = statistics.median(calls[length]), statistics.median(encodings[length])
        low, high = min(calls[length]), max(calls[length])
        print(
            f"{length:>8} {1e3 * call:>9.2f} {1e3 * low:>7.2f} {1e3 * high:>7.2f} {call / first:>8.2f} "
            f"{1e3 * encode:>14.2f} {encode / call:>7.1f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"calls": calls, "encodings": encodings}, indent=2))


if __name__ == "__main__":
    main()
