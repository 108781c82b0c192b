"""When a function counts as the one that was traced before."""

import numpy as np
import pytest

from probode import solve_ivp
from probode.programs.identity import NoKey, key_of
from probode.programs.memory import Memory

RATE = 1.0
TABLE = np.array([1.0, 2.0])


def decay(t, y):
    return [-RATE * y[0]]


def lookup(t, y):
    return [TABLE[0] * y[0]]


def helper(y):
    return RATE * y


def through_helper(t, y):
    return [helper(y[0])]


def made(rate, power=1):
    return lambda t, y: [-rate * y[0] ** power]


class Model:
    factor = 2.0

    def __init__(self, rate):
        self.rate = rate

    def field(self, t, y):
        return [-self.rate * self.factor * y[0]]


def test_two_lambdas_of_one_line_are_the_same():
    assert key_of(made(1.0)) == key_of(made(1.0))


@pytest.mark.parametrize("other", [made(2.0), made(1.0, 2), made(1), made(-0.0)])
def test_another_value_in_the_closure_is_another_function(other):
    assert key_of(made(1.0)) != key_of(other)


@pytest.mark.parametrize("fun", [decay, through_helper])
def test_a_global_counts_by_its_value(fun, monkeypatch):
    before = key_of(fun)
    monkeypatch.setitem(globals(), "RATE", 3.0)
    assert key_of(fun) != before


def test_an_array_counts_by_its_content():
    before = key_of(lookup)
    TABLE[0] += 1.0
    after = key_of(lookup)
    TABLE[0] -= 1.0
    assert before != after
    assert before == key_of(lookup)


def test_a_method_counts_with_its_object():
    assert key_of(Model(1.0).field) == key_of(Model(1.0).field)
    assert key_of(Model(1.0).field) != key_of(Model(2.0).field)


def test_a_class_counts_by_its_attributes(monkeypatch):
    before = key_of(Model(1.0).field)
    monkeypatch.setattr(Model, "factor", 5.0)
    assert key_of(Model(1.0).field) != before


def test_what_cannot_be_compared_has_no_key():
    generator = np.random.default_rng(0)
    with pytest.raises(NoKey):
        key_of(lambda t, y: generator.normal() * y)


def test_a_function_that_refers_to_itself_has_a_key():
    def outer(t, y):
        return outer if t is None else y

    assert key_of(outer) == key_of(outer)


def test_a_changed_global_changes_the_solution(monkeypatch):
    """The claim that matters: nothing stale is ever solved."""
    first = solve_ivp(decay, (0, 1), [1.0], rtol=1e-8, atol=1e-10).y[0, -1]
    monkeypatch.setitem(globals(), "RATE", 2.0)
    second = solve_ivp(decay, (0, 1), [1.0], rtol=1e-8, atol=1e-10).y[0, -1]
    assert first == pytest.approx(np.exp(-1.0), rel=1e-6)
    assert second == pytest.approx(np.exp(-2.0), rel=1e-6)


def test_new_arguments_of_a_known_function():
    def field(t, y, rate, count):
        return [-rate * y[0] * count]

    values = [
        solve_ivp(field, (0, 1), [1.0], args=args, rtol=1e-8, atol=1e-10).y[0, -1]
        for args in ((1.0, 1), (0.5, 1), (0.5, 2))
    ]
    np.testing.assert_allclose(values, np.exp([-1.0, -0.5, -1.0]), rtol=1e-6)


@pytest.mark.parametrize(("key", "times"), [("known", 1), (None, 2), (["unhashable"], 2)])
def test_what_has_no_key_is_computed_each_time(key, times):
    computed, memory = [], Memory(2)
    for _ in range(2):
        memory.get(key, lambda: computed.append(0) or True)
    assert len(computed) == times


def test_a_memory_forgets_what_was_not_asked_for_longest():
    memory = Memory(2)
    for name in ("first", "second", "first", "third"):
        memory.get(name, lambda name=name: name)
    assert memory.get("first", lambda: "anew") == "first"
    assert memory.get("second", lambda: "anew") == "anew"
