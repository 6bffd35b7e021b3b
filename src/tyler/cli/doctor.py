"""`tyler doctor`: what this machine offers, and what each part of it limits."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from huggingface_hub import constants
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tyler.cli.fetch import provenance
from tyler.engine.native.cache import bytes_of_position, free_bytes
from tyler.modeling.architectures import FETCHABLE
from tyler.modeling.backbone import Backbone, dtype_name, hub_is_out_of_reach
from tyler.runs.environment import environment
from tyler.tasks.prompts import Prompt, prompt_ids, thought_is_open, turn_end
from tyler.tasks.sandbox.sandbox import probe

EXAMPLE_POSITIONS = 2048
"""Of an answer whose memory is shown."""
GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """One line of the table: what was looked at, what there is, what it limits, and whether it suffices."""

    subject: str
    value: str
    limits: str
    ok: bool = True


def run() -> None:
    """Print the table of the machine."""
    _show("tyler doctor", inspect())


def describe(model: str, device: str | None = None, dtype: str = "auto") -> None:
    """Print what a model needs and whether this machine has it. Raises what loading it raises."""
    from tyler.reasoners.registry import checkpoint_class

    backbone = checkpoint_class(model).from_pretrained(model, device=device, dtype=dtype).backbone
    _show(f"tyler doctor {model}", [*needs_of(backbone), *of_model(backbone)])


def needs_of(backbone: Backbone) -> list[Finding]:
    """What a loaded model takes on its device, and what is left there."""
    weights = sum(tensor.nbytes for tensor in backbone.model.parameters())
    position, free = bytes_of_position(backbone), free_bytes(backbone.device)
    answer = position * EXAMPLE_POSITIONS
    return [
        Finding("computes", f"in {dtype_name(backbone.dtype)} on {backbone.device}", "speed; --dtype and --device"),
        Finding("weights", f"{weights / 2**20:,.0f} MiB, loaded", "memory; a trained method adds its adapters"),
        Finding(
            "answers",
            f"{position / 2**10:.1f} KiB a position, {answer / 2**20:.0f} MiB for {EXAMPLE_POSITIONS:,}; "
            f"{free / GIB:.1f} GiB are free, enough for {free // answer} at once",
            "--slots, --memory and --max-new-tokens",
            ok=free > answer,
        ),
        Finding("positions", f"{backbone.max_positions:,} at most", "prompt, tokens and latents together"),
    ]


def of_model(backbone: Backbone) -> list[Finding]:
    """What decides the texts of a model besides its weights; an evaluation or a run resumes only under the same."""
    settings, tokenizer = backbone.text_settings, backbone.tokenizer
    turn = turn_end(tokenizer)
    ends = " ".join(settings["end_tokens"]) or "none"
    opened = thought_is_open(tokenizer, prompt_ids(tokenizer, "Why?", Prompt.of(tokenizer)))
    return [
        Finding("end tokens", ends, "where an answer ends", ok=bool(settings["end_tokens"])),
        Finding(
            "turn end",
            "none" if turn is None else str(tokenizer.convert_ids_to_tokens(turn)),
            "the last token of training targets; without one, the tokenizer's eos_token",
        ),
        Finding("chat template", settings["chat_template"] or "none", "how a question is written (short SHA-256)"),
        Finding("thought", "opened by the prompt" if opened else "not opened by the prompt", "where an answer begins"),
        Finding("tokenizer", f"{settings['tokenizer']}, {len(tokenizer):,} tokens", "as tokenizer.json says"),
    ]


def _show(title: str, findings: Sequence[Finding]) -> None:
    """What was found is shown as it is: an error may have brackets."""
    table = Table(title=Text(title))
    for heading in ("", "found", "what it limits"):
        table.add_column(heading)
    for finding in findings:
        table.add_row(finding.subject, Text(finding.value, style="" if finding.ok else "yellow"), finding.limits)
    Console().print(table)


def inspect() -> list[Finding]:
    """Everything the table says; waits some seconds for the Hub."""
    facts = environment()
    return [_versions(facts), _device(), _dtypes(), _threads(facts), _memory(), _disk(), _sandbox(), _fetched(), _hub()]


def _versions(facts: dict[str, Any]) -> Finding:
    versions = ", ".join(f"{name} {version or 'missing'}" for name, version in facts["packages"].items())
    return Finding("versions", f"Python {facts['python']}, {versions}", "put this line into a bug report")


def _device() -> Finding:
    if torch.cuda.is_available():
        cards = f"{torch.cuda.get_device_name()} x {torch.cuda.device_count()}, CUDA {torch.version.cuda}"
        return Finding("device", cards, "any backbone that fits its memory")
    if torch.backends.mps.is_available():
        return Finding("device", "Apple GPU (mps)", "--device mps takes it; no test has run on one yet")
    processor = f"CPU ({platform.machine()})"
    return Finding("device", processor, "mini trains in minutes; 1.5B and up decode slowly", ok=False)


def _dtypes() -> Finding:
    if torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported()
        return Finding("dtypes", f"float32, bfloat16 {'native' if native else 'emulated'}", "memory and speed", native)
    capability = torch.backends.cpu.get_cpu_capability()
    return Finding("dtypes", f"float32; bfloat16 runs, {capability} kernels", "use float32 on this CPU")


def _threads(facts: dict[str, Any]) -> Finding:
    cores, threads = facts["cores"], facts["threads"]
    limits = "more threads than cores wait for each other: set OMP_NUM_THREADS" if threads > cores else "CPU speed"
    return Finding("cores", f"{cores} cores, {threads} torch threads", limits, ok=threads <= cores)


def _memory() -> Finding:
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        amount = f"{free / GIB:.0f} of {total / GIB:.0f} GiB free"
        return Finding("GPU memory", amount, "backbone size, slots, batch size")
    memory = psutil.virtual_memory()
    amount = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    return Finding("memory", amount, "backbone size (4 bytes a weight), slots, batch size", memory.available > 2 * GIB)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    return Finding("disk", f"{free / GIB:.1f} GiB free here", "run directories and checkpoints", free > 2 * GIB)


def _sandbox() -> Finding:
    obstacle, works = probe(), "bubblewrap, with its own keyring, system-call filter and process limit"
    return Finding("sandbox", obstacle or works, "running programs of the model (humaneval)", not obstacle)


def _fetched() -> Finding:
    origins = {name: provenance(name) for name in FETCHABLE}
    named = ", ".join(
        f"{name} from the {facts['origin']}" if facts else f"no {name}" for name, facts in origins.items()
    )
    return Finding("fetched", named, "real models by name; `tyler fetch NAME` brings one", all(origins.values()))


def _hub() -> Finding:
    limits = "download of backbones and data; mini needs neither"
    if constants.HF_HUB_OFFLINE:
        return Finding("Hub", "offline, as HF_HUB_OFFLINE asks", limits, ok=False)
    if hub_is_out_of_reach():
        return Finding("Hub", f"{constants.ENDPOINT} cannot be reached", limits, ok=False)
    return Finding("Hub", f"{constants.ENDPOINT} answers", limits)
