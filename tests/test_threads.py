"""Several threads at once: no crash, no waiting for ever, the numbers of one after the other."""

import os
import random
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from only_python import number

from probode import solve_ivp
from probode.engines import native
from probode.engines.native.library import address
from probode.programs.memory import Memory
from probode.programs.tracing import alone, make_traceable
from probode.programs.tracing.alone import others_run, printed, quiet

_SCRIPT = Path(__file__).with_name("threaded.py")
_FEW, _ALL = 3, 100


@pytest.mark.parametrize(
    ("seed", "count", "kernels"),
    [
        pytest.param(0, _ALL, "1", id="all", marks=pytest.mark.slow),
        pytest.param(1, _FEW, "1", id="few"),
        pytest.param(2, _FEW, "0", id="without kernels", marks=pytest.mark.slow),
    ],
)
def test_first_calls_in_threads_give_the_numbers_of_one_after_the_other(seed, count, kernels):
    """A process of its own for each: first calls happen once."""
    done = subprocess.run(
        [sys.executable, str(_SCRIPT), str(seed), str(count)],
        env={**os.environ, "PROBODE_NATIVE": kernels},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "different: []\n"


def in_children(way):
    script = _SCRIPT.with_name("forked.py")
    command = [sys.executable, "-W", "ignore", str(script), way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    return done.stdout.splitlines(), done.stderr


@pytest.mark.slow
def test_processes_that_are_spawned_give_the_same_numbers():
    lines, errors = in_children("spawn")
    assert lines == ["oscillator same"] * 2 + ["with_a_branch same"] * 2, errors


@pytest.mark.skipif(not hasattr(os, "fork") or not native.available(), reason="needs both")
def test_a_forked_process_gives_the_same_numbers_or_says_why_not():
    """XLA's threads are not forked: what needs them would wait for ever."""
    lines, errors = in_children("fork")
    assert lines[:2] == ["oscillator same"] * 2, errors
    assert set(lines[2:]) <= {"with_a_branch same", "with_a_branch refused True"}, errors
    assert len(lines) == 4


def test_an_address_keeps_its_array_alive():
    """A cache may forget an array while the kernels read it."""
    array = np.arange(1000.0)
    before = sys.getrefcount(array)
    pointer = address(array)
    assert sys.getrefcount(array) == before + 1
    assert pointer.value == array.ctypes.data


def test_a_memory_serves_many_threads():
    """It is small: all the time something is forgotten that another thread is about to find."""
    memory = Memory(3)

    def ask(i):
        return all(memory.get(k % 5, lambda k=k: k % 5) == k % 5 for k in range(2000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, range(8)))
    finally:
        sys.setswitchinterval(before)


@pytest.fixture
def beside():
    """Run something in another thread, now, and wait for it."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: None).result()
        yield lambda action: pool.submit(action).result(timeout=60)


class Model:
    """Keeps its results where its right-hand side can reach them."""

    def __init__(self, beside, action):
        self.results, self.table = [], np.zeros(3)
        self._beside, self._action = beside, action

    def __call__(self, t, y):
        """While it is tried out, another thread goes on."""
        if self._action is not None:
            action, self._action = self._action, None
            self._beside(lambda: action(self))
        return -y + 0.0 * self.table[0]


def test_what_another_thread_appends_while_a_function_is_tried_stays(beside):
    model = Model(beside, lambda self: self.results.append("theirs"))
    assert others_run()
    make_traceable(model, (0.0, 1.0), [1.0])
    assert model.results == ["theirs"]


def test_what_another_thread_writes_while_a_function_is_tried_stays(beside):
    model = Model(beside, lambda self: self.table.__setitem__(2, 5.0))
    assert make_traceable(model, (0.0, 1.0), [1.0]) is not None
    assert model.table[2] == 5.0


def test_a_function_is_not_blamed_for_what_another_thread_changes(beside):
    model = Model(beside, lambda self: self.results.append("theirs"))
    assert make_traceable(model, (0.0, 1.0), [1.0]) is not None


def test_a_function_that_counts_is_still_found_out(beside):
    calls = []

    def counts(t, y):
        calls.append(t)
        return -y

    assert make_traceable(counts, (0.0, 1.0), [1.0]) is None
    assert calls == []


@pytest.mark.parametrize(
    "draw",
    [np.random.mtrand._rand.standard_normal, random.random],  # that behind np.random.normal
    ids=["numpy.random", "random"],
)
def test_random_numbers_that_another_thread_draws_are_not_drawn_again(beside, draw):
    drawn = []
    model = Model(beside, lambda self: drawn.append(draw()))
    make_traceable(model, (0.0, 1.0), [1.0])
    assert drawn[0] != draw()


def test_other_threads_print_where_they_did(beside, capsys):
    with printed() as mine:
        print("mine")
        beside(lambda: print("theirs"))
    assert mine.getvalue() == "mine\n"
    assert capsys.readouterr().out == "theirs\n"


def test_other_threads_warn_as_they_did(beside):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with quiet():
            warnings.warn("mine", UserWarning, stacklevel=1)
            beside(lambda: warnings.warn("theirs", UserWarning, stacklevel=1))
        warnings.warn("after", UserWarning, stacklevel=1)
    assert [str(one.message) for one in shown] == ["theirs", "after"]


def test_a_function_may_wait_for_threads_that_solve(monkeypatch):
    """What is tried in one thread must not keep the threads that it waits for from being tried."""
    monkeypatch.setattr(alone, "_PATIENCE", 0.2)

    def inner(k):
        options = {"args": (k,), "method": "EK0", "order": 2, "calibration": "model"}
        return float(solve_ivp(lambda t, y, k: -k * y, (0.0, 1.0), [1.0], **options).y[0, -1])

    def outer(t, y):
        with ThreadPoolExecutor(1) as pool:
            return [pool.submit(inner, number(y[0])).result()]

    outcome = []
    thread = threading.Thread(
        target=lambda: outcome.append(solve_ivp(outer, (0.0, 1e-3), [1.0], method="EK0")),
        daemon=True,
    )
    thread.start()
    thread.join(timeout=300)
    assert outcome and outcome[0].success


def test_kernels_are_switched_off_for_one_thread(beside):
    inside = beside(native.available)
    with native.disabled():
        assert not native.available()
        assert beside(native.available) == inside
