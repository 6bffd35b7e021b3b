"""`tyler doctor`: what this machine offers, and what each part of it limits."""

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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


class Finding(NamedTuple):
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
    from tyler.reasoners.registry import load

    backbone = load(model, name=model, device=device, dtype=dtype).model.backbone
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
    table = Table("", "found", "what it limits", title=Text(title))
    for finding in findings:
        table.add_row(finding.subject, Text(finding.value, style="" if finding.ok else "yellow"), finding.limits)
    Console().print(table)


def inspect() -> list[Finding]:
    """Everything the table says; waits some seconds for the Hub."""
    facts, free = environment(), shutil.disk_usage(Path.cwd()).free
    versions = ", ".join(f"{name} {version or 'missing'}" for name, version in facts["packages"].items())
    cores, threads, obstacle = facts["cores"], facts["threads"], probe()
    limits = "more threads than cores wait for each other: set OMP_NUM_THREADS" if threads > cores else "CPU speed"
    sandbox = obstacle or "bubblewrap, with its own keyring, system-call filter and process limit"
    return [
        Finding("versions", f"Python {facts['python']}, {versions}", "put this line into a bug report"),
        *(_gpu() if torch.cuda.is_available() else _cpu()),
        Finding("cores", f"{cores} cores, {threads} torch threads", limits, ok=threads <= cores),
        Finding("disk", f"{free / GIB:.1f} GiB free here", "run directories and checkpoints", free > 2 * GIB),
        Finding("sandbox", sandbox, "running programs of the model (humaneval)", not obstacle),
        _fetched(),
        _hub(),
    ]


def _gpu() -> list[Finding]:
    native, (free, total) = torch.cuda.is_bf16_supported(), torch.cuda.mem_get_info()
    cards = f"{torch.cuda.get_device_name()} x {torch.cuda.device_count()}, CUDA {torch.version.cuda}"
    return [
        Finding("device", cards, "any backbone that fits its memory"),
        Finding("dtypes", f"float32, bfloat16 {'native' if native else 'emulated'}", "memory and speed", native),
        Finding("GPU memory", f"{free / GIB:.0f} of {total / GIB:.0f} GiB free", "backbone size, slots, batch size"),
    ]


def _cpu() -> list[Finding]:
    capability, memory = torch.backends.cpu.get_cpu_capability(), psutil.virtual_memory()
    device = Finding(
        "device", f"CPU ({platform.machine()})", "mini trains in minutes; 1.5B and up decode slowly", False
    )
    if torch.backends.mps.is_available():
        device = Finding("device", "Apple GPU (mps)", "--device mps takes it; no test has run on one yet")
    amount = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    limits = "backbone size (4 bytes a weight), slots, batch size"
    return [
        device,
        Finding("dtypes", f"float32; bfloat16 runs, {capability} kernels", "use float32 on this CPU"),
        Finding("memory", amount, limits, memory.available > 2 * GIB),
    ]


def _fetched() -> Finding:
    origins = {name: provenance(name) for name in FETCHABLE}
    named = [f"{name} from the {facts['origin']}" if facts else f"no {name}" for name, facts in origins.items()]
    limits = "real models by name; `tyler fetch NAME` brings one"
    return Finding("fetched", ", ".join(named), limits, all(origins.values()))


def _hub() -> Finding:
    """Whether the Hub answers, unless it is not to be asked."""
    offline = "offline, as HF_HUB_OFFLINE asks" if constants.HF_HUB_OFFLINE else None
    fault = offline or (f"{constants.ENDPOINT} cannot be reached" if hub_is_out_of_reach() else None)
    limits = "download of backbones and data; mini needs neither"
    return Finding("Hub", fault or f"{constants.ENDPOINT} answers", limits, fault is None)
