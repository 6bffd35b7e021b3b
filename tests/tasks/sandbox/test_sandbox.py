"""Attacks on the sandbox: what each tries to reach, forge or exhaust, and that it does not."""

import ctypes
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tyler.tasks.sandbox import sandbox, seccomp
from tyler.tasks.sandbox.bubblewrap import SandboxError
from tyler.tasks.sandbox.sandbox import Ending, Limits, Report, execute, probe

needs_sandbox = pytest.mark.skipif(bool(probe()), reason=probe())
SHORT, LONG = Limits(seconds=1.0), Limits(seconds=30)
"""For what will not end by itself, and for what will, on however busy a machine."""


def run(program: str, test: str = "assert f() == 42", limits: Limits | None = None, **settings: Any) -> Report:
    check = "def check(f):\n" + "".join(f"    {line}\n" for line in test.splitlines())
    return execute(program, entry_point="f", test=check, limits=limits or LONG, **settings)


def judges() -> set[int]:
    """Processes that came from a judge, by their command line."""
    processes = set()
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        command = process.info["cmdline"] or []
        if any(part.endswith("judge.py") for part in command) and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.add(process.info["pid"])
    return processes


def assert_nothing_remains() -> None:
    left, end = judges(), time.monotonic() + 5
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left &= judges()
    assert not left, f"processes of the program still run: {left}"


# -------------------------------------------------------------------------------------------- what a program may return


@needs_sandbox
@pytest.mark.parametrize(
    ("expression", "test"),
    [
        ("42", "assert f() == 42"),
        ("True", "assert f() is True"),
        ("[1, (2.5, None), {'a': {3}}, b'x', frozenset({4})]",
         "assert f() == [1, (2.5, None), {'a': {3}}, b'x', frozenset({4})]"),
        ("float('nan')", "assert f() != f()"),
        ("__import__('collections').Counter('aab')", "assert f() == {'a': 2, 'b': 1}"),
        ("__import__('collections').namedtuple('P', 'x y')(1, 2)", "assert f() == (1, 2)"),
        ("__import__('http').HTTPStatus.OK", "assert f() == 200"),
        ("__import__('fractions').Fraction(1, 2)", "assert f() == 0.5"),
        ("__import__('decimal').Decimal('0.5')", "assert f() == 0.5"),
        ("(x * x for x in range(3))", "assert f() != [0, 1, 4] and tuple(f()) == (0, 1, 4)"),
        ("__import__('re').match('a', 'ab')", "assert f()"),
        ("__import__('collections').deque()", "assert not f()"),
    ],
)  # fmt: skip
def test_the_test_sees_what_the_function_returns(expression: str, test: str) -> None:
    assert run(f"def f(): return {expression}", test) == Report(Ending.PASSED, "")


@needs_sandbox
@pytest.mark.parametrize(
    ("program", "ending", "why"),
    [
        ("def f(): return 41", Ending.FAILED, "AssertionError"),
        ("def f(): return 1 / 0", Ending.FAILED, "ZeroDivisionError"),
        ("1 / 0", Ending.FAILED, "ZeroDivisionError"),
        ("def g(): return 42", Ending.FAILED, "the program ended by itself"),
        ("def f( return 42", Ending.UNREADABLE, "SyntaxError"),
        ("x = '\0'", Ending.UNREADABLE, "null bytes"),
        ("(" * 100_000, Ending.UNREADABLE, "too many nested parentheses"),
        ("def f(): __import__('time').sleep(60)", Ending.TIMEOUT, "more than 1 s"),
    ],
)
def test_an_ending_has_its_reason(program: str, ending: Ending, why: str) -> None:
    report = run(program, limits=SHORT if ending is Ending.TIMEOUT else LONG)
    assert report.ending is ending
    assert why in report.why


@needs_sandbox
def test_prelude_and_function_are_known_to_the_test() -> None:
    report = run("def f(x): return 2 * twice(x)", "assert f(3) == 2 * twice(3)", prelude="def twice(x): return 2 * x")
    assert report.ending is Ending.PASSED


@needs_sandbox
def test_programs_may_run_from_many_threads() -> None:
    endings = []
    threads = [
        threading.Thread(target=lambda n=n: endings.append(run(f"def f(): return {40 + n}").ending)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(endings) == [Ending.FAILED] * 3 + [Ending.PASSED]


# ------------------------------------------------------------------------------------------------- reaching the outside

REACHES = {
    "TCP to a host's port": """
socket.create_connection(("127.0.0.1", host["tcp"]), timeout=2).sendall(b"x"); return "reached"
""",
    "UDP to a host's port": """
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", host["udp"]))
finally: pass
return "sent"
""",
    "a route out": 'socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 53)); return "reached"',
    "name resolution": """
return "reached" if os.path.exists("/etc/resolv.conf") or os.path.exists("/etc/hosts") else "contained"
""",
    "other network interfaces": """
return "reached" if {name for _, name in socket.if_nameindex()} - {"lo"} else "contained"
""",
    "an abstract Unix socket": 'socket.socket(socket.AF_UNIX).connect("\\0" + host["abstract"]); return "reached"',
    "a Unix socket in the file system": 'socket.socket(socket.AF_UNIX).connect(host["unix"]); return "reached"',
    "a file of the host": 'return "reached" if open(host["file"]).read() else ""',
    "the host's password file": 'return "reached" if open("/etc/passwd").read() else ""',
    "the home folder": """
return "reached" if set(os.listdir(host["home"])) - {".pyenv", ".local", ".conda"} else "contained"
""",
    "the checkout": 'os.listdir(host["checkout"]); return "reached"',
    "the environment": 'return "reached" if any("SECRET" in key for key in os.environ) else "contained"',
    "the environment of the first process": """
return "reached" if b"SECRET" in open("/proc/1/environ", "rb").read() else "contained"
""",
    "writing to a file of the host": 'open(host["file"], "w").write("x"); return "reached"',
    "writing to /usr": 'open("/usr/tyler-was-here", "w").close(); return "reached"',
    "writing to the root": 'open("/tyler-was-here", "w").close(); return "reached"',
    "writing to /dev/shm": 'open("/dev/shm/tyler-was-here", "w").close(); return "reached"',
    "changing the judge": 'open("/judge.py", "w").close(); return "reached"',
    "a symbolic link to a file of the host": """
os.symlink(host["file"], "/tmp/link"); open("/tmp/link").read(); return "reached"
""",
    "the first process's root": 'open("/proc/1/root" + host["file"]).read(); return "reached"',
    "processes of the host": """
names = [open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc") if pid.isdigit()]
return "reached" if any(host["marker"] in name for name in names) else "contained"
""",
    "a signal to the host": 'os.kill(host["pid"], 9); return "reached"',
    "mount": 'return "reached" if ctypes.CDLL(None).mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 else "contained"',
    "chroot": 'os.chroot("/tmp"); return "reached"',
    "another user namespace": 'return "reached" if ctypes.CDLL(None).unshare(0x10000000) == 0 else "contained"',
    "becoming root": 'os.setuid(0); return "reached"',
    "setuid programs": """
status = open("/proc/self/status").read()
held = os.statvfs("/usr").f_flag & os.ST_NOSUID and "NoNewPrivs:\\t1" in status
return "contained" if held else "reached"
""",
    "privileges": """
return "contained" if "CapEff:\\t0000000000000000" in open("/proc/self/status").read() else "reached"
""",
    "tracing the judge": 'return "reached" if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 else "contained"',
    "the judge's memory": 'open(f"/proc/{os.getppid()}/mem", "rb"); return "reached"',
    "the judge's open files": """
for fd in range(64):
    try: return os.open(f"/proc/{os.getppid()}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK) and "reached"
    except OSError: pass
return "contained"
""",
    "the host's name": 'return "reached" if socket.gethostname() == host["name"] else "contained"',
    "disks of the host": 'os.listdir("/sys/block"); return "reached"',
    "a key of the host": """
libc, (search, read) = ctypes.CDLL(None), (10, 11)
key = libc.syscall(host["keyctl"], search, -3, b"user", host["key"].encode(), 0)
return "reached" if key > 0 or libc.syscall(host["keyctl"], read, host["serial"], None, 0) >= 0 else "contained"
""",
    "a key of the host, by request": """
found = ctypes.CDLL(None).syscall(host["request_key"], b"user", host["key"].encode(), None, 0)
return "reached" if found > 0 else "contained"
""",
    "the names of the host's keys": 'return "reached" if open("/proc/keys").read() else ""',
    "revoking a key of the host": """
libc, (revoke, invalidate, unlink) = ctypes.CDLL(None), (3, 21, 9)
done = [libc.syscall(host["keyctl"], what, host["serial"], -3) for what in (revoke, invalidate, unlink)]
return "reached" if 0 in done else "contained"
""",
    "leaving a key": """
places = range(-5, 0)  # of the process, the thread, the session, the user, the user's session
left = [ctypes.CDLL(None).syscall(host["add_key"], b"user", b"tyler-left", b"x", 1, place) for place in places]
return "reached" if max(left) > 0 else "contained"
""",
    "the host of a virtual machine": 'socket.socket(socket.AF_VSOCK); return "reached"',
    "what an earlier program left": """
seen = os.path.exists("/tmp/left") or os.path.exists("left")
open("left", "w").close(); open("/tmp/left", "w").close()
return "reached" if seen else "contained"
""",
}
"""The body of a function that returns "reached" where it got there, "contained" where not, or raises."""
MODULES = "import ctypes, os, socket"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Things of this machine that a program must not reach; `heard` holds what reached the sockets."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "file").write_text("secret")
    os.environ["TYLER_SECRET"] = "secret"
    marker = f"tyler-marker-{os.getpid()}"
    keys = session_key(marker)
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", marker])
    tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    named = socket.socket(socket.AF_UNIX)
    named.bind(str(folder / "s"))
    named.listen()
    abstract = socket.socket(socket.AF_UNIX)
    if sys.platform == "linux":
        abstract.bind("\0" + marker)
        abstract.listen()
    for each in (tcp, udp, named, abstract):
        each.setblocking(False)
    yield {
        "facts": {
            "tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1], "unix": str(folder / "s"), "abstract": marker,
            "file": str(folder / "file"), "home": str(Path.home()), "checkout": str(Path(__file__).parent),
            "marker": marker, "pid": sleeper.pid, "name": socket.gethostname(), **keys,
        },
        "heard": lambda: [each for each in (tcp, udp, named, abstract) if _heard(each)],
        "sleeper": sleeper,
        "file": folder / "file",
        "find_key": lambda: libc.syscall(keys["keyctl"], 10, -3, b"user", marker.encode(), 0),
    }  # fmt: skip
    sleeper.kill()
    sleeper.wait()
    for each in (tcp, udp, named, abstract):
        each.close()
    del os.environ["TYLER_SECRET"]


libc = ctypes.CDLL(None, use_errno=True)


def session_key(name: str) -> dict[str, Any]:
    """A session keyring for this thread, as pam_keyinit makes at login, with a key in it; and how programs ask for it.

    The key's number is -1 where the kernel has no keyrings.
    """
    keyctl, add_key, request_key = (
        -1 if seccomp.library() is None else seccomp.number(name) for name in ("keyctl", "add_key", "request_key")
    )
    libc.syscall(keyctl, 1, None)
    serial = libc.syscall(add_key, b"user", name.encode(), b"secret", 6, -3)
    return {"keyctl": keyctl, "add_key": add_key, "request_key": request_key, "key": name, "serial": serial}


def _heard(listener: socket.socket) -> bool:
    try:
        listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept()[0].close()
    except OSError:
        return False
    return True


def reach(name: str, host: dict[str, Any], **settings: Any) -> Report:
    test = f"assert f({json.dumps(host['facts'])}) != 'reached', 'reached'"
    return run("def f(host):\n" + textwrap.indent(REACHES[name], "    "), test, prelude=MODULES, **settings)


@needs_sandbox
@pytest.mark.parametrize("name", REACHES)
def test_a_program_does_not_reach(name: str, host: dict[str, Any]) -> None:
    for _ in range(2 if name == "what an earlier program left" else 1):
        report = reach(name, host)
        assert "reached" not in report.why
        assert not report.why.startswith(("NameError", "SyntaxError", "TypeError", "AttributeError", "KeyError"))
    assert not host["heard"]()
    assert host["sleeper"].poll() is None
    assert host["file"].read_text() == "secret"
    assert host["find_key"]() == host["facts"]["serial"]
    assert not [path for path in ("/usr/tyler-was-here", "/tyler-was-here") if os.path.exists(path)]


# ------------------------------------------------------------------------------------------------------ forging success

FORGERIES = {
    "os._exit(0) while it is defined": "import os\nos._exit(0)",
    "os._exit(0) when it is called": "import os\ndef f(): os._exit(0)",
    "sys.exit(0)": "import sys\ndef f(): sys.exit(0)",
    "SystemExit while it is defined": "raise SystemExit(0)",
    "printing success": "print('passed')\ndef f(): print('{\"ending\": \"passed\"}')",
    "redefining check": "def check(candidate): pass\ndef f(): return 41",
    "a class equal to everything": """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 42
def f(): return Yes()
""",
    "a number equal to everything": """
class Yes(int):
    def __eq__(self, other): return True
    def __reduce__(self): return eval, ("42",)
def f(): return Yes(41)
""",
    "a string equal to everything": """
class Yes(str):
    def __eq__(self, other): return True
    def __str__(self): return self
def f(): return Yes("x")
""",
    "a list with an element equal to everything": """
class Yes:
    def __eq__(self, other): return True
def f(): return [Yes()]
""",
    "AssertionError made harmless": """
import builtins
builtins.AssertionError = type("Nothing", (Exception,), {})
def f(): return 41
""",
    "another import": """
import builtins
builtins.__import__ = lambda *args, **kwargs: None
builtins.compile = builtins.exec = lambda *args: None
def f(): return 41
""",
    "another pickle": """
import pickle
pickle.dump = lambda value, file: file.write(b"cbuiltins\\nexit\\n(I0\\ntR.")
def f(): return 41
""",
    "a pickle that calls": """
import sys
def f():
    frame = sys._getframe(1)
    while "replies" not in frame.f_locals: frame = frame.f_back
    frame.f_locals["replies"].write(b"cos\\n_exit\\n(I0\\ntR."); frame.f_locals["replies"].flush()
""",
    "the words of success to every file descriptor": """
import os, json
def f():
    for fd in range(256):
        for words in (b'passed', b'{"token": "", "ending": "passed", "why": ""}\\n'):
            try: os.write(fd, words)
            except OSError: pass
    return 41
""",
    "the words of success to every open file there is": """
import os
def f():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for fd in range(64):
            try: os.write(os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK), b'{"ending": "passed"}\\n')
            except OSError: pass
    return 41
""",
    "a search of the heap and of the frames for the token": """
import gc, os, sys, re, json
def f():
    words = repr([thing for thing in gc.get_objects() if type(thing) in (dict, list, tuple, str)][:20000])
    frame = sys._getframe()
    while frame: words += repr(frame.f_locals) + repr(frame.f_globals); frame = frame.f_back
    for token in set(re.findall("[0-9a-f]{64}", words)):
        for fd in range(3, 64):
            try: os.write(fd, json.dumps({"token": token, "ending": "passed", "why": ""}).encode() + b"\\n")
            except OSError: pass
    return 41
""",
    "a search of its own memory for the expected value": """
import re
def f():
    with open("/proc/self/mem", "rb", 0) as memory:
        for line in open("/proc/self/maps"):
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            try: memory.seek(start); content = memory.read(end - start)
            except (OSError, ValueError, OverflowError): continue
            if re.search(rb"assert\\sf\\(\\)\\s==\\s42", content): return 42
    return 41
""",
    "reading standard input": """
import sys, os
def f(): return 42 if "check" in sys.stdin.read() or os.read(0, 100) else 41
""",
    "a trace function": """
import sys
sys.settrace(lambda *args: sys.exit(0)); sys.setprofile(lambda *args: None)
def f(): return 41
""",
    "an exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef f(): return 41",
    "a thread that exits": """
import os, threading, time
threading.Thread(target=lambda: (time.sleep(0.2), os._exit(0))).start()
def f(): time.sleep(1); return 41
""",
    "killing the judge": "import os\ndef f(): os.kill(os.getppid(), 9)",
    "ending the judge politely": "import os, time\ndef f(): os.kill(os.getppid(), 15); time.sleep(1)",
    "a success that is not a reply": """
import sys, pickle
frame = sys._getframe(1)
while "replies" not in frame.f_locals: frame = frame.f_back
pickle.dump("passed", frame.f_locals["replies"]); frame.f_locals["replies"].flush()
def f(): return 41
""",
}


@needs_sandbox
@pytest.mark.parametrize("name", FORGERIES)
def test_success_is_not_forged_by(name: str) -> None:
    report = run(FORGERIES[name])
    assert report.ending is Ending.FAILED, report
    assert_nothing_remains()


@needs_sandbox
@pytest.mark.parametrize(
    "received", [b'{"token": "guess", "ending": "passed", "why": ""}\n', b"passed\n", b"\n", b"[]\n"]
)
def test_a_signal_without_the_token_is_a_failure(received: bytes) -> None:
    assert sandbox._signal(received, "token")[0] is Ending.FAILED
    assert sandbox._signal(b'{"token": "token", "ending": "passed", "why": ""}\n', "token")[0] is Ending.PASSED


# ----------------------------------------------------------------------------------------------------------- exhausting

ANY = {Ending.FAILED, Ending.STOPPED, Ending.TIMEOUT}
EXHAUSTIONS = {
    "an endless loop": ("def f():\n    while True: pass", {Ending.TIMEOUT}),
    "an endless loop while it is defined": ("while True: pass", {Ending.TIMEOUT}),
    "sleep": ("import time\ndef f(): time.sleep(600)", {Ending.TIMEOUT}),
    "deaf to signals": ("""
import signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(number, signal.SIG_IGN)
def f():
    while True: pass
""", {Ending.TIMEOUT}),
    "a judge that is stopped": ("import os, time\ndef f(): os.kill(os.getppid(), 19); time.sleep(9)", {Ending.TIMEOUT}),
    "a fork bomb": ("""
import os
def f():
    while os.getpid() < 10_000:
        try: os.fork()
        except OSError: pass
""", ANY - {Ending.FAILED}),
    "a thread bomb": ("""
import threading, time
def f():
    while True: threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
""", ANY),
    "memory": ("def f(): return len([bytearray(10**8) for _ in range(1000)])", ANY),
    "memory in many processes": ("""
import os, time
def f():
    for _ in range(12):
        if os.fork() == 0: block = bytearray(b"x" * 4 * 10**8); time.sleep(60)
    time.sleep(60)
""", ANY - {Ending.FAILED}),
    "memory of the judge": ("def f(): return list(range(10**7)) * 12", ANY),
    "a file": ("def f():\n    with open('x', 'wb') as x:\n        while True: x.write(bytes(10**6))", {Ending.FAILED}),
    "many files": ("""
def f():
    for n in range(1000):
        with open(f"/tmp/{n}", "wb") as x: x.write(bytes(10**7))
    return 42
""", {Ending.FAILED}),
    "open files": ("def f(): return [open('/dev/null') for _ in range(1000)] and 42", {Ending.FAILED}),
    "a daemon": ("""
import os, time
def f():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: time.sleep(1)
        os._exit(0)
    return 42
""", {Ending.PASSED}),
    "a flood on standard output": ("""
import os
def f():
    for _ in range(300): os.write(1, bytes(10**7))
    return 42
""", {Ending.PASSED}),
    "a flood on standard error": ("""
import sys
def f():
    for _ in range(300): sys.stderr.write('x' * 10**6)
    return 42
""", {Ending.PASSED}),
    "a long exception": ("def f(): raise ValueError('x' * 10**8)", {Ending.FAILED}),
    "a huge power": ("def f(): return 9 ** 9 ** 9", {Ending.FAILED, Ending.TIMEOUT}),
    "a huge string of digits": ("import sys\nsys.set_int_max_str_digits(0)\ndef f(): return str(7 ** 10**8)",
                                {Ending.FAILED, Ending.TIMEOUT}),
    "a bomb of zeros": ("""
import zlib
bomb = zlib.compress(bytes(10**8)) * 2
def f(): return [zlib.decompress(zlib.compress(bytes(2 * 10**9)))]
""", {Ending.FAILED}),
    "recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()", ANY),
    "a list in itself": ("def f(): x = []; x.append(x); return x", {Ending.FAILED}),
    "an endless iterator": ("import itertools\ndef f(): return itertools.count()", {Ending.FAILED}),
    "a null pointer": ("import ctypes\ndef f(): return ctypes.string_at(0)", {Ending.FAILED}),
    "killing all it sees": ("import os\ndef f():\n    if os.getpid() < 20: os.kill(-1, 9)", {Ending.FAILED}),
    "killing the first process": ("""
import os
def f():
    try:
        if os.getpid() < 20: os.kill(1, 9)
    except PermissionError: pass  # where the sandbox has a user of its own
    return 42
""", {Ending.PASSED}),
}  # fmt: skip


@needs_sandbox
@pytest.mark.parametrize("name", EXHAUSTIONS)
def test_a_program_does_not_exhaust_by(name: str, host: dict[str, Any]) -> None:
    program, endings = EXHAUSTIONS[name]
    free, memory = psutil.disk_usage("/").free, psutil.Process().memory_info().rss
    limits = SHORT if Ending.TIMEOUT in endings else LONG
    started = time.monotonic()
    report = run(program, limits=limits)
    assert report.ending in endings, report
    assert time.monotonic() - started < limits.seconds + 10
    assert len(report.why) <= 300
    assert_nothing_remains()
    assert host["sleeper"].poll() is None
    assert psutil.Process().memory_info().rss < memory + 2**27
    assert psutil.disk_usage("/").free > free - 2**29


@needs_sandbox
@pytest.mark.parametrize(
    "start",
    ["if os.fork() == 0: time.sleep(60)", "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"],
)
def test_a_program_starts_sixteen_processes_or_threads_and_no_more(start: str) -> None:
    program = f"""
import os, threading, time
def f():
    for started in range(40):
        try:
            {start}
        except (OSError, RuntimeError): return started
    return started + 1
"""
    report = run(program, "assert f() == 16")
    assert report.ending is Ending.PASSED, report
    assert_nothing_remains()


@needs_sandbox
def test_the_host_counts_processes_where_the_kernel_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import os, time
def f():
    for _ in range(40):
        if os.fork() == 0: time.sleep(60)
    time.sleep(60)
"""
    monkeypatch.setattr(Limits, "of_each_process", lambda self, own=0: {"CPU": 30})
    report = run(program, limits=LONG)
    assert (report.ending, report.why) == (Ending.STOPPED, "it started more than 16 processes")
    assert_nothing_remains()


# -------------------------------------------------------------------------------------------------- where it is missing


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "probe", lambda: "this test has none")
    sandbox._warn_once.cache_clear()


def test_without_a_sandbox_nothing_runs(no_sandbox: None, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"this test has none.*allow_unsafe_code_execution"):
        run(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:programs of the model run WITHOUT")
@pytest.mark.parametrize(
    ("program", "ending"),
    [
        ("def f(): return 42", Ending.PASSED),
        ("import os\ndef f(): return os.getcwd() and 42 - bool(os.listdir('.'))", Ending.PASSED),
        ("import os\ndef f(): return 42 + ('HOME' in os.environ)", Ending.PASSED),
        ("import os\ndef f(): os._exit(0)", Ending.FAILED),
        ("import time\ndef f(): time.sleep(60)", Ending.TIMEOUT),
        ("def f():\n    with open('x', 'wb') as x:\n        while True: x.write(bytes(10**6))", Ending.FAILED),
    ],
)
def test_unsafe_runs_without_isolation_but_with_limits(no_sandbox: None, program: str, ending: Ending) -> None:
    limits = SHORT if ending is Ending.TIMEOUT else LONG
    assert run(program, limits=limits, unsafe=True).ending is ending
    assert_nothing_remains()


def test_unsafe_warns_once(no_sandbox: None, recwarn: pytest.WarningsRecorder) -> None:
    for _ in range(2):
        run("def f(): return 42", unsafe=True)
    assert [str(warning.message) for warning in recwarn if "WITHOUT a sandbox" in str(warning.message)] == [
        "programs of the model run WITHOUT a sandbox, as your user: this test has none"
    ]


@needs_sandbox
def test_the_attacks_can_succeed(no_sandbox: None, host: dict[str, Any]) -> None:
    """Without the sandbox, the same programs do reach what is listening, readable and writable."""
    names = ("TCP to a host's port", "an abstract Unix socket", "a file of the host", "the checkout")
    with pytest.warns(RuntimeWarning, match="WITHOUT"):
        reports = [reach(name, host, unsafe=True) for name in names]
    assert [report.why for report in reports] == ["AssertionError: reached"] * len(names)
    assert len(host["heard"]()) == 2
