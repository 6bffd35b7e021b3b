"""The process behind `reward_functions.py`: loads one function and calls it with the columns of each line that comes.

Run as a script, with the source and the function's name, and without torch. A line is JSON, and so is the
reply: `{"value": ...}` or `{"error": ...}`. The first reply, before any line, are the function's parameters (null:
any). What the function prints goes to standard error.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any


def load(source: str, name: str) -> Any:
    """The function. Raises whatever keeps it from being loaded."""
    if not source.endswith(".py"):
        return getattr(importlib.import_module(source), name)
    path = Path(source).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if name not in vars(module):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise AttributeError(f"there is no function {name!r} in {source}; it defines {', '.join(functions) or 'none'}")
    return vars(module)[name]


def parameters(function: Any) -> list[tuple[str, bool]] | None:
    """The parameters that may be given by name, with whether each must be; None where the function takes any."""
    found = list(inspect.signature(function).parameters.values())
    if any(one.kind is one.VAR_KEYWORD for one in found):
        return None
    return [(one.name, one.default is one.empty) for one in found if one.kind is not one.VAR_POSITIONAL]


def number(value: Any) -> Any:
    """A reward in JSON's types: a number of numpy or torch as a float, and any other value as its text."""
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return repr(value)


def values(function: Any, columns: dict[str, Any]) -> Any:
    """What the function gives."""
    given = function(**columns)
    return [number(value) for value in given] if hasattr(given, "__iter__") else repr(given)


def failure(error: BaseException) -> str:
    """What went wrong, and the line of the function where it did."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"


def main() -> None:
    """Answer lines until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training, which ends its processes itself
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(**content: Any) -> None:
        out.write(json.dumps(content) + "\n")
        out.flush()

    try:
        function = load(sys.argv[1], sys.argv[2])
        reply(value=parameters(function))
    except BaseException as error:
        reply(error=failure(error))
        return
    for line in sys.stdin:
        try:
            reply(value=values(function, json.loads(line)))
        except Exception as error:
            reply(error=failure(error))


if __name__ == "__main__":
    main()
