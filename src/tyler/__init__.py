"""Tyler: typed latent reasoning for language models.

    from tyler import Tyler

    model = Tyler.from_pretrained("mini")
    trajectory = model.solve("...")

Heavy libraries are imported when a name is first used, so that `import tyler` and the command line's help are instant.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tyler.boundaries.rules import Boundary as Boundary
    from tyler.boundaries.scanner import find_boundaries as find_boundaries
    from tyler.engine.request import FinishEvent as FinishEvent
    from tyler.engine.request import InvocationEvent as InvocationEvent
    from tyler.engine.request import Request as Request
    from tyler.engine.request import TokenEvent as TokenEvent
    from tyler.engine.routing import AtBoundaries as AtBoundaries
    from tyler.engine.routing import Forced as Forced
    from tyler.engine.routing import Learned as Learned
    from tyler.engine.routing import Never as Never
    from tyler.engine.sampling import Sampling as Sampling
    from tyler.engine.trajectory import Invocation as Invocation
    from tyler.engine.trajectory import Trajectory as Trajectory
    from tyler.model import Tyler as Tyler
    from tyler.modeling.backbone import Backbone as Backbone
    from tyler.modeling.manifest import CheckpointError as CheckpointError
    from tyler.modeling.operators import GLOBAL as GLOBAL
    from tyler.modeling.operators import PROCEDURE as PROCEDURE
    from tyler.modeling.operators import STATE as STATE
    from tyler.modeling.operators import Operator as Operator
    from tyler.tasks.grading import grade as grade

__version__ = "0.1.0"

# Before torch loads: threads that wait for each other sleep, so that a program on one of the cores costs little.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")

PUBLIC = {
    "boundaries.rules": ("Boundary",),
    "boundaries.scanner": ("find_boundaries",),
    "engine.request": ("FinishEvent", "InvocationEvent", "Request", "TokenEvent"),
    "engine.routing": ("AtBoundaries", "Forced", "Learned", "Never"),
    "engine.sampling": ("Sampling",),
    "engine.trajectory": ("Invocation", "Trajectory"),
    "model": ("Tyler",),
    "modeling.backbone": ("Backbone",),
    "modeling.manifest": ("CheckpointError",),
    "modeling.operators": ("GLOBAL", "PROCEDURE", "STATE", "Operator"),
    "tasks.grading": ("grade",),
}
HOMES = {name: module for module, names in PUBLIC.items() for name in names}

__all__ = ["__version__", *HOMES]


def __getattr__(name: str) -> object:
    if name in HOMES:
        return getattr(import_module(f"tyler.{HOMES[name]}"), name)
    raise AttributeError(f"module 'tyler' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
