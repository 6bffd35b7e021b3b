"""What runs inside the sandbox: the judge, which holds the test, and the program under test, in a process of its own.

`tyler.tasks.sandbox` starts this file by its path, under `python -I -S`, with the number of a pipe's end and, in a
sandbox, that of the call keyctl; it imports the standard library only. The two processes talk through two pipes. The
program is sent arguments and sends back plain data, so it never sees the test, an expected value or the token; nor can
it return an object that equals everything. The judge writes the token to the pipe once the test has ended, and cannot
be traced or read by the program.
"""

import ctypes
import errno
import json
import os
import pickle
import resource
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO

_PR_SET_DUMPABLE = 4
_KEYCTL_JOIN_SESSION_KEYRING = 1
_NOBODY = 65534
_MAX_ITEMS = 100_000
_MAX_WORDS = 300

Reply = tuple[str, Any]
"""How a step of the program ended: returned (plain data), other (truth, items), raised or unreadable (words)."""


def main() -> None:
    """Give up what is the caller's, fork the program, then read the order from standard input and judge."""
    result, *keyctl = map(int, sys.argv[1:])
    if sys.platform == "linux":
        _seclude(*keyctl)
    os.write(result, b"ready\n")
    calls, replies = os.pipe(), os.pipe()
    if os.fork() == 0:  # before the order is read: the program's memory never held it
        for end in (calls[1], replies[0], result):
            os.close(end)
        _silence(0, 1, 2)
        _serve(os.fdopen(calls[0], "rb"), os.fdopen(replies[1], "wb"))
        os._exit(0)
    os.close(calls[0])
    os.close(replies[1])
    paper = json.load(sys.stdin)
    token, order = paper["token"], paper["order"]
    _silence(0, 1)
    _limit(order["limits"])  # replies may be huge
    ending, why = _judge(order, Program(os.fdopen(calls[1], "wb"), os.fdopen(replies[0], "rb")))
    os.write(result, json.dumps({"token": token, "ending": ending, "why": why[:_MAX_WORDS]}).encode() + b"\n")
    os._exit(0)  # not sys.exit: the interpreter's farewell takes longer than most programs


def _seclude(keyctl: int | None = None) -> None:
    """Hide from the program; in a sandbox, leave the caller's keyring first, and drop root where the sandbox has it.

    Ends the process where it cannot have one of these. A kernel without keyrings has nothing to leave.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if keyctl is not None:
        command, no_name = ctypes.c_long(_KEYCTL_JOIN_SESSION_KEYRING), ctypes.c_void_p(None)
        if libc.syscall(ctypes.c_long(keyctl), command, no_name) == -1 and ctypes.get_errno() != errno.ENOSYS:
            reason = os.strerror(ctypes.get_errno())
            sys.exit(f"no keyring of its own can be had ({reason}), so it would share the caller's")
        if os.getuid() == 0:
            os.chmod("/tmp", 0o1777)
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        sys.exit("prctl(PR_SET_DUMPABLE) failed: the test cannot be hidden from the program")


def _silence(*ends: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for end in ends:
        os.dup2(null, end)
    os.close(null)


class Program:
    """The program as the test sees it: a function whose calls happen in the other process."""

    def __init__(self, calls: BinaryIO, replies: BinaryIO) -> None:
        self._calls, self._replies = calls, replies

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        how, what = self.ask((args, kwargs))
        if how == "returned":
            return what
        if how == "other":
            return Other(*what)
        raise RuntimeError(str(what))

    def ask(self, message: Any) -> Reply:
        """Send a message and wait for its reply. Raises ValueError for a reply that is not one."""
        pickle.dump(message, self._calls)
        self._calls.flush()
        reply = _PlainUnpickler(self._replies).load()
        if not (isinstance(reply, tuple) and len(reply) == 2):
            raise ValueError("the program sent something that is not a reply")
        return reply


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, strings and collections, and refuses whatever would import or call."""

    def find_class(self, module: str, name: str, /) -> Any:
        raise pickle.UnpicklingError(f"the program sent a {module}.{name}; only plain data crosses")


class Other:
    """A returned value that is not plain data: it equals nothing, but has a truth value, and perhaps items."""

    def __init__(self, truth: bool, items: list[Any] | None) -> None:
        self._truth, self._items = truth, items

    def __bool__(self) -> bool:
        return self._truth

    def __iter__(self) -> Iterator[Any]:
        if self._items is None:
            raise TypeError("the returned object is not iterable")
        return iter(self._items)


def _judge(order: Mapping[str, Any], program: Program) -> tuple[str, str]:
    """The ending and its reason: the program is defined, then the test's `check` is called with it."""
    try:
        how, what = program.ask([order[key] for key in ("packages", "limits", "prelude", "program", "entry_point")])
        if how != "returned":
            return ("unreadable" if how == "unreadable" else "failed"), str(what)
        names: dict[str, Any] = {"__name__": "test"}
        exec(compile(order["prelude"], "prelude", "exec"), names)
        names[order["entry_point"]] = program
        exec(compile(order["test"], "test", "exec"), names)
        names["check"](program)
    except EOFError:
        return "failed", "the program ended by itself"
    except BaseException as error:
        return "failed", _words(error)
    return "passed", ""


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")[:_MAX_WORDS]
    except BaseException:
        return type(error).__name__


def _serve(calls: BinaryIO, replies: BinaryIO) -> None:
    """Define the program, then call it as often as the judge asks."""
    packages, limits, prelude, program, entry_point = pickle.load(calls)
    sys.path.append(packages)
    _limit(limits)
    module = types.ModuleType("program")
    sys.modules["program"] = module
    pickle.dump(_define(prelude, program, module), replies)
    replies.flush()
    with suppress(EOFError):
        while True:
            args, kwargs = pickle.load(calls)
            pickle.dump(_call(getattr(module, entry_point), args, kwargs), replies)
            replies.flush()


def _limit(limits: Mapping[str, int]) -> None:
    """Set the process's limits, by name ("AS", "CPU", ...), where the system has them."""
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with suppress(ValueError, OSError):  # macOS lists RLIMIT_AS and refuses to set it
            resource.setrlimit(kind, (value, value))


def _define(prelude: str, program: str, module: types.ModuleType) -> Reply:
    try:
        compiled = compile(program, "program", "exec")
    except BaseException as error:
        return "unreadable", _words(error)
    try:
        exec(compile(prelude, "prelude", "exec"), module.__dict__)
        exec(compiled, module.__dict__)
    except BaseException as error:
        return "raised", _words(error)
    return "returned", None


def _call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reply:
    try:
        value = function(*args, **kwargs)
    except BaseException as error:
        return "raised", _words(error)
    try:
        return "returned", _plain(value)
    except Exception:
        return _other(value)


def _other(value: Any) -> Reply:
    try:
        items = [_plain(item) for item in islice(value, _MAX_ITEMS)] if isinstance(value, Iterable) else None
        return "other", (bool(value), items)
    except BaseException as error:
        return "raised", _words(error)


_ATOMS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (bool, bool.__bool__),
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (bytes, bytes),
)
_COLLECTIONS: tuple[type[Any], ...] = (list, tuple, set, frozenset)


def _plain(value: Any) -> Any:
    """`value` as built-in data: subclasses (Counter, IntEnum) lose their class, other numbers become floats.

    Raises TypeError for what is not data, and RecursionError for data that has no end.
    """
    if value is None:
        return None
    for atom, convert in _ATOMS:
        if isinstance(value, atom):
            return convert(value)
    for collection in _COLLECTIONS:
        if isinstance(value, collection):
            return collection(map(_plain, collection.__iter__(value)))
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in dict.items(value)}
    if hasattr(value, "__float__") and (number := float(value)) == value:  # Fraction(1, 2), Decimal("0.5")
        return number
    raise TypeError(type(value).__name__)


if __name__ == "__main__":
    main()
