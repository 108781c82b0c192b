"""Values that a function reads anew with every call are never taken from an earlier one.

Each source holds a rate ``k``; the function solves ``y' = -k y``. After a change of the source the
answer is that of the new rate, whether the function was traced anew or is run in Python.
"""

import array
import collections
import contextvars
import ctypes
import functools
import logging
import mmap
import os
import sys
import types
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.polynomial import Polynomial

from probode import solve_ivp
from probode.programs.identity import NoKey, key_of

K = 1.0
VARIABLE = contextvars.ContextVar("VARIABLE", default=1.0)
BESIDE = types.ModuleType("beside")


class AnswersForTheClass(type):
    def __getattr__(cls, name):
        return K


class Answered(metaclass=AnswersForTheClass):
    pass


class Descriptor:
    def __get__(self, instance, owner):
        return K


class Described:
    by_descriptor = Descriptor()

    @property
    def by_property(self):
        return K


class InSlots:
    __slots__ = ("k",)


class OnTheClass:
    k = 1.0


class OwnDict(dict):
    pass


class OwnFloat:
    """Refuses unknown names in its own way, as some containers of settings do."""

    def __init__(self):
        self.k = 1.0

    def __getattr__(self, name):
        raise KeyError(name)


@dataclass
class Settings:
    k: float = 1.0


class Source:
    """Somewhere a rate is kept; each kind says how it is read and changed."""

    def __init__(self, folder):
        self.file, self.binary = str(folder / "rate.txt"), str(folder / "rate.npy")
        self.array, self.ctypes = array.array("d", [1.0]), (ctypes.c_double * 1)(1.0)
        self.mapped = np.frombuffer(mmap.mmap(-1, 8))
        self.view = memoryview(self.array)
        self.poly1d, self.polynomial = np.poly1d([1.0]), Polynomial([1.0])
        self.slots, self.dict, self.chain = InSlots(), OwnDict(), collections.ChainMap({})
        self.default, self.long = collections.defaultdict(float), [0.0] * 2000
        self.masked = np.ma.array([1.0, 9.0], mask=[False, True])
        self.object, self.space, self.settings = OwnFloat(), types.SimpleNamespace(), Settings()
        self.weak = weakref.ref(self.settings)
        self.ufunc = np.frompyfunc(lambda x: K * x, 1, 1)
        self.change(1.0)

    def change(self, k):
        globals()["K"] = k
        os.environ["PROBODE_TEST_RATE"] = str(k)
        np.savetxt(self.file, [k])
        np.save(self.binary, k)
        for place in (self.array, self.ctypes, self.mapped, self.poly1d.coeffs, self.long):
            place[0] = k
        for place in (self.polynomial.coef, self.masked):
            place[0] = k
        for place in (self.slots, OnTheClass, self.object, self.space, self.settings, BESIDE):
            place.k = k
        for place in (self.dict, self.chain, self.default):
            place["k"] = k
        VARIABLE.set(k)


def functions(s: Source):
    name = "K"
    vectorized = np.vectorize(lambda x: -K * x)
    polynomial, poly1d, longer = s.polynomial, s.poly1d, s.long
    values, buffer, mapped, view = s.array, s.ctypes, s.mapped, s.view
    table, chain, default, masked = s.dict, s.chain, s.default, s.masked
    thing, space, settings, weak = s.object, s.space, s.settings, s.weak
    slots, text, binary, ufunc = s.slots, s.file, s.binary, s.ufunc
    coefficients = poly1d.coeffs
    bound, described = default.__getitem__, Described()

    @functools.cache
    def unit():
        return 1.0

    def with_open(t, y):
        with open(text) as file:
            return -float(file.read()) * y

    def imported(t, y):
        import os.path

        return -float(os.environ["PROBODE_TEST_RATE"]) * y

    return {
        "global": lambda t, y: -K * y,
        "globals()": lambda t, y: -globals()[name] * y,
        "eval": lambda t, y: -eval("K") * y,
        "getattr-of-module": lambda t, y: -getattr(sys.modules[__name__], name) * y,
        "module": lambda t, y: -BESIDE.k * y,
        "class": lambda t, y: -OnTheClass.k * y,
        "metaclass": lambda t, y: -Answered.rate * y,
        "descriptor": lambda t, y: -described.by_descriptor * y,
        "property": lambda t, y: -described.by_property * y,
        "open": with_open,
        "loadtxt": lambda t, y: -np.loadtxt(text) * y,
        "load": lambda t, y: -np.load(binary) * y,
        "environ": lambda t, y: -float(os.environ["PROBODE_TEST_RATE"]) * y,
        "import-inside": imported,
        "contextvar": lambda t, y: -VARIABLE.get() * y,
        "array.array": lambda t, y: -values[0] * y,
        "memoryview": lambda t, y: -view[0] * y,
        "mmap": lambda t, y: -mapped[0] * y,
        "ctypes": lambda t, y: -buffer[0] * y,
        "poly1d": lambda t, y: -poly1d(0.0) * y,
        "poly1d.coeffs": lambda t, y: -poly1d.coeffs[0] * y,
        "coeffs": lambda t, y: -coefficients[0] * y,
        "Polynomial": lambda t, y: -polynomial(0.0) * y,
        "Polynomial.coef": lambda t, y: -polynomial.coef[0] * y,
        "masked-array": lambda t, y: -masked.sum() * y,
        "long-list": lambda t, y: -longer[0] * y,
        "dict-subclass": lambda t, y: -table["k"] * y,
        "ChainMap": lambda t, y: -chain["k"] * y,
        "defaultdict": lambda t, y: -default["k"] * y,
        "bound-builtin": lambda t, y: -bound("k") * y,
        "slots": lambda t, y: -slots.k * y,
        "getattr-raises-KeyError": lambda t, y: -thing.k * y,
        "SimpleNamespace": lambda t, y: -space.k * y,
        "dataclass": lambda t, y: -settings.k * y,
        "weakref": lambda t, y: -weak().k * y,
        "vectorize": lambda t, y: vectorized(y),
        "frompyfunc": lambda t, y: -ufunc(1.0) * y,
        "cache": lambda t, y: -K * unit() * y,
    }


NAMES = [
    *("global", "globals()", "eval", "getattr-of-module", "module", "class", "open", "loadtxt"),
    *("load", "environ", "import-inside", "contextvar", "array.array", "memoryview", "mmap"),
    *("ctypes", "poly1d", "poly1d.coeffs", "coeffs", "Polynomial", "Polynomial.coef"),
    *("masked-array", "long-list", "dict-subclass", "ChainMap", "defaultdict", "bound-builtin"),
    *("slots", "getattr-raises-KeyError", "SimpleNamespace", "dataclass", "weakref", "vectorize"),
    *("frompyfunc", "cache", "metaclass", "descriptor", "property"),
]


@pytest.fixture
def source(tmp_path):
    source = Source(tmp_path)
    yield source
    source.change(1.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_source_changes_the_solution(name, source):
    found = []
    for k in (1.0, 2.0, 1.0):
        source.change(k)
        found.append(solve_ivp(functions(source)[name], (0, 1), [1.0], rtol=1e-6).y[0, -1])
    np.testing.assert_allclose(found, np.exp([-1.0, -2.0, -1.0]), rtol=1e-4)


COMPARED = (
    *("global", "class", "coeffs", "mmap", "SimpleNamespace", "dataclass", "vectorize"),
    *("getattr-raises-KeyError", "descriptor", "property"),
)


@pytest.mark.parametrize("name", COMPARED)
def test_what_can_be_compared_has_a_key_that_changes(name, source):
    before = key_of(functions(source)[name])
    source.change(2.0)
    assert key_of(functions(source)[name]) != before


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COMPARED])
def test_what_lies_behind_a_call_has_no_key(name, source):
    with pytest.raises(NoKey):
        key_of(functions(source)[name])


def test_a_change_that_no_key_shows_is_noticed_after_the_solve(caplog, monkeypatch):
    """Even if a trace was taken for the right one, the function itself is asked at the start."""
    monkeypatch.setattr("probode.programs.identity.number_key", lambda number: None)

    def made(k):
        return lambda t, y: -k * y

    with caplog.at_level(logging.WARNING, "probode"):
        values = [solve_ivp(made(k), (0, 1), [1.0], rtol=1e-6).y[0, -1] for k in (1.25, 2.5)]
    np.testing.assert_allclose(values, np.exp([-1.25, -2.5]), rtol=1e-4)
    assert "gives other values now than when it was traced" in caplog.text


CALLS = 0


def later_rate():
    """1 while the function is looked at, 2 from then on."""
    global CALLS
    CALLS += 1
    return 1.0 if CALLS < 40 else 2.0


def test_a_change_after_the_trace_is_noticed_at_the_steps():
    def hidden(t, y):
        return -sys.modules[__name__].later_rate() * y

    result = solve_ivp(hidden, (0, 1), [1.0], rtol=1e-6)
    while CALLS < 40:
        result = solve_ivp(hidden, (0, 1), [1.0], rtol=1e-6)
    again = solve_ivp(hidden, (0, 1), [1.0], rtol=1e-6)
    assert result.path == "python"
    assert again.y[0, -1] == pytest.approx(np.exp(-2.0), rel=1e-4)
