"""A training step on a real model and real traces: SFT beside transformers + peft, and what Stage 1 costs beside both.

    OMP_NUM_THREADS=1 python benchmarks/real_training.py --data DIR [--config NAME] [--batch 16] [--json out.json]

Needs `tyler fetch smollm2` and the files of MAWPS and ASDiv-A under DIR. All ways read the first batch of the config's
training problems, without dropout. The ways of SFT must find the same gradient, which is checked first. Stage 1 has as
many latent blocks in every trace as the config allows at most. Seconds are the processor's; rates count the tokens of
prompts and solutions, not latents.

transformers + peft         the batch in one padded piece, labels with -100: what its Trainer does
transformers + peft, by 4   the same in four pieces of four, in the order they come
tyler SFT                   rows packed without padding
tyler Stage 1               the same traces with blocks: each reads its whole context, and gradients reach Phi alone
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gpu.reference import gradients
from harness import Contest, Figure, Report, compete, on_processor, options, read
from tyler.config.files import load_config
from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.reasoners import sft
from tyler.training import stage1
from tyler.training.command import load_backbone
from tyler.training.loop import batch_at
from tyler.training.teacher_forcing import Trace
from tyler.training.traces import load_traces

Step = Callable[[], object]

IGNORED = -100
"""The label of positions that are not targets, in transformers."""


def settings(name: str, data: Path) -> Config:
    """The config, on files; nothing is held out or developed on, for nothing is learned here."""
    more = [f"data.path={data}", f"evaluation.path={data}", "data.development=null", "data.held_out=[]"]
    return load_config(name, more)


def plain_step(model: Tyler, traces: Sequence[Trace], pieces: int) -> None:
    """The gradient as transformers and peft find it, in so many pieces."""
    lora = model.policy.lora
    assert lora is not None
    device = model.backbone.device
    num_targets = sum(len(trace.target_ids) for trace in traces)
    size = -(-len(traces) // pieces)
    for first in range(0, len(traces), size):
        part = traces[first : first + size]
        ids = [torch.tensor([*trace.prompt_ids, *trace.target_ids], device=device) for trace in part]
        labels = [
            torch.tensor([IGNORED] * len(trace.prompt_ids) + [*trace.target_ids], device=device) for trace in part
        ]
        loss = lora(
            input_ids=pad_sequence(ids, batch_first=True),
            attention_mask=pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
            labels=pad_sequence(labels, batch_first=True, padding_value=IGNORED),
            use_cache=False,
        ).loss
        (loss * sum(len(trace.target_ids) for trace in part) / num_targets).backward()


def supervised_model(backbone: Backbone, config: Config) -> Tyler:
    """What SFT trains, with adapters that matter."""
    lora = replace(LoraSettings(**config.lora.model_dump()), dropout=0.0)
    model = Tyler.start(backbone, (), lora, config.prompt).at_stage("sft")
    model.policy.add_lora(lora)
    assert model.policy.lora is not None
    for name, parameter in model.policy.lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def check_equal(parameters: Sequence[Tensor], steps: dict[str, Step]) -> None:
    """Raise AssertionError unless all ways find the same gradient."""
    first, *others = (gradients(parameters, step) for step in steps.values())
    for name, other in zip(list(steps)[1:], others, strict=True):
        error = float((other - first).norm() / first.norm())
        assert error < 1e-3, f"{name} has another gradient: off by {error:.1e}"


def main() -> None:
    parser = options(__doc__, rounds=3)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the files of MAWPS and ASDiv-A")
    parser.add_argument("--config", default="smollm2-135m", help="a preset or a YAML file")
    parser.add_argument("--batch", type=int, default=16)
    arguments = read(parser)
    report, config = Report("real_training", arguments), settings(arguments.config, arguments.data)
    torch.manual_seed(0)
    backbone = load_backbone(config)
    traces = load_traces(config, backbone)
    size = 4 if arguments.quick else arguments.batch
    batch = [traces[index] for _, index in batch_at(1, size, len(traces), config.sft.seed)]
    learner = supervised_model(backbone, config)
    fine_tuning = sft.SftTrainer(learner, batch, config.sft)
    steps: dict[str, Step] = {
        "transformers + peft": partial(plain_step, learner, batch, 1),
        "transformers + peft, by 4": partial(plain_step, learner, batch, -(-size // 4)),
        "tyler SFT": partial(fine_tuning.accumulate, batch),
    }
    check_equal([weight for weight in learner.policy.lora.parameters() if weight.requires_grad], steps)  # type: ignore[union-attr]
    blocks = config.stage1.insertions.model_copy(update={"min": config.stage1.insertions.max})
    operators = stage1.new_operators(config, backbone)
    chosen = config.stage1.model_copy(update={"insertions": blocks, "batch_size": size})
    examples = stage1.draw_batch(traces, chosen, 1)
    stage = stage1.Stage1Trainer(operators, traces, chosen)
    steps["tyler Stage 1"] = partial(stage.accumulate, examples)
    blocks_each = sum(len(example.insertions) for example in examples) / size
    report.add([Figure("latent blocks of a trace", "tyler Stage 1", blocks_each, "")])
    ways, tokens = {way: on_processor(step) for way, step in steps.items()}, sum(map(fine_tuning.num_positions, batch))
    report.add(compete([Contest(f"a step of {size} traces", ways, tokens, "tokens")], arguments.rounds))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
