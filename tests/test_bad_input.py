"""Bad input gets a clear answer, and the user's own errors come through."""

import functools
import time
import traceback

import jax.numpy as jnp
import numpy as np
import pytest
from attempts import PAIR, OwnError, attempt

from probode import EK0, EK1, DiagonalEK1, PControl, PIControl


def assert_refused(call, words):
    """``call`` raises an error about its input, and the message has all of ``words``."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} not in {caught.value!s}"


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "words"),
    [
        pytest.param(lambda y: jnp.ones(3), ["(2,)", "y0", "(3,)"], id="too-long"),
        pytest.param(lambda y: y[0], ["(2,)", "()"], id="a-number"),
        pytest.param(lambda y: y[None], ["(2,)", "(1, 2)"], id="too-many-axes"),
        pytest.param(lambda y: [y[0]], ["(2,)", "(1,)"], id="too-few-outputs"),
        pytest.param(lambda y: (y[0], y[1], y[0]), ["(2,)", "(3,)"], id="too-many-outputs"),
        pytest.param(lambda y: [y, y[0]], ["(2,)", "list"], id="ragged"),
        pytest.param(lambda y: {"y": y}, ["(2,)", "dict"], id="dict"),
        pytest.param(lambda y: None, ["None", "return statement"], id="none"),
        pytest.param(lambda y: 1j * y, ["real", "complex128", "(Re, Im)"], id="complex"),
    ],
)
def test_a_vector_field_of_the_wrong_output_is_refused(output, words):
    assert_refused(lambda: attempt(lambda t, y: output(y)), ["vector_field", *words])


def test_a_vector_field_that_is_no_function_is_refused():
    assert_refused(lambda: attempt(3.0), ["vector_field", "f(t, y, *args)", "float"])


@pytest.mark.parametrize(
    ("t_span", "words"),
    [
        (1.0, ["pair", "(t0, t1)", "1.0"]),
        (None, ["pair", "None"]),
        ((0.0,), ["pair", "(0.0,)"]),
        ((0.0, 1.0, 2.0), ["pair", "(0.0, 1.0, 2.0)"]),
        (((0.0, 1.0), (2.0, 3.0)), ["pair of numbers", "(2,)"]),
        ((0.0, np.nan), ["finite", "nan"]),
        ((-np.inf, 0.0), ["finite", "inf"]),
        ((0.0, 1j), ["real", "complex"]),
        (("now", "then"), ["real numbers", "now"]),
    ],
)
def test_a_t_span_that_is_no_pair_of_finite_numbers_is_refused(t_span, words):
    assert_refused(lambda: attempt(t_span=t_span), ["t_span", *words])


@pytest.mark.parametrize(
    ("y0", "words"),
    [
        (np.nan, ["finite", "nan"]),
        ([1.0, -np.inf], ["finite", "inf"]),
        ([], ["at least one component", "(0,)"]),
        (np.zeros((0, 3)), ["at least one component", "(0, 3)"]),
        (1j, ["real", "complex", "(Re, Im)"]),
        ("one", ["real numbers", "'one'"]),
        (None, ["real numbers", "None"]),
        ([1.0, [2.0, 3.0]], ["real numbers", "[1.0, [2.0, 3.0]]"]),
        ({"x": 1.0}, ["real numbers", "{'x': 1.0}"]),
    ],
    ids=str,
)
def test_an_initial_value_that_is_not_made_of_finite_numbers_is_refused(y0, words):
    assert_refused(lambda: attempt(y0=y0), ["y0", *words])


@pytest.mark.parametrize("control", [PIControl, PControl])
@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [0.0, -1e-6, np.nan, "small", None, (1e-6, -1e-6)], ids=str)
def test_a_tolerance_that_is_not_positive_is_refused(control, name, value):
    assert_refused(
        lambda: attempt(control=control(**{name: value})), [name, "positive", str(value)]
    )


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("shape", [(1,), (3,), (1, 2)])
def test_a_tolerance_of_the_wrong_shape_is_refused(name, shape):
    control = PIControl(**{name: np.full(shape, 1e-6)})
    assert_refused(lambda: attempt(control=control), [name, "(2,) of y0", str(shape)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("first_step", 0.0),
        ("first_step", np.nan),
        ("max_step", 0.0),
        ("max_step", np.nan),
        ("min_step", -1.0),
        ("min_step", np.nan),
        ("rho", np.nan),
        ("eta_min", 0.0),
        ("eta_min", 2.0),
        ("eta_max", 0.5),
        ("integral", np.nan),
        ("proportional", np.nan),
    ],
)
def test_step_control_that_could_never_end_is_refused(name, value):
    """A step of NaN, or one that cannot shrink after a rejection, would be tried for ever."""
    assert_refused(lambda: PIControl(**{name: value}), [name, str(value)])


@pytest.mark.parametrize("solver", [EK0, EK1, DiagonalEK1])
@pytest.mark.parametrize("order", [0, 12, -1, 2.5, "3", None, True])
def test_an_order_that_is_no_integer_from_1_to_11_is_refused(solver, order):
    assert_refused(lambda: solver(order), ["order", "1", "11", str(order)])


@pytest.mark.parametrize(
    ("option", "wrong", "nearest"),
    [
        ("diffusion", "dynamc", "'dynamic'"),
        ("diffusion", "Fixed", "'fixed'"),
        ("diffusion", "fixed_mv", "'fixed-mv'"),
        ("initialization", "tayler", "'taylor'"),
        ("initialization", "RungeKutta", "'runge-kutta'"),
        ("structure", "dens", "'dense'"),
        ("structure", "blockdiagonal", "'block-diagonal'"),
    ],
)
def test_an_unknown_name_is_refused_and_the_nearest_suggested(option, wrong, nearest):
    words = [option, "must be one of", repr(wrong), f"Did you mean {nearest}?"]
    assert_refused(lambda: EK0(2, **{option: wrong}), words)


@pytest.mark.parametrize("option", ["diffusion", "initialization", "structure"])
def test_a_choice_that_is_no_name_is_refused_with_the_list_of_names(option):
    assert_refused(lambda: EK0(2, **{option: 3}), [option, "must be one of", "got 3"])


@pytest.mark.parametrize("diffusion", ["dynamic", "fixed"])
def test_ek1_refuses_one_diffusion_per_component_and_says_what_to_use(diffusion):
    words = [f"'{diffusion}-mv'", "EK1", f"Use diffusion='{diffusion}'", "DiagonalEK1", "EK0"]
    assert_refused(lambda: EK1(2, f"{diffusion}-mv"), words)


@pytest.mark.parametrize(
    ("solver", "structure"), [(EK1(2), "isotropic"), (EK0(2, "dynamic-mv"), "isotropic")]
)
def test_a_structure_that_is_too_small_is_refused_and_the_others_named(solver, structure):
    words = [structure, solver.diffusion.name, "use one of", "dense"]
    call = functools.partial(type(solver), 2, solver.diffusion, structure=structure)
    assert_refused(call, words)


@pytest.mark.parametrize("solver", [EK1(5), EK1(1), EK0(3, structure="dense")])
def test_a_dense_covariance_beyond_memory_is_refused_at_once(solver):
    """Terabytes: had it tried to allocate them, this would be a MemoryError."""
    start = time.perf_counter()
    words = [solver.name, "200000 components", "GiB", "EK0", "SparseEK1"]
    assert_refused(lambda: attempt(y0=np.ones(200_000), solver=solver), words)
    assert time.perf_counter() - start < 5.0


def test_diagonal_ek1_refuses_a_huge_problem_without_jac():
    words = ["DiagonalEK1", "20000 components", "jac=", "diagonal", "EK0"]
    assert_refused(lambda: attempt(y0=np.ones(20_000), solver=DiagonalEK1(2)), words)


@pytest.mark.parametrize(
    ("solver", "jac", "words"),
    [
        (EK1(2), -1.0, ["(2, 2)", "()"]),
        (EK1(2), np.eye(3), ["(2, 2)", "(3, 3)"]),
        (EK1(2), lambda t, y: -jnp.ones(2), ["(2, 2)", "(2,)"]),
        (EK1(2), lambda t, y: None, ["None", "return statement"]),
        (EK1(2), lambda t, y: 1j * jnp.eye(2), ["real", "complex128"]),
        (EK1(2), "2-point", ["2-point"]),
        (DiagonalEK1(2), -np.ones(3), ["(2,) or (2, 2)", "(3,)"]),
        (DiagonalEK1(2), lambda t, y: -1.0, ["(2,) or (2, 2)", "()"]),
    ],
)
def test_a_jacobian_of_the_wrong_shape_is_refused(solver, jac, words):
    assert_refused(lambda: attempt(solver=solver, jac=jac), ["jac", *words])


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ([0.0, 0.5, 0.9], ["t0 = 0", "t1 = 1", "0.9"]),
        ([0.1, 0.5, 1.0], ["t0 = 0", "t1 = 1", "0.1"]),
        ([1.0, 0.5, 0.0], ["t0 = 0", "t1 = 1", "from 1 to 0"]),
        ([0.0, 0.7, 0.5, 1.0], ["increasing", "grid[1] = 0.7", "0.5"]),
        ([0.0, 0.5, 0.5, 1.0], ["increasing", "grid[1] = 0.5"]),
        ([0.0, np.nan, 1.0], ["finite", "nan"]),
        ([0.0], ["at least two times", "(1,)"]),
        (0.1, ["at least two times", "()"]),
        ([[0.0, 1.0]], ["vector", "(1, 2)"]),
    ],
)
def test_a_grid_that_does_not_go_from_t0_to_t1_in_order_is_refused(grid, words):
    assert_refused(lambda: attempt(grid=grid), ["grid", *words])


@pytest.mark.parametrize(
    ("save_at", "words"),
    [
        (2.0, ["between t0 = 0 and t1 = 1", "2"]),
        ([-0.5, 0.5], ["between t0 = 0 and t1 = 1", "-0.5"]),
        ([0.5, 0.2], ["increasing", "save_at[0] = 0.5", "0.2"]),
        ([0.2, 0.2], ["increasing", "save_at[0] = 0.2"]),
        ([0.2, np.nan], ["finite", "nan"]),
        ([], ["vector of times", "(0,)"]),
        ([[0.1, 0.2]], ["vector of times", "(1, 2)"]),
        ("end", ["real numbers", "'end'"]),
    ],
)
def test_save_at_outside_of_the_interval_or_out_of_order_is_refused(save_at, words):
    assert_refused(lambda: attempt(save_at=save_at), ["save_at", *words])


def test_backwards_in_time_save_at_must_decrease():
    words = ["save_at", "decreasing", "save_at[0] = 0.2", "0.5"]
    assert_refused(lambda: attempt(t_span=(1.0, 0.0), save_at=[0.2, 0.5]), words)


@pytest.mark.parametrize("option", ["grid", "save_at"])
def test_times_rounded_to_single_precision_work_or_the_error_says_why(option):
    """``jnp.linspace(0, 0.1, 5)`` ends at 0.1 in 32 bits, which is *beyond* the 0.1 of Python."""
    times = jnp.linspace(0.0, 0.1, 5, dtype=jnp.float32)
    try:
        posterior = attempt(t_span=(0.0, 0.1), **{option: times})
    except ValueError as error:
        assert "float32" in str(error)
    else:
        assert len(posterior.t) == 5
        np.testing.assert_allclose(posterior.mean[-1], np.exp(-0.1) * np.array(PAIR), rtol=1e-3)


def test_both_grid_and_step_are_refused():
    assert_refused(lambda: attempt(grid=[0.0, 1.0], step=0.1), ["grid", "step", "not both"])


@pytest.mark.parametrize("step", [0.0, -0.1, np.nan, np.inf, "small", 1j])
def test_a_step_that_is_not_positive_is_refused(step):
    assert_refused(lambda: attempt(step=step), ["step must be", str(step)])


def test_a_vector_of_steps_is_refused_and_grid_suggested():
    assert_refused(lambda: attempt(step=[0.1, 0.2]), ["step", "a number", "(2,)", "grid"])


@pytest.mark.parametrize("max_steps", [0, -1, True, 2.5, np.nan, np.inf, "many"])
def test_max_steps_that_is_no_positive_integer_is_refused(max_steps):
    words = ["max_steps", "positive integer", str(max_steps)]
    assert_refused(lambda: attempt(max_steps=max_steps), words)


@pytest.mark.parametrize("time_limit", [0, -1.0, np.nan, "soon"])
def test_a_time_limit_that_is_not_positive_is_refused(time_limit):
    words = ["time_limit", "positive", "seconds", str(time_limit)]
    assert_refused(lambda: attempt(time_limit=time_limit), words)


@pytest.mark.parametrize("solver", ["EK1", EK1, None])
def test_a_solver_of_the_wrong_type_is_refused(solver):
    assert_refused(lambda: attempt(solver=solver), ["solver", "EK0(...)", "EK1(...)", repr(solver)])


@pytest.mark.parametrize("control", ["PI", PIControl, None, 1e-6])
def test_a_control_of_the_wrong_type_is_refused(control):
    assert_refused(lambda: attempt(control=control), ["control", "PIControl(rtol", repr(control)])


@pytest.mark.parametrize("args", [2.0, np.ones(2), {"rate": 2.0}, "ab", None], ids=str)
def test_args_that_are_no_tuple_are_refused(args):
    words = ["args", "tuple", type(args).__name__, "args=(parameter,)"]
    assert_refused(lambda: attempt(lambda t, y, rate: -rate * y, args=args), words)


def test_a_callback_that_is_no_function_is_refused():
    assert_refused(lambda: attempt(callback=3.0), ["callback"])


# --- The user's own errors ------------------------------------------------------------------------


def raising(error):
    def own_vector_field(t, y):
        raise error

    return own_vector_field


@pytest.mark.parametrize(
    "error",
    [OwnError("own words"), TypeError("own words"), ValueError("own words"), KeyError("own words")],
    ids=repr,
)
def test_an_error_in_the_vector_field_comes_through_unchanged(error):
    with pytest.raises(type(error)) as caught:
        attempt(raising(error))
    assert caught.value is error
    assert caught.value.args == ("own words",)


def test_the_traceback_of_an_error_in_the_vector_field_shows_its_line():
    with pytest.raises(OwnError) as caught:
        attempt(raising(OwnError("own words")))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.name == "own_vector_field" and "raise error" in frame.line for frame in frames)


@pytest.mark.parametrize(
    "vector_field",
    [
        pytest.param(lambda t, y: -y if y[0] > 0 else y, id="if-y"),
        pytest.param(lambda t, y: -y if t < 0.5 else y, id="if-t"),
        pytest.param(lambda t, y: -y * max(y[0], 0.0), id="max"),
        pytest.param(lambda t, y: -y * float(y[0]), id="float"),
        pytest.param(lambda t, y: np.sin(y), id="numpy-function"),
        pytest.param(lambda t, y: np.array([y[1], -y[0]]), id="numpy-array"),
    ],
)
def test_a_vector_field_that_cannot_be_traced_is_told_what_to_do(vector_field):
    with pytest.raises(TypeError) as caught:
        attempt(vector_field)
    advice = " ".join(caught.value.__notes__)
    for word in ("jax.numpy", "jnp.where", "jax.lax.cond"):
        assert word in advice
