"""The process behind `rewards.RewardFunction`: it loads one function and calls it with what comes through a pipe.

Run as a script, with the source, the function's name and the pipe's descriptor, and without torch. A reply is a pair:
what was asked for, or None and what went wrong. The first, before any columns, are the function's parameters.
"""

import importlib
import importlib.util
import inspect
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def load(source: str, name: str) -> Any:
    """The function. Raises an error that says what keeps it from being loaded."""
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


def parameters(function: Any) -> tuple[list[tuple[str, bool]], bool]:
    """The parameters that are given by name, with whether each must be, and whether the function takes any other."""
    found = inspect.signature(function).parameters.values()
    named = [one for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in found)
    return [(one.name, one.default is one.empty) for one in named], takes_any


def failure(error: BaseException) -> str:
    """What went wrong, and the line of the function where it did."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"


def main() -> None:
    """Answer until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training, which ends its processes itself
    source, name, descriptor = sys.argv[1:]
    pipe = Connection(int(descriptor))
    try:
        function = load(source, name)
        pipe.send((parameters(function), None))
    except BaseException as error:
        pipe.send((None, failure(error)))
        return
    while True:
        try:
            pipe.send_bytes(pickle.dumps((function(**pipe.recv()), None)))  # torch's tensors too
        except EOFError:
            return
        except Exception as error:
            pipe.send((None, failure(error)))


if __name__ == "__main__":
    main()
