"""A function that does something with every call is called: nothing of it is compiled in.

Each function counts its calls somewhere. After a solve the count is at least the number of
evaluations that the solver says it took.
"""

import argparse
import array
import collections
import contextvars
import ctypes
import itertools
import logging
import os
import types
from queue import SimpleQueue

import jax.numpy as jnp
import numpy as np
import pytest

from probode import solve_ivp
from probode.programs.tracing import make_traceable

CALLS = contextvars.ContextVar("CALLS", default=0)
NAMESPACE = types.SimpleNamespace(n=0)
MODULE = types.ModuleType("records")
MODULE.n, MODULE.log = 0, []


def numbers():
    n = 0
    while True:
        yield n
        n += 1


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


class Handler(logging.Handler):
    n = 0

    def emit(self, record):
        self.n += 1


class Counted:
    n = 0

    def __call__(self, t, y):
        Counted.n += 1
        return -y


def of_its_own(t, y):
    of_its_own.n += 1
    return -y


of_its_own.n = 0


def counting(act):
    """A function that does ``act()`` with every call."""

    def fun(t, y):
        act()
        return -y

    return fun


def add_one(place, key):
    def act():
        place[key] += 1

    return act


def counters():
    """Functions, and how many calls they have counted."""
    iterator, generator, sent = itertools.count(), numbers(), numbers()
    values, raw, cell = array.array("d"), bytearray(), ctypes.c_int(0)
    memory, table, counter = np.zeros(1), collections.defaultdict(int), collections.Counter()
    slotted, log, queue = Slotted(), [], collections.deque()
    parsed, waiting = argparse.Namespace(n=0), SimpleQueue()
    logger, handler = logging.getLogger("probode.tests"), Handler()
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    append = log.append

    def environment():
        os.environ["PROBODE_TEST_CALLS"] = str(int(os.environ["PROBODE_TEST_CALLS"]) + 1)

    def of_another_package():
        parsed.n += 1

    def in_c():
        cell.value += 1

    def in_slots():
        slotted.n += 1

    def in_namespace():
        NAMESPACE.n += 1

    def in_module():
        MODULE.n += 1

    def written_for_jax(t, y):
        table["jax"] += 1
        return -jnp.asarray(y)

    os.environ["PROBODE_TEST_CALLS"] = "0"
    NAMESPACE.n = MODULE.n = Counted.n = of_its_own.n = 0
    MODULE.log.clear()
    return {
        "iterator": (counting(lambda: next(iterator)), lambda: next(iterator)),
        "generator": (counting(lambda: next(generator)), lambda: next(generator)),
        "method-of-generator": (counting(sent.__next__), lambda: next(sent)),
        "array.array": (counting(lambda: values.append(1.0)), lambda: len(values)),
        "bytearray": (counting(lambda: raw.append(1)), lambda: len(raw)),
        "ctypes": (counting(in_c), lambda: cell.value),
        "entry-of-array": (counting(add_one(memory, 0)), lambda: memory[0]),
        "defaultdict": (counting(add_one(table, "n")), lambda: table["n"]),
        "Counter": (counting(lambda: counter.update(n=1)), lambda: counter["n"]),
        "object-of-a-package": (counting(of_another_package), lambda: parsed.n),
        "logger": (counting(lambda: logger.info("called")), lambda: handler.n),
        "queue": (counting(lambda: waiting.put(1)), waiting.qsize),
        "slots": (counting(in_slots), lambda: slotted.n),
        "method-of-list": (counting(lambda: append(1)), lambda: len(log)),
        "deque": (counting(lambda: queue.append(1)), lambda: len(queue)),
        "attribute-of-class": (Counted(), lambda: Counted.n),
        "attribute-of-function": (of_its_own, lambda: of_its_own.n),
        "namespace": (counting(in_namespace), lambda: NAMESPACE.n),
        "module": (counting(in_module), lambda: MODULE.n),
        "list-in-module": (counting(lambda: MODULE.log.append(1)), lambda: len(MODULE.log)),
        "contextvar": (counting(lambda: CALLS.set(CALLS.get() + 1)), CALLS.get),
        "environ": (counting(environment), lambda: int(os.environ["PROBODE_TEST_CALLS"])),
        "jax": (written_for_jax, lambda: table["jax"]),
    }


NAMES = list(counters())


@pytest.mark.parametrize("name", NAMES)
def test_every_evaluation_is_a_call(name):
    fun, count = counters()[name]
    result = solve_ivp(fun, (0, 1), [1.0])
    assert result.path == "python"
    assert count() >= result.nfev


@pytest.mark.parametrize("name", NAMES)
def test_looking_at_a_function_leaves_its_counter_as_it_was(name):
    fun, count = counters()[name]
    before = CALLS.get() if name == "contextvar" else 0
    assert make_traceable(fun, (0, 1), [1.0]) is None
    assert count() == before


def test_a_preallocated_result_is_no_record():
    result = np.empty(2)

    def fun(t, y):
        result[:] = -y
        return result

    assert make_traceable(fun, (0, 1), [1.0, 2.0]) is not None
