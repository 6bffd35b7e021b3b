"""Decoding with a real model: the engine, its matrix products alone, transformers' `generate`, and llama.cpp.

    OMP_NUM_THREADS=1 python benchmarks/real_decoding.py [--batches 1 8 32] [--gguf FILE] [--json out.json]

Needs `tyler fetch smollm2`. Prompts are random tokens, decoding is greedy in float32, no answer ends early. On a
CPU with one thread, seconds are those of the processor.

engine      Tyler's, under Never
products    the matrix products of the same prompts and steps, on the same weights, packed where the engine packs them,
            and nothing else: the floor
generate    transformers' `generate`
llama.cpp   with `--gguf` and the package llama-cpp-python: the file as it is (quantised), and dequantised to float32,
            written to a temporary folder; every step is one batch, each row's best token is taken from its logits
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from decoding import Times, Tokens, clocked, endless, generated, never
from harness import Contest, Figure, Report, Timing, compete, options, read
from tyler import Tyler
from tyler.engine.native.packing import packed_weight
from tyler.modeling.backbone import Backbone

PROMPT = 64
MODEL = "smollm2"


def prompts(batch: int, vocabulary: int) -> Tokens:
    """Different for each row, and no special tokens, which are the first ids."""
    draw = random.Random(batch)
    return [[draw.randrange(100, vocabulary) for _ in range(PROMPT)] for _ in range(batch)]


# --------------------------------------------------------------------------------------------------------- the floor


@torch.no_grad()
def products(model: Tyler, batch: int, new: int) -> Tokens:
    """Every weight matrix times as many states as decoding has: all of the prompts at once, then a state a row."""
    network = model.backbone.model
    head = network.get_output_embeddings()
    linears = [one for one in network.modules() if isinstance(one, torch.nn.Linear) and one is not head]
    multiply = {one: product_with(one.weight) for one in (*linears, head)}
    for rows, times in ((batch * PROMPT, 1), (batch, new - 1)):
        inputs = {size: torch.randn(rows, size) for size in {one.in_features for one in linears}}
        last = torch.randn(batch, head.in_features)
        for _ in range(times):
            for one in linears:
                multiply[one](inputs[one.in_features])
            multiply[head](last)
    return []


def product_with(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """x W^T, as fast as the engine has it."""
    packed = packed_weight(weight, [weight])
    return partial(torch.nn.functional.linear, weight=weight) if packed is None else packed.product


# --------------------------------------------------------------------------------------------------------- llama.cpp


class LlamaCpp:
    """A GGUF file in llama.cpp, float32 caches, as many sequences as rows."""

    def __init__(self, path: Path, rows: int, length: int, threads: int) -> None:
        import llama_cpp

        self.api, self.rows = llama_cpp, rows
        llama_cpp.llama_log_set(quiet(), None)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = rows * length, rows * PROMPT, rows * PROMPT
        settings.n_seq_max, settings.n_threads, settings.n_threads_batch = rows, threads, threads
        settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.batch = llama_cpp.llama_batch_init(rows * PROMPT, 0, 1)
        self.size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, asked: Tokens, new: int) -> Tokens:
        """The best token of each row, step by step."""
        import numpy as np

        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        fed, start, found = asked, 0, [list[int]() for _ in asked]
        for _ in range(new):
            last = self.feed(fed, start)
            start += len(fed[0])
            for row, place in enumerate(last):
                logits = np.ctypeslib.as_array(self.api.llama_get_logits_ith(self.context, place), (self.size,))
                found[row].append(int(logits.argmax()))
            fed = [[one[-1]] for one in found]
        return found

    def feed(self, tokens: Tokens, start: int) -> list[int]:
        """One batch of tokens from a position on; returns where the last of each row is in it."""
        batch, place, last = self.batch, 0, []
        for row, own in enumerate(tokens):
            for offset, token in enumerate(own):
                batch.token[place], batch.pos[place] = token, start + offset
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, row
                batch.logits[place] = offset == len(own) - 1
                place += 1
            last.append(place - 1)
        batch.n_tokens = place
        if self.api.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama.cpp could not decode a batch")
        return last


def quiet() -> Callable[..., None]:
    """A callback that says nothing; llama.cpp needs it alive as long as it runs."""
    import llama_cpp

    global _quiet
    _quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    return _quiet


_quiet: Callable[..., None] | None = None


def dequantise(path: Path, target: Path) -> Path:
    """The same GGUF with every tensor in float32."""
    import gguf

    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype("float32").reshape(tuple(map(int, reversed(tensor.shape)))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


# ---------------------------------------------------------------------------------------------------------- contests


def contest(
    model: Tyler, batch: int, new: int, files: Sequence[tuple[str, Path]], times: Times
) -> Iterator[Timing | Figure]:
    """All ways at one batch size, and how many answers are those of `generate`."""
    asked, results = prompts(batch, model.backbone.vocab_size), dict[str, Tokens]()
    ways = {
        "engine": clocked(lambda: never(model, asked, new), results, "engine"),
        "products": clocked(lambda: products(model, batch, new), results, "products"),
        "generate": clocked(lambda: generated(model, asked, new), results, "generate"),
    }
    for name, path in files:
        other = LlamaCpp(path, batch, PROMPT + new, torch.get_num_threads())
        ways[name] = clocked(lambda other=other: other.decode(asked, new), results, name)
    work = f"{PROMPT} tokens read, {new} decoded, batch {batch}"
    yield from compete([Contest(work, ways, batch * new, "tokens")], *times)
    for name in ("engine", *(name for name, _ in files)):
        same = sum(one == other for one, other in zip(results[name], results["generate"], strict=True))
        yield Figure(work, f"answers of {name} that are generate's", same, f"of {batch}")


def main() -> None:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--gguf", type=Path, help="the model's GGUF file, for llama.cpp")
    parser.add_argument("--new-tokens", type=int, help="by default 64, and 16 with --quick")
    arguments = read(parser)
    report = Report("real_decoding", arguments)
    backbone = Backbone.load(MODEL)
    model = Tyler.start(Backbone(MODEL, endless(backbone), backbone.tokenizer), ())
    new, times = arguments.new_tokens or (16 if arguments.quick else 64), (arguments.rounds, 1)
    with tempfile.TemporaryDirectory() as folder:
        files: list[tuple[str, Path]] = []
        if arguments.gguf is not None:
            files = [
                ("llama.cpp, float32", dequantise(arguments.gguf, Path(folder) / "float32.gguf")),
                ("llama.cpp, the file", arguments.gguf),
            ]
        for batch in arguments.batches:
            report.add(contest(model, batch, new, files, times))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
