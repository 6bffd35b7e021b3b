from pathlib import Path

import pytest

from tyler.config.files import ConfigError, dump, load_config, parse_config, presets
from tyler.config.loops import OptimizationConfig
from tyler.config.schema import Config
from tyler.modeling.operators import PAPER_OPERATORS

BACKBONES = {
    "paper": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "smollm2-135m": "smollm2",
    "smollm3-3b": "HuggingFaceTB/SmolLM3-3B",
    "qwen3-4b": "Qwen/Qwen3-4B",
}


def refusal(path_or_preset: str | Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path_or_preset, overrides)
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "run.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_there_is_a_preset_for_mini_and_for_every_backbone_of_the_paper() -> None:
    assert presets() == sorted(["mini", *BACKBONES])
    assert load_config("mini").backbone.id == "mini"


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "smollm2-135m"])
def test_the_papers_table_of_hyperparameters_is_in_every_backbones_config(name: str) -> None:
    config = load_config(name)
    assert config.backbone.id == BACKBONES[name]
    assert config.lora.model_dump() == {"rank": 8, "alpha": 16, "dropout": 0.1, "target_modules": ("q_proj", "v_proj")}
    assert config.operators == PAPER_OPERATORS
    assert [operator.num_latents for operator in config.operators] == [8, 4, 4]
    assert (config.data.task, config.data.path, config.data.count, config.data.seed) == ("openr1", None, 15_000, 42)
    for stage, epochs in ((config.stage1, 2), (config.stage2, 1)):
        assert (stage.batch_size, stage.epochs, stage.steps) == (8, epochs, None)
        assert (stage.learning_rate, stage.optimizer, stage.scheduler) == (1e-5, "adamw", "cosine")
        assert (stage.warmup_ratio, stage.seed) == (0.1, 42)
    assert config.stage2.psi_learning_rate is None
    assert (config.stage1.insertions.min, config.stage1.insertions.max) == (1, 1)
    grpo = config.grpo
    assert (grpo.group_size, grpo.clip_range, grpo.kl_weight) == (8, 0.2, 0.03)
    assert (grpo.budget, grpo.budget_weight, grpo.anchor_weight) == (5, 0.1, 0.1)
    assert (config.decoding.temperature, config.decoding.max_new_tokens) == (0, 2048)
    assert not config.backbone.thinking


def test_the_defaults_are_the_papers_values() -> None:
    paper = load_config("paper")
    assert Config(backbone=paper.backbone, data=paper.data, evaluation=paper.evaluation) == paper


def test_a_file_says_only_what_differs_from_what_it_extends(write) -> None:
    write("extends: mini\ngrpo: {kl_weight: 0.5}", "base.yaml")
    config = load_config(write("extends: base.yaml\nlora:\n  rank: 2\nstage1:\n"))
    assert config.lora.rank == 2
    assert config.grpo.kl_weight == 0.5
    assert config.stage1 == load_config("mini").stage1


def test_configs_that_extend_each_other_are_refused(write) -> None:
    write("extends: b.yaml", "a.yaml")
    assert "a.yaml -> b.yaml -> a.yaml" in refusal(write("extends: a.yaml", "b.yaml").with_name("a.yaml"))


@pytest.mark.parametrize(
    ("override", "value"), [("grpo.kl_weight=0.01", 0.01), ("--grpo.kl_weight=1e-2", 0.01), ("grpo.kl_weight=1", 1.0)]
)
def test_overrides_are_yaml_values_at_dotted_keys(override: str, value: float) -> None:
    assert load_config("mini", [override]).grpo.kl_weight == value


def test_null_in_a_file_takes_away_a_section_that_may_be_null_and_no_other(write) -> None:
    assert load_config("mini").data.development is not None
    path = write("extends: mini\ndata: {development: null}\ngrpo:\n")
    assert load_config(path).data.development is None
    assert load_config("mini", ["data={development: null}"]).data.development is None
    assert load_config(path).grpo == load_config("mini").grpo


def test_a_section_in_an_override_changes_what_it_names_as_in_a_file() -> None:
    mini = load_config("mini").stage1
    found = load_config("mini", ["stage1={steps: 5}", "stage1.insertions={max: 4}"]).stage1
    assert found == mini.model_copy(update={"steps": 5, "insertions": mini.insertions.model_copy(update={"max": 4})})


def test_overrides_reach_lists_and_places_in_lists() -> None:
    config = load_config(
        "mini", ["operators.1.num_latents=2", "lora.target_modules=[q_proj, k_proj]", "data.count=null"]
    )
    assert [operator.num_latents for operator in config.operators] == [8, 2, 4]
    assert config.lora.target_modules == ("q_proj", "k_proj")
    assert config.data.count is None


def test_a_misspelt_key_is_refused_with_the_one_that_was_meant() -> None:
    text = refusal("mini", "grpo.kl_wieght=0.1")
    assert "there is no key 'grpo.kl_wieght'; did you mean 'kl_weight'?" in text
    assert "allowed: group_size, loss, clip_range" in text
    assert "did you mean 'grpo'?" in refusal("mini", "grop.kl_weight=0.1")
    assert "did you mean 'first'?" in refusal("mini", "stage1.insertions.frist=global")
    assert "did you mean 'num_latents'?" in refusal("mini", "operators.0.num_latent=3")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stage1.batch_size=0", ["stage1.batch_size = 0", "greater than or equal to 1"]),
        ("stage1.batch_size=1000000000", ["stage1.batch_size = 1000000000", "less than or equal to 65536"]),
        ("memgen.trigger.group_size=1000000000", ["memgen.trigger.group_size = 1000000000", "65536"]),
        ("stage1.batch_size=yes", ["stage1.batch_size = true", "valid integer"]),
        ("stage1.seed=9223372036854775808", ["stage1.seed = 9223372036854775808", "less than"]),
        ("data.seed=-1", ["data.seed = -1"]),
        ("lora.target_modules=[q_porj]", ['lora.target_modules.0 = "q_porj"', "'q_proj', 'k_proj'"]),
        ("lora.target_modules=[lm_head]", ["lm_head"]),
        ("stage1.batch_size=8.0", ["stage1.batch_size = 8.0", "integer"]),
        ("stage1.scheduler=cosin", ['stage1.scheduler = "cosin"', "'cosine' or 'constant'"]),
        ("stage1.learning_rate=.nan", ["stage1.learning_rate", "finite"]),
        ("stage1.learning_rate=fast", ['stage1.learning_rate = "fast"', "valid number"]),
        ("grpo=3", ["grpo = 3"]),
        ("grpo.group_size=1", ["grpo.group_size = 1", "2"]),
        ("stage1.micro_batch_size=1000", ["stage1.micro_batch_size = 1000: a step has 24 examples; set at most 24"]),
        ("stage1.micro_batch_tokens=0", ["stage1.micro_batch_tokens", "greater than or equal to 1", "'auto'"]),
        (
            "sft={micro_batch_size: 2, micro_batch_tokens: auto}",
            ["micro_batch_size=2 and micro_batch_tokens=auto both"],
        ),
        ("stage1={shard_layers: true, insertions: {max: 1}, micro_batch_tokens: 512}", ["micro_batch_tokens=null"]),
        ("stage1.insertions.min=9", ["min=9 is above max=8"]),
        ("stage1.insertions.first=glob", ["'glob' is not an operator; did you mean 'global'?"]),
        ("operators.0.num_latents=0", ["operators.0", "num_latents=0"]),
        ("operators.0.name=state", ["operator names must differ"]),
        ("operators=[]", ["operators", "at least 1"]),
        ("data.task=jsonl", ["data.path"]),
        ("grpo.kl_weight", ["section.key=value"]),
        ("grpo..kl_weight=1", ["section.key=value"]),
        ("grpo.kl_weight=[1", ["cannot read the value '[1'"]),
    ],
)
def test_an_impossible_value_is_refused_by_name_with_what_came_and_what_is_allowed(
    override: str, words: list[str]
) -> None:
    text = refusal("mini", override)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("section", "group", "step"),
    [
        ("stage1", None, "5 examples"),
        ("sft", None, "5 examples"),
        ("softcot", None, "5 examples"),
        ("memgen.weaver", None, "5 examples"),
        ("stage2", "grpo", "15 answers (5 prompts, 3 each)"),
        ("memgen.weaver_grpo", "memgen.weaver_grpo", "15 answers (5 prompts, 3 each)"),
        ("memgen.trigger", "memgen.trigger", "15 answers (5 prompts, 3 each)"),
    ],
)
def test_a_micro_batch_is_of_examples_or_of_the_answers_to_all_prompts_of_a_step(
    section: str, group: str | None, step: str
) -> None:
    settings = [f"{section}.batch_size=5", *([f"{group}.group_size=3"] if group else [])]
    rows = int(step.split()[0])
    config = load_config("mini", [*settings, f"{section}.micro_batch_size={rows}"])
    assert config.rows(section) == config.loops[section].micro_batch_size == rows
    text = refusal("mini", *settings, f"{section}.micro_batch_size={rows + 1}")
    assert f"{section}.micro_batch_size = {rows + 1}: a step has {step}; set at most {rows}, or null" in text


def test_every_section_of_a_loop_is_among_the_loops() -> None:
    config = load_config("mini")
    sections = {name: getattr(config, name) for name in type(config).model_fields}
    sections |= {f"memgen.{name}": getattr(config.memgen, name) for name in type(config.memgen).model_fields}
    assert config.loops == {name: part for name, part in sections.items() if isinstance(part, OptimizationConfig)}
    assert set(config.loops) == set(LOOPS)


@pytest.mark.parametrize("operator", ["{name: x, num_latents: 0, boundary: step}", "{name: x}", "3"])
def test_an_impossible_operator_is_reported_once(operator: str) -> None:
    text = refusal("mini", f"operators=[{operator}]", "stage1.insertions.first=null")
    assert "operators.0" in text
    assert "at least 1 item" not in text


def test_every_problem_is_named_at_once() -> None:
    assert len(refusal("mini", "lora.rank=0", "grpo.bugdet=3", "stage2.seed=a").splitlines()) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [1", "is not YAML: while parsing a flow sequence at line 1, column 4"),
        ("- 1", "holds list"),
        ("satge1:\n  steps: 3", "did you mean 'stage1'?"),
        ("stage1: {steps: 1}\nstage1: {batch_size: 2}", "'stage1' is there twice"),
        ("stage1: {steps: 1, steps: 2}", "'steps' is there twice"),
        ("# caf\xe9\n", "run.yaml is not UTF-8"),
        ("# nothing", "run.yaml has no settings; write what differs from a preset"),
    ],
)
def test_a_file_that_is_not_a_config_is_refused(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(content.encode("latin-1"))
    assert words in refusal(tmp_path / "run.yaml")


def test_a_preset_that_is_not_there_is_refused_with_the_one_that_was_meant() -> None:
    assert "did you mean 'mini'?" in refusal("miny")


def test_epochs_may_be_null_beside_steps_and_one_of_them_is_given() -> None:
    stage = load_config("paper", ["stage1.epochs=null", "stage1.steps=7"]).stage1
    assert (stage.epochs, stage.num_steps(15_000)) == (None, 7)
    with pytest.raises(
        ConfigError, match=r"stage1: epochs and steps are both null, and one of them says how long it takes"
    ):
        load_config("paper", ["stage1.epochs=null"])


def test_the_bound_on_memory_is_read_with_its_unit() -> None:
    config = load_config("paper", ["decoding.memory=4GB"])
    assert config.decoding.memory == 4 * 10**9 and parse_config(dump(config)) == config
    assert load_config("paper").decoding.memory is None
    assert load_config("paper", ["decoding.memory=500_000_000"]).decoding.memory == 500_000_000
    for value in ("lots", "0", "-1GB"):
        with pytest.raises(ConfigError, match=r"decoding.memory: .* a number of bytes, such as 4GB"):
            load_config("paper", [f"decoding.memory={value}"])


def test_steps_replace_epochs() -> None:
    stage = load_config("paper").stage1
    assert stage.num_steps(15_000) == 2 * 1875
    assert stage.num_steps(9) == 3, "two passes are 18 examples, and a batch has 8"
    assert stage.model_copy(update={"epochs": 1.1}).num_steps(80) == 11, "whatever 1.1 * 80 is rounded to"
    assert load_config("paper", ["stage1.steps=7"]).stage1.num_steps(15_000) == 7


def test_a_config_does_not_change_after_loading() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config("mini").grpo.kl_weight = 1.0  # type: ignore[misc]


LOOPS = ("stage1", "stage2", "sft", "softcot", "memgen.weaver", "memgen.weaver_grpo", "memgen.trigger")


@pytest.mark.parametrize("loop", LOOPS)
def test_any_loop_that_watches_has_development_problems(loop: str) -> None:
    quiet = [f"{one}.eval_every=null" for one in LOOPS]
    assert load_config("mini", quiet).development_set is None
    assert load_config("mini", [*quiet, f"{loop}.eval_every=5"]).development_set is not None


def test_development_problems_may_be_of_another_task_than_the_training_problems() -> None:
    given = ["data.task=mawpsvaried", "data.path=files", "data.development.task=mawps"]
    watched = load_config("smollm2-135m", given).development_set
    assert watched is not None and (watched.task, watched.split, watched.set_aside) == ("mawps", "dev", None)
    own = load_config("smollm2-135m", given[:2]).development_set
    assert own is not None and own.task == "mawpsvaried" and own.set_aside == 100
