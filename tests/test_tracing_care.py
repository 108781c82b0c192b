"""Tracing changes nothing that is the user's, and takes on nothing that it cannot do."""

import math
from typing import Any

import numpy as np
import pytest
from snippets.entry_by_entry import vectorised_helper
from snippets.helpers_and_objects import RATES, Oscillator, saturation
from snippets.numpy_functions import in_place_on_y

from probode.base.precision import double_precision
from probode.programs.program import trace
from probode.programs.tracing import make_traceable


def test_in_place_changes_of_y_do_not_reach_the_caller() -> None:
    y0 = np.array([1.0, 2.0, 3.0])
    found = make_traceable(in_place_on_y, (0, 1), y0, ())
    assert found is not None
    with double_precision():
        found.function(0.0, y0)
    np.testing.assert_array_equal(y0, [1.0, 2.0, 3.0])


def test_arrays_among_the_arguments_are_not_changed() -> None:
    def fun(t, y, k):
        k[0] = 7.0
        return k * np.sin(y)

    k = np.array([1.0, 2.0])
    found = make_traceable(fun, (0, 1), [1.0, 2.0], (k,))
    assert found is not None
    np.testing.assert_array_equal(k, [1.0, 2.0])


def test_a_function_that_keeps_records_stays_python_and_records_stay_clean() -> None:
    records: list[Any] = []

    def fun(t, y):
        records.append(t)
        return -y

    assert make_traceable(fun, (0, 1), [1.0], ()) is None
    assert records == []


def test_a_function_that_counts_stays_python_and_the_count_stays() -> None:
    count = 0

    def fun(t, y):
        nonlocal count
        count += 1
        return -np.sin(y)

    assert make_traceable(fun, (0, 1), [1.0], ()) is None
    assert count == 0


def test_an_object_that_counts_stays_python_and_the_count_stays() -> None:
    class Model:
        calls = 0

        def __call__(self, t, y):
            self.calls += 1
            return -np.sin(y)

    model = Model()
    assert make_traceable(model, (0, 1), [1.0], ()) is None
    assert model.calls == 0


def test_a_function_that_prints_stays_python_and_prints_nothing_yet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fun(t, y):
        print(t)
        return -y

    assert make_traceable(fun, (0, 1), [1.0], ()) is None
    assert capsys.readouterr().out == ""


def test_random_numbers_are_not_used_up() -> None:
    generator = np.random.default_rng(3)

    def fun(t, y):
        return generator.normal() - y + np.random.rand()  # noqa: NPY002

    np.random.seed(5)  # noqa: NPY002
    expected = fun(0.0, 0.0)
    generator = np.random.default_rng(3)
    np.random.seed(5)  # noqa: NPY002
    assert make_traceable(fun, (0, 1), [0.0], ()) is None
    assert fun(0.0, 0.0) == expected


def test_originals_are_left_as_they_are() -> None:
    """Copies see stand-ins, the originals do not."""
    model = Oscillator(0.3)
    assert make_traceable(model.rhs, (0, 1), [0.1, 0.2, 0.3, 0.4], ()) is not None
    assert type(model) is Oscillator
    assert type(model.load) is np.ndarray
    assert type(RATES["loss"]) is np.ndarray
    assert isinstance(np.zeros(3), np.ndarray)
    assert type(saturation(np.ones(2))) is np.ndarray


def test_parameters_changed_later_are_seen() -> None:
    """Globals are read when the function is traced, not when it was made traceable."""
    model = Oscillator(0.3)
    y = np.array([0.1, 0.2, 0.3, 0.4])
    found = make_traceable(model, (0, 1), y, ())
    assert found is not None
    model.damping = 2.0
    with double_precision():
        np.testing.assert_allclose(found.function(0.0, y), model(0.0, y), rtol=1e-14)


def test_an_exception_at_the_start_comes_through() -> None:
    def fun(t, y):
        raise KeyError("no such rate")

    with pytest.raises(KeyError, match="no such rate"):
        make_traceable(fun, (0, 1), [1.0], ())


def test_a_function_that_speaks_jax_by_its_arrays_alone_is_traced() -> None:
    """``y.at[...]`` is all that shows it: arrays of NumPy's have no such thing."""

    def moved(y):
        return y.at[0].set(y[1])

    for fun in (lambda t, y: y.at[0].set(2.0), lambda t, y: -moved(2.0 * y)):
        found = make_traceable(fun, (0, 1), [1.0, 3.0], ())
        assert found is not None
        assert found.path == "jax"
    with pytest.raises(AttributeError, match="no attribute 'at'"):
        make_traceable(lambda t, y: np.linalg.norm(y).at, (0, 1), [1.0, 3.0], ())


def test_a_bad_index_comes_through() -> None:
    with pytest.raises(IndexError):
        make_traceable(lambda t, y: [y[0], y[5]], (0, 1), [1.0, 2.0], ())


def test_an_exception_elsewhere_does_not_matter() -> None:
    def fun(t, y):
        return [math.log(y[0])]

    found = make_traceable(fun, (0, 1), [1.0], ())
    assert found is not None
    assert found.path == "numpy"


def test_warnings_away_from_the_start_are_not_shown(recwarn: pytest.WarningsRecorder) -> None:
    assert make_traceable(lambda t, y: np.log(y), (0, 1), [1.0], ()) is not None
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_a_wrong_shape_is_passed_on() -> None:
    found = make_traceable(lambda t, y: np.array([y[0], y[1], 0.0]), (0, 1), [1.0, 2.0], ())
    assert found is not None
    with double_precision():
        assert found.function(0.0, np.array([1.0, 2.0])).shape == (3,)


@pytest.mark.parametrize("result", [None, "text", [[1.0], [1.0, 2.0]], 1j])
def test_what_is_no_array_of_real_numbers_is_left_to_the_caller(result: Any) -> None:
    assert make_traceable(lambda t, y: result, (0, 1), [1.0, 2.0], ()) is None


def test_complex_states_are_left_to_the_caller() -> None:
    assert make_traceable(lambda t, y: 1j * y, (0, 1), [1.0 + 1j], ()) is None


def test_terms_that_cancel_are_not_a_difference() -> None:
    """Sums in another order differ by more than 1e-9 of a result that almost vanishes."""
    weights = np.array([1e12, -1e12, 1.0, 1e-3] * 5)

    def fun(t, y):
        return np.array([np.sum(weights * y), np.dot(weights, y)])

    with double_precision():
        found = make_traceable(lambda t, y: fun(t, np.repeat(y, 10)), (0, 1), [1.0, 1.0], ())
    assert found is not None


def test_more_components_than_can_be_unrolled_stay_python() -> None:
    assert make_traceable(vectorised_helper, (0, 1), np.ones(65), ()) is None


def test_integers_are_data_where_they_can_be() -> None:
    """An integer that only enters arithmetic does not become part of the program."""

    def fun(t, y, n):
        return n * np.sin(y)

    found = make_traceable(fun, (0, 1), [1.0], (3,))
    assert found is not None
    with double_precision():
        program = [trace(found.function, 0.0, np.ones(1), n)[0] for n in (3, 4)]
    assert program[0] == program[1]
