"""SoftCoT: its prompt, its loss, its training and its answers, each against a slow transcription."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests import tiny
from tests.reasoners import soft
from torch import nn

from tyler.config.files import load_config
from tyler.config.schema import Config
from tyler.config.sections import BackboneConfig, DataConfig
from tyler.modeling.backbone import Backbone
from tyler.reasoners import registry
from tyler.reasoners.softcot import model as parts
from tyler.reasoners.softcot import sft as training
from tyler.reasoners.softcot.model import SoftCot, SoftCotSettings, Wording, reasoner
from tyler.reasoners.softcot.settings import SoftCotConfig
from tyler.reasoners.softcot.sft import Example
from tyler.runs.json_lines import read_jsonl
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt
from tyler.training.traces import traces_of

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SOLUTIONS = ("Let me solve $x$ = 5.", "Solution: $y$ is 12.\n\nSo we buy 12.", "Step 1: we add 5 and 12.", "It is 3.")
PROBLEMS = [Problem(f"p{i}", "jsonl", f"How many {i} x?", "5", solution=text) for i, text in enumerate(SOLUTIONS)]
WORDING = Wording("Give {n} for: {problem}", "Hints:", thoughts=3)
SMALL = SoftCotConfig(steps=6, batch_size=2, learning_rate=0.02, checkpoint_every=2, num_thoughts=5)


def backbone(family: str, dim: int = 32, template: str | None = TEMPLATE, markers: bool = True) -> Backbone:
    """A random backbone of a width, whose tokenizer may have a chat template and markers."""
    words = copy.deepcopy(soft.tokenizer())
    words.chat_template = template
    if markers:
        words.add_tokens(["<|box_start|>", "<|box_end|>"])
    config = tiny.config(family)
    config.vocab_size, config.hidden_size = len(words) + tiny.PADDING, dim
    network = tiny.CLASSES[family](config)
    tiny.randomize(network, torch.Generator().manual_seed(tiny.SEEDS[family]))
    return Backbone(id=f"tiny-{family}-{dim}", model=network, tokenizer=words)


def fresh(family: str = "qwen3", alone: bool = False, **settings) -> SoftCot:
    """`alone`: the backbone is its own assistant."""
    theta = backbone(family, **settings)
    helper = theta if alone else backbone("qwen2", dim=16)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return SoftCot.start(theta, helper, Prompt(instruction="Box it."), WORDING)


# -------------------------------------------------------------------------------- the transcription


def assistant_states(model: SoftCot, problem: Problem, number: int) -> torch.Tensor:
    """The assistant's last hidden states at its placeholders, found by their id."""
    words, network = model.assistant.tokenizer, model.assistant.model
    text = f"<|user|>Give {number} for: {problem.prompt}<|end|><|assistant|>" + "<eos>" * number
    ids = words.encode(text, add_special_tokens=False)
    places = [place for place, id in enumerate(ids) if id == words.eos_token_id]
    assert len(places) == number
    return network(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, places]


def embedded_prompt(model: SoftCot, problem: Problem, number: int) -> torch.Tensor:
    """The backbone's prompt as embeddings, thoughts in place, from the text as a whole."""
    words = model.backbone.tokenizer
    thoughts = "<|box_start|>" + "<eos>" * number + "<|box_end|>"
    text = f"<|user|>{problem.prompt}\n\nBox it.\n\nHints:\n{thoughts}<|end|><|assistant|>"
    ids = words.encode(text, add_special_tokens=False)
    embeds = model.backbone.model.get_input_embeddings().weight[ids].clone()
    places = [place for place, id in enumerate(ids) if id == words.eos_token_id]
    assert len(places) == number
    states = assistant_states(model, problem, number)
    embeds[places] = states @ model.projection.weight.T + model.projection.bias
    return embeds


def greedy(model: SoftCot, problem: Problem, number: int, length: int) -> list[int]:
    """Full passes over the growing prompt."""
    x, actions = embedded_prompt(model, problem, number), []
    table = model.backbone.model.get_input_embeddings().weight
    while len(actions) < length:
        token = int(model.backbone.model(inputs_embeds=x[None]).logits[0, -1].argmax())
        actions.append(token)
        if token in model.backbone.eos_ids:
            break
        x = torch.cat([x, table[[token]]])
    return actions


# ------------------------------------------------------------------------------------------ decoding


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_answers_are_those_of_the_transcription(family: str, alone: bool, slots: int) -> None:
    model = fresh(family, alone)
    for number in (1, 4):
        settings = SoftCotSettings(thoughts=number)
        solver = replace(reasoner(model, settings), max_new_tokens=16, slots=slots)
        found = solver.solve(PROBLEMS)
        with torch.no_grad():
            assert [one.actions for one in found] == [greedy(model, one, number, 16) for one in PROBLEMS]
        for one in found:
            assert (one.num_latents, one.num_visible) == (number, len(one.actions))
            assert 0 < one.synthesis_seconds < one.engine_seconds <= one.seconds


def test_a_problem_that_names_the_placeholder_moves_nothing() -> None:
    model = fresh()
    problem = Problem("p", "jsonl", f"What is <eos>{parts.HERE} and <|box_start|>?", "5")
    ids, places = model.prompt_with_places(problem, 4)
    words = model.backbone.tokenizer
    box = words.get_vocab()["<|box_start|>"], words.get_vocab()["<|box_end|>"]
    assert places == tuple(range(places[0], places[0] + 4))
    assert (ids[places[0] - 1], ids[places[-1] + 1]) == box
    assert [ids[place] for place in places] == [words.eos_token_id] * 4
    assert words.decode(ids[places[-1] + 2 :]) == "<|end|><|assistant|>"


def test_a_tokenizer_without_template_and_markers_has_its_placeholder_around_the_thoughts() -> None:
    model = fresh(template=None, markers=False)
    ids, places = model.prompt_with_places(PROBLEMS[0], 2)
    words = model.backbone.tokenizer
    assert ids[places[0] - 1 : places[-1] + 2] == [words.eos_token_id] * 4
    assert words.decode(ids[: places[0] - 1]) == "How many 0 x?\n\nBox it.\n\nHints:\n"
    assert words.decode(ids[places[-1] + 2 :]) == "\n"
    words.pad_token = words.unk_token = words.eos_token = None
    with pytest.raises(ValueError, match="no pad, unk or eos"):
        parts.placeholder(words)


def test_a_problems_own_instruction_goes_before_the_prompts() -> None:
    model = fresh()
    ids, _ = model.prompt_with_places(replace(PROBLEMS[0], instruction="Say so."), 1)
    text = model.backbone.tokenizer.decode(ids)
    assert "Say so." in text and "Box it." not in text


def test_the_placeholder_is_the_releases_where_the_tokenizer_has_it() -> None:
    """Qwen's `<|endoftext|>` and Llama's `<|end_of_text|>`, not whatever pads: SmolLM3 pads with its end of turn."""
    for name in ("<|endoftext|>", "<|end_of_text|>"):
        words = copy.deepcopy(soft.tokenizer())
        assert words.pad_token == words.eos_token and parts.placeholder(words) == words.eos_token_id
        words.add_tokens([name])
        assert parts.placeholder(words) == words.get_vocab()[name]


# ------------------------------------------------------------------------------------------ training


TURNS = TEMPLATE.replace("<|{{ message['role'] }}|>", "<|start|>{{ message['role'] }}\n").replace(
    "<|end|>", "<|end|>\n"
)
TURNS = TURNS.replace("<|assistant|>", "<|start|>assistant\n")
"""A template whose header has several tokens, and a newline between the turns, as Qwen's."""


def labels_of_the_release(model: SoftCot, problem: Problem, number: int) -> tuple[list[int], list[int]]:
    """The ids of a whole chat and its labels: all from two after the token that follows the thoughts."""
    words = model.backbone.tokenizer
    text = f"{problem.prompt}\n\nBox it.\n\nHints:\n<|box_start|>{'<eos>' * number}<|box_end|>"
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": problem.solution}]
    ids = words.encode(words.apply_chat_template(turns, tokenize=False), add_special_tokens=False)
    behind = max(place for place, id in enumerate(ids) if id == words.get_vocab()["<|box_end|>"])
    return ids, [-100] * (behind + 2) + ids[behind + 2 :]


@pytest.mark.parametrize("template", [TEMPLATE, TURNS])
def test_the_assistants_header_is_learned_as_in_the_release_or_left_out(template: str) -> None:
    model = fresh(template=template)
    words = model.backbone.tokenizer
    words.add_tokens(["<|start|>", "<|end|>", "<|user|>", "<|assistant|>"])
    for problem in PROBLEMS:
        ids, labels = labels_of_the_release(model, problem, 5)
        target = words.encode(problem.solution, add_special_tokens=False)
        one = training.tokenize(model, problem, 5, learn_header=True)
        end = words.get_vocab()["<|end|>"]
        last = len(ids) - ids[::-1].index(end) - 1  # the answer ends where the template ends its turn
        assert one.prompt_ids + one.target_ids == [*ids[:last], end]
        assert one.target_ids[:-1] == [id for id in labels[:last] if id != -100]
        assert len(one.target_ids) > len(target) + 1
        bare = training.tokenize(model, problem, 5, learn_header=False)
        assert bare.target_ids == [*target, end]
        assert bare.prompt_ids + bare.target_ids == one.prompt_ids + one.target_ids


def test_without_a_chat_template_there_is_no_header_to_learn() -> None:
    model = fresh(template=None)
    given = [training.tokenize(model, PROBLEMS[0], 2, learn_header=learned) for learned in (True, False)]
    assert given[0] == given[1]


def examples_of(model: SoftCot, number: int = 5) -> list[Example]:
    return [training.tokenize(model, problem, number, learn_header=False) for problem in PROBLEMS]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_loss_and_its_gradients_are_those_of_transformers(family: str) -> None:
    model = fresh(family)
    examples = examples_of(model)
    count = sum(len(example.target_ids) for example in examples)
    trainer = training.SoftCotTrainer(model, examples, SMALL)
    trainer.batch_loss(examples, count).backward()
    ours = [parameter.grad.clone() for parameter in model.projection.parameters()]
    loss = trainer.batch_loss(examples, count)
    model.projection.zero_grad()
    table = model.backbone.model.get_input_embeddings().weight
    expected = torch.zeros(())
    for problem, example in zip(PROBLEMS, examples, strict=True):
        prompt = embedded_prompt(model, problem, 5)
        targets = [*model.backbone.tokenizer.encode(problem.solution), model.backbone.tokenizer.eos_token_id]
        assert example.target_ids == targets
        labels = torch.tensor([[-100] * len(prompt) + targets])
        embeds = torch.cat([prompt, table[targets]])[None]
        out = model.backbone.model(inputs_embeds=embeds, labels=labels, num_items_in_batch=torch.tensor(count))
        expected = expected + out.loss
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
    for gradient, parameter in zip(ours, model.projection.parameters(), strict=True):
        assert parameter.grad is not None and float(gradient.abs().max()) > 1e-4
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-6, rtol=1e-4)


# ---------------------------------------------------------------------------------------- checkpoints


def place_of(folder: Path) -> Config:
    """A backbone, an assistant and traces on disk, and a config that trains on them."""
    for name, one in (("backbone", backbone("qwen3")), ("assistant", backbone("qwen2", dim=16))):
        tiny.save(one, folder / name)
    rows = [{"problem": p.prompt, "solution": f"{p.solution} \\boxed{{5}}", "answer": "5"} for p in PROBLEMS]
    (folder / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Config(
        backbone=BackboneConfig(id=str(folder / "backbone"), dtype="float32"),
        data=DataConfig(task="jsonl", path=str(folder / "traces.jsonl")),
        softcot=SMALL.model_copy(update={"assistant": str(folder / "assistant"), "steps": 2}),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SoftCot]:
    folder = tmp_path_factory.mktemp("softcot")
    return folder, training.run(place_of(folder), output=folder / "run")


def test_the_command_trains_and_its_run_reloads_bit_equal(trained: tuple[Path, SoftCot]) -> None:
    folder, model = trained
    assert len(read_jsonl(folder / "run" / "metrics.jsonl")) == 2
    (saved,) = (folder / "run" / "checkpoints").glob(f"step-2/{parts.WEIGHTS}")
    assert model.saved_bytes() == sum(tensor.nbytes for tensor in load_file(saved).values())
    loaded = registry.load(str(folder / "run"), name="x", max_new_tokens=12, slots=2)
    assert (loaded.method, loaded.settings, loaded.weights) == ("softcot", SoftCotSettings(), model.fingerprint())
    again = replace(reasoner(model, SoftCotSettings()), max_new_tokens=12, slots=2)
    for one, other in zip(loaded.reasoner.solve(PROBLEMS), again.solve(PROBLEMS), strict=True):
        assert (one.actions, one.logprobs, one.num_latents) == (other.actions, other.logprobs, 4)
    more = registry.load(str(folder / "run"), None, ["thoughts=7"], name="x", max_new_tokens=2)
    assert more.reasoner.solve(PROBLEMS[:1])[0].num_latents == 7


def test_a_checkpoint_keeps_its_placeholders(tmp_path: Path) -> None:
    for name, one in (("backbone", backbone("qwen3")), ("assistant", backbone("qwen2", dim=16))):
        one.tokenizer.add_tokens(["<|endoftext|>"])
        one.model.resize_token_embeddings(len(one.tokenizer) + tiny.PADDING)
        tiny.save(one, tmp_path / name)
    theta, helper = (Backbone.load(str(tmp_path / name), dtype="float32") for name in ("backbone", "assistant"))
    model = SoftCot.start(theta, helper, Prompt(instruction="Box it."), WORDING)
    endoftext = theta.tokenizer.get_vocab()["<|endoftext|>"]
    assert model.placeholders == parts.Placeholders(endoftext, endoftext)
    folder = tmp_path / "checkpoint"
    model.save_pretrained(folder)
    assert SoftCot.from_pretrained(folder).placeholders == model.placeholders


def test_traces_over_the_limit_are_left_out_and_counted(tmp_path: Path, caplog) -> None:
    config = place_of(tmp_path)
    model = fresh()
    sizes, room = sorted(map(len, traces_of(PROBLEMS, config, model.backbone))), config.most_latents
    short = config.stage1.model_copy(update={"max_length": sizes[1] + room})
    assert len(training.examples_of(PROBLEMS, config.model_copy(update={"stage1": short}), model)) == 2
    assert f"left out 2 of 4 traces, in every method: 2 over {sizes[1]} tokens" in caplog.text


def test_the_authors_settings_are_the_defaults() -> None:
    for settings in (SoftCotConfig(), load_config("paper").softcot):
        assert (settings.learning_rate, settings.batch_size, settings.epochs) == (2e-5, 4, 10)
        assert (settings.num_thoughts, settings.eval_thoughts, settings.assistant) == (32, 4, None)
        assert settings.learn_header
    assert not load_config("mini").softcot.learn_header, "its published rows learned the solution alone"
    with pytest.raises(ValueError, match=r"no \{problem\}"):
        SoftCotConfig(request="Give {n} tokens.")
    assert isinstance(fresh().projection, nn.Linear) and fresh().projection.bias is not None
