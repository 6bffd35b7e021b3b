"""The page of the Python API: the names that `tyler` exports and the functions behind them, for mkdocstrings to fill.

Every exported name needs its place in GROUPS.
"""

from importlib import import_module

import tyler

HEAD = """# Python API

The first four groups can be
imported from `tyler` itself, except `Engine`. Importing `tyler` takes no time: torch and transformers
are imported on first use.

```python no-run
from tyler import AtBoundaries, Sampling, Tyler

model = Tyler.from_pretrained("mini-tyler")
trajectory = model.solve("Find x when $5x - 28 = 47$.", budget=2, max_new_tokens=160)
```
"""
GROUPS = {
    "The model": ["Tyler", "Backbone", "CheckpointError"],
    "What an answer is": ["Trajectory", "Invocation", "TokenEvent", "InvocationEvent", "FinishEvent", "grade"],
    "How it is decoded": [
        "Sampling", "Learned", "Never", "AtBoundaries", "Forced", "Request", "engine.native.engine.Engine",
    ],
    "Operators and boundaries": ["Operator", "GLOBAL", "STATE", "PROCEDURE", "Boundary", "find_boundaries"],
    "Problems and evaluation": [
        "tasks.load_problems", "tasks.grade", "tasks.Problem", "tasks.Verdict",
        "reasoners.tyler.TylerReasoner", "evaluation.pass_at_1.evaluate", "evaluation.html_report.save",
    ],
    "Interventions and the lens": [
        "modeling.interventions.remove", "modeling.interventions.swap", "modeling.interventions.share",
        "modeling.interventions.zero", "modeling.interventions.fix",
        "lens.block.read_blocks", "lens.block.Reading", "lens.survey.survey", "lens.survey.Survey",
        "lens.survey.kept_answers",
    ],
    "Training": ["config.files.load_config", "training.stage1.run", "training.stage2.run"],
    "Version": ["__version__"],
}  # fmt: skip


def page() -> str:
    """The page as Markdown. Raises ValueError for an exported name without a place."""
    grouped = {name for names in GROUPS.values() for name in names}
    if left_out := sorted(set(tyler.__all__) - grouped):
        raise ValueError(f"no place in GROUPS for {', '.join(left_out)}")
    sections = [f"## {title}\n\n" + "\n\n".join(map(entry, names)) + "\n" for title, names in GROUPS.items()]
    return "\n".join([HEAD, *sections])


def entry(name: str) -> str:
    """A line that mkdocstrings replaces by signature and docstring; a constant has a line with its value."""
    if name == "__version__":
        return "`tyler.__version__` is the package's version."
    module, _, last = f"tyler.{name}".rpartition(".")
    member = getattr(import_module(module), last)
    if not callable(member):
        return f"`{last}` is `{member!r}`."
    return f"::: {member.__module__}.{member.__qualname__}"
