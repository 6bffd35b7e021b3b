"""The process that does algebra: what it says, that it keeps its time, and that nothing is left of it."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tyler.tasks.answers import symbolic
from tyler.tasks.answers.program import NoProgramError, read_program
from tyler.tasks.grading import grade

SOURCE = Path(symbolic.__file__).parents[3]


def _workers(process: int) -> list[psutil.Process]:
    children = psutil.Process(process).children(recursive=True)
    return [child for child in children if any("symbolic_worker" in part for part in child.cmdline())]


@pytest.mark.parametrize("hostile", ["9^{9^{9}}", "100!!!", "x^{9^{9^{9}}}"])
def test_what_takes_too_long_is_stopped_and_the_next_question_answered(hostile):
    symbolic.equal("x", "y", 5)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        symbolic.equal(hostile, "x", 0.3)
    assert time.monotonic() - start < 0.3 + symbolic._GRACE
    assert symbolic.equal("x+x", "2x", 5)


def test_no_time_left_is_a_timeout():
    with pytest.raises(TimeoutError, match="no time is left"):
        symbolic.equal("x", "x", 0)


def test_threads_are_answered_each_with_its_own_answer():
    questions = [(f"x+{number}", f"{number % 3 + number - number % 3}+x", True) for number in range(1, 20)]
    questions += [(f"x+{number}", f"{number + 1}+x", False) for number in range(1, 20)]
    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(lambda question: symbolic.equal(question[0], question[1], 10), questions))
    assert verdicts == [same for *_, same in questions]
    assert len(symbolic._pool.idle) <= (os.cpu_count() or 1)


def test_a_worker_that_was_killed_is_replaced():
    assert symbolic.equal("x+x", "2x", 5)
    for worker in symbolic._pool.idle:
        os.kill(worker.process.pid, signal.SIGKILL)
    time.sleep(0.1)
    assert symbolic.equal("x+x", "2x", 5)


def test_a_killed_child_costs_one_answer():
    assert symbolic.equal("x+x", "2x", 5)
    (child,) = psutil.Process(symbolic._pool.idle[-1].process.pid).children()
    threading.Timer(0.2, child.kill).start()
    with pytest.raises(TimeoutError):
        symbolic.equal("9^{9^{9}}", "x", 5)
    assert symbolic.equal("x+x+x", "3x", 5)


def test_a_fork_gets_workers_of_its_own():
    assert symbolic.equal("x+x", "2x", 5)
    before = [worker.process.pid for worker in symbolic._pool.idle]
    child = os.fork()
    if child == 0:
        mine = symbolic._pool.idle == [] and symbolic.equal("y+y", "2y", 5)
        symbolic._pool.end()
        os._exit(0 if mine else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert symbolic.equal("x+x", "2x", 5)
    assert [worker.process.pid for worker in symbolic._pool.idle] == before


SCRIPT = """
import threading
from tyler.tasks.answers import symbolic
answers = []
thread = threading.Thread(target=lambda: answers.append(symbolic.equal("x+x", "2x", 10)))
thread.start(); thread.join()
print(answers, symbolic._pool.idle[0].process.pid)
"""


def test_a_script_without_a_main_guard_works_and_leaves_no_process(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-W", "error", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert done.stderr == ""
    answer, pid = done.stdout.rsplit(maxsplit=1)
    assert answer == "[True]"
    assert not psutil.pid_exists(int(pid))


def test_the_worker_ends_with_a_process_that_is_killed(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT + "import sys, time; sys.stdout.flush(); time.sleep(60)")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        workers = _workers(process.pid)
        process.kill()
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert alive == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_library_that_prints_cannot_answer():
    """Standard output of the child is not the pipe of the replies."""
    assert symbolic.equal("x+x", "2x", 5)
    (child,) = psutil.Process(symbolic._pool.idle[-1].process.pid).children()
    for standard in (0, 1, 2):
        assert os.readlink(f"/proc/{child.pid}/fd/{standard}") == os.devnull


def test_an_interrupted_question_is_not_answered_later(monkeypatch):
    assert symbolic.equal("x+x", "2x", 5)
    worker = symbolic._pool.idle[-1]

    def interrupted(*question: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        symbolic.equal("x+x", "2x", 5)
    assert worker not in symbolic._pool.idle and worker.process.returncode is not None


GOLDS = {
    "math500": ["7", r"\text{Evelyn}", "(1,2)", r"(1,2)\cup(3,4)", "x=5"],
    "gsm8k": ["7"],
    "gpqa": ["B"],
    "theoremqa": ["7", "0.5", "[1, 2]", "true", '"(c)"'],
    "mini": ["7"],
    "jsonl": ["7"],
}
PIECES = [
    "a", " ", "7", "`", "*", "\n", ",", "\\", "\\\\", "{", "}", "{}", "(", ")", "()", "[", "|", "-", "+", "=", "<", "_",
    "^", "'", '"', ".", ":", ";", "/", "!", "$", "%", "\u00e9", "a b ", "ab ", "7 ", "7,", "7, ", "1,000,", "/a", "a=",
    "x<", "x^2", "a_1 ", "= ", "or ", "and ", "A) ", "(A) ", "is ", "the answer is ", "1e", r"\$", r"\ ", r"\,",
    r"\text{a}",
    r"\text{ab} ", r"\text{ or }", r"\frac", r"\frac{1}{2}", r"\sqrt", r"\pi ", r"\infty ", r"\pm ", r"\cup ", r"\in ",
    r"\left(", r"\approx ", r"\begin{pmatrix}", r"\color{", r"a b\text{ab}", r"7 cm ", "a b=", "7 ab,", "million ",
    "7 million ", "base ", "<think>", "</think>", "```\n", "    x = 1\n", "~~~\n", 
    "def f():\n", "x = 1\n", "class A:\n", "\"\"\"\n", "if x: ", "x, ", "x.y", "\\boxed", "true, ",
]  # fmt: skip
BOUND = 0.5
"""Processor seconds of one answer: far above linear time on the longest, far below quadratic time."""
WRAPPERS = ["{}", "7 {}", "{}!", "{} =7", "x={}", "({})"]


def least_seconds(call: Callable[[], object]) -> float:
    """Processor seconds of one call, the least of three where it is slow: a collection of garbage may fall into one."""
    seconds = math.inf
    for _ in range(3):
        start = time.process_time()
        call()
        seconds = min(seconds, time.process_time() - start)
        if seconds <= BOUND:
            break
    return seconds


@pytest.mark.parametrize("length", [2_000, 20_000])
@pytest.mark.parametrize("task", GOLDS)
def test_long_answers_are_graded_at_once(task, length):
    assert grade(task, r"\boxed{x+x}", GOLDS[task][0]).outcome != "timeout"  # starting the worker does not count
    slow = {}
    for at, piece in enumerate(PIECES):
        text = (piece * length)[: length - 20]
        answer = WRAPPERS[at % len(WRAPPERS)].format(text)
        for gold in GOLDS[task]:
            completion = f"\\boxed{{{answer}}}"
            seconds = least_seconds(
                lambda completion=completion, gold=gold: grade(task, completion, gold, deadline=0.2)
            )
            if seconds > BOUND:
                slow[piece, gold] = seconds
    assert slow == {}


@pytest.mark.parametrize("length", [2_000, 20_000])
def test_the_program_of_a_long_completion_is_found_at_once(length):
    def read(completion: str) -> None:
        with suppress(NoProgramError):
            read_program(completion, "def f():\n", "f")

    slow = {}
    for piece in PIECES:
        completion = (piece * length)[:length]
        if (seconds := least_seconds(lambda completion=completion: read(completion))) > BOUND:
            slow[piece] = seconds
    assert slow == {}
