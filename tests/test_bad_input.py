"""Bad input gets a clear answer, failures lose nothing, and unusual but good input just works."""

import functools
import os
import signal
import threading
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probode import EK0, EK1, DiagonalEK1, PControl, PIControl, Status, solve

QUICK = EK0(2)
PAIR = (1.0, 2.0)
GUARD = 30_000
"""Steps after which a solve that should have ended long ago is stopped (and the test fails)."""


def decay(t, y):
    return -y


def attempt(vector_field=decay, t_span=(0.0, 1.0), y0=PAIR, **options):
    return solve(vector_field, t_span, y0, **{"solver": QUICK, **options})


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
    words = [solver.name, "200000 components", "GiB", "EK0", "DiagonalEK1"]
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


class OwnError(Exception):
    """Something that only the user's function raises."""


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


# --- Nothing is lost ------------------------------------------------------------------------------


def decay_until(t, y, end, beyond):
    """``-y`` until the time ``end``, from then on ``beyond`` (NaN, Inf)."""
    return jnp.where(t < end, -y, beyond)


def explosion(t, y):
    """``y' = y²``, ``y(0) = 1``: ``y = 1 / (1 - t)`` leaves to infinity at ``t = 1``."""
    return y * y


def oscillator(t, y):
    return jnp.stack([y[1], -y[0]])


def assert_finite(posterior):
    assert np.all(np.isfinite(posterior.mean))
    assert np.all(np.isfinite(posterior.std))


def assert_decay(posterior):
    """All that came back is ``exp(-t)``, with finite error bars."""
    assert_finite(posterior)
    np.testing.assert_allclose(posterior.mean, np.exp(-posterior.t), rtol=1e-4)


SOLVERS = pytest.mark.parametrize(
    "solver",
    [EK0(2), EK1(2), EK0(2, "fixed"), EK1(2, "fixed")],
    ids=lambda s: f"{s.name}-{s.diffusion.name}",
)


@SOLVERS
def test_nan_from_some_time_on_ends_the_solve_shortly_before(solver):
    posterior = attempt(decay_until, y0=1.0, args=(0.5, np.nan), solver=solver, max_steps=GUARD)
    assert posterior.status == Status.NOT_FINITE
    assert not posterior.success
    assert "NaN or Inf" in posterior.message
    assert 0.5 - 1e-6 < posterior.t[-1] <= 0.5
    assert_decay(posterior)


@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("end", [0.25, 0.3, 0.5, 0.7, 0.9])
def test_a_solve_that_cannot_go_on_ends_wherever_that_is(end, beyond):
    """The smallest step is a matter of rounding, which must not decide whether the solve ends."""
    posterior = attempt(decay_until, y0=1.0, args=(end, beyond), max_steps=5000)
    assert posterior.status == Status.NOT_FINITE
    assert end - 1e-6 < posterior.t[-1] <= end


TENTHS = np.linspace(0.0, 1.0, 11)


@pytest.mark.parametrize("solver", [EK0(2), EK1(2)], ids=lambda s: s.name)
def test_nan_with_save_at_returns_the_rows_that_were_reached(solver):
    posterior = attempt(
        decay_until, y0=1.0, args=(0.45, np.nan), solver=solver, save_at=TENTHS, max_steps=GUARD
    )
    assert posterior.status == Status.NOT_FINITE
    np.testing.assert_array_equal(posterior.t, TENTHS[:5])
    assert_decay(posterior)


@SOLVERS
def test_nan_on_a_grid_keeps_the_nodes_before(solver):
    grid = np.linspace(0.0, 1.0, 41)
    posterior = attempt(decay_until, y0=1.0, args=(0.51, np.nan), solver=solver, grid=grid)
    assert posterior.status == Status.NOT_FINITE
    np.testing.assert_array_equal(posterior.t, grid[grid < 0.51])
    assert_decay(posterior)


def test_nan_on_a_grid_with_save_at_keeps_the_rows_before():
    grid = np.linspace(0.0, 1.0, 41)
    posterior = attempt(decay_until, y0=1.0, args=(0.45, np.nan), grid=grid, save_at=TENTHS)
    assert posterior.status == Status.NOT_FINITE
    np.testing.assert_array_equal(posterior.t, TENTHS[:5])
    assert_decay(posterior)


def test_nan_with_a_constant_step_keeps_the_steps_before():
    posterior = attempt(decay_until, y0=1.0, args=(0.51, np.nan), step=0.025)
    assert posterior.status == Status.NOT_FINITE
    np.testing.assert_allclose(posterior.t, np.arange(21) * 0.025)
    assert_decay(posterior)


@pytest.mark.parametrize(
    "solver", [EK0(2), EK1(2), EK0(3, "fixed")], ids=lambda s: f"{s.name}-{s.diffusion.name}"
)
def test_a_solution_that_explodes_ends_with_what_came_before(solver):
    # A fixed diffusion cannot explain the last steps, and takes it out on the smoothed past.
    smooth = not solver.diffusion.fixed
    posterior = attempt(explosion, (0.0, 2.0), 1.0, solver=solver, max_steps=GUARD, smooth=smooth)
    assert posterior.status in (Status.STEP_TOO_SMALL, Status.NOT_FINITE)
    assert posterior.t[-1] == pytest.approx(1.0, abs=1e-2)
    assert_finite(posterior)
    early = posterior.t < 0.75
    np.testing.assert_allclose(posterior.mean[early], 1 / (1 - posterior.t[early]), rtol=1e-3)


def test_a_solution_that_explodes_with_save_at_returns_the_rows_that_were_reached():
    save_at = [0.25, 0.5, 0.75, 1.5]
    posterior = attempt(explosion, (0.0, 2.0), 1.0, save_at=save_at, max_steps=GUARD)
    assert posterior.status in (Status.STEP_TOO_SMALL, Status.NOT_FINITE)
    np.testing.assert_array_equal(posterior.t, save_at[:3])
    assert_finite(posterior)
    np.testing.assert_allclose(posterior.mean, 1 / (1 - posterior.t), rtol=1e-3)


@SOLVERS
def test_a_start_that_is_not_finite_returns_the_initial_node(solver):
    posterior = attempt(decay_until, y0=1.0, args=(-1.0, np.nan), solver=solver)
    assert posterior.status == Status.START_NOT_FINITE
    assert "initial value" in posterior.message
    np.testing.assert_array_equal(posterior.t, [0.0])
    np.testing.assert_array_equal(posterior.mean, [1.0])
    np.testing.assert_array_equal(posterior.std, [0.0])


@pytest.mark.parametrize(("save_at", "rows"), [(TENTHS, 1), (0.5 + 0.5 * TENTHS, 0)])
def test_a_start_that_is_not_finite_with_save_at(save_at, rows):
    posterior = attempt(decay_until, y0=1.0, args=(-1.0, np.nan), save_at=save_at)
    assert posterior.status == Status.START_NOT_FINITE
    np.testing.assert_array_equal(posterior.t, save_at[:rows])
    np.testing.assert_array_equal(posterior.mean, [1.0] * rows)
    np.testing.assert_array_equal(posterior.std, [0.0] * rows)


@pytest.mark.parametrize("args", [(0.5, np.nan), (-1.0, np.nan)], ids=["later", "at-the-start"])
@pytest.mark.parametrize("save_at", [None, TENTHS], ids=["steps", "save_at"])
def test_a_failed_solve_can_be_shown(args, save_at):
    posterior = attempt(decay_until, y0=1.0, args=args, save_at=save_at, max_steps=1000)
    assert posterior.message in repr(posterior)


FOR_EVER = (0.0, 1e9)


def assert_oscillates(posterior):
    assert len(posterior.t) > 1
    assert posterior.t[0] == 0.0
    assert_finite(posterior)
    early = posterior.t < 2.0
    np.testing.assert_allclose(posterior.mean[early, 0], np.cos(posterior.t[early]), atol=1e-3)


SAVING = pytest.mark.parametrize("save_at", [None, [0.0, 0.001, 1e9]], ids=["steps", "save_at"])


def stopped(save_at, **options):
    """A solve without end, stopped by ``options``."""
    options = {"time_limit": 20.0, **options}
    return attempt(oscillator, FOR_EVER, (1.0, 0.0), save_at=save_at, **options)


def assert_partial(posterior, save_at, status):
    assert posterior.status == status
    assert posterior.message == status.message
    assert_oscillates(posterior)
    assert posterior.t[-1] < 1e9
    if save_at is not None:
        np.testing.assert_array_equal(posterior.t, save_at[:2])


@SAVING
def test_max_steps_returns_the_steps_made(save_at):
    posterior = stopped(save_at, max_steps=10)
    assert_partial(posterior, save_at, Status.MAX_STEPS)
    assert posterior.stats.steps == 10


@SAVING
def test_time_limit_returns_the_steps_made(save_at):
    stopped(save_at, max_steps=10)  # compiled now
    assert_partial(stopped(save_at, time_limit=0.1), save_at, Status.TIME_LIMIT)


@SAVING
def test_a_callback_that_returns_true_stops_the_solve(save_at):
    seen = []

    def callback(progress):
        seen.append(progress)
        return len(seen) == 2

    assert_partial(stopped(save_at, callback=callback), save_at, Status.CALLBACK)
    assert len(seen) == 2
    assert 0.0 < seen[0].t < seen[1].t
    assert seen[1].y == pytest.approx([np.cos(seen[1].t), -np.sin(seen[1].t)], abs=1e-3)


def test_an_error_in_the_callback_comes_through():
    def callback(progress):
        raise OwnError("own words")

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(OwnError, match="own words"):
        stopped(None, callback=callback)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_time_limit_is_honoured_however_slow_the_vector_field_is():
    """A tenth of a second per evaluation: the limit must not wait for dozens of steps."""

    def wait(t):
        time.sleep(0.1)
        return np.float32(0.0)

    def slow(t, y):
        return -y + jax.pure_callback(wait, jax.ShapeDtypeStruct((), np.float32), t)

    posterior = attempt(slow, y0=1.0, solver=EK0(1), time_limit=0.3, max_steps=50)
    assert posterior.status == Status.TIME_LIMIT
    assert posterior.stats.steps < 20
    assert_finite(posterior)


@SAVING
def test_ctrl_c_returns_the_steps_made_and_restores_the_handler(save_at):
    handler = signal.getsignal(signal.SIGINT)

    def press(progress):
        signal.raise_signal(signal.SIGINT)

    try:
        posterior = stopped(save_at, callback=press)
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C lost the solution")
    assert_partial(posterior, save_at, Status.INTERRUPTED)
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_is_noticed_between_callbacks():
    """As a user presses it: at any time, while compiled code runs."""
    stopped(None, max_steps=300)  # compiled now
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        posterior = stopped(None)
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C lost the solution")
    finally:
        timer.cancel()
    assert_partial(posterior, None, Status.INTERRUPTED)


def test_a_second_ctrl_c_interrupts_at_once():
    handler = signal.getsignal(signal.SIGINT)

    def press_twice(progress):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        stopped(None, callback=press_twice)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_solve_works_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(stopped(None, max_steps=10)))
    thread.start()
    thread.join()
    assert_partial(results[0], None, Status.MAX_STEPS)


# --- Unusual but good -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "y0",
    [
        2,
        2.0,
        True,
        np.float64(2.0),
        np.float32(2.0),
        np.int64(2),
        np.array(2),
        [1, 2],
        (1, 2.5),
        np.array([1, 2]),
        np.array([1, 2], np.uint8),
        np.array([1.0, 2.0], np.float32),
        np.array([1.0, 2.0], np.float16),
        jnp.array([1.0, 2.0]),
        jnp.array([1, 2]),
        [jnp.array(1.0), np.float32(2.0)],
        np.arange(6).reshape(2, 3),
    ],
    ids=lambda y0: f"{type(y0).__name__}-{np.asarray(y0).dtype}-{np.shape(y0)}",
)
def test_any_kind_of_initial_value_is_solved_in_double_precision(y0):
    posterior = attempt(y0=y0)
    expected = np.exp(-1.0) * np.array(y0, float)
    assert posterior.status == Status.SUCCESS
    assert posterior.mean.dtype == posterior.std.dtype == np.float64
    assert posterior.mean.shape[1:] == expected.shape
    np.testing.assert_allclose(posterior.mean[-1], expected, rtol=1e-6)


TIGHT = {"solver": EK1(5), "control": PIControl(rtol=1e-11, atol=1e-13)}


@pytest.mark.parametrize("rate", [np.float32(0.1), jnp.float32(0.1)])
def test_single_precision_input_does_not_make_a_single_precision_result(rate):
    y0 = np.array([1.1, 2.3], np.float32)
    posterior = attempt(lambda t, y, rate: -rate * y, y0=y0, args=(rate,), **TIGHT)
    expected = np.exp(-np.float64(np.float32(0.1))) * y0.astype(float)
    assert posterior.mean.dtype == posterior.std.dtype == np.float64
    np.testing.assert_allclose(posterior.mean[-1], expected, rtol=1e-10)


@pytest.mark.parametrize(
    "t_span",
    [
        (0, 1),
        [0.0, 1.0],
        np.array([0, 1]),
        jnp.array([0.0, 1.0]),
        (np.float32(0.0), np.int64(1)),
        (jnp.array(0.0), 1),
    ],
    ids=repr,
)
def test_any_kind_of_t_span(t_span):
    posterior = attempt(t_span=t_span)
    assert posterior.t.dtype == np.float64
    assert posterior.t[-1] == 1.0
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-1.0) * np.array(PAIR), rtol=1e-6)


@pytest.mark.parametrize(
    "tolerance",
    [np.float64(1e-8), np.float32(1e-8), jnp.array(1e-8), [1e-8, 1e-8], (1e-8, 1e-8)],
    ids=repr,
)
def test_any_kind_of_tolerance(tolerance):
    posterior = attempt(control=PIControl(rtol=tolerance, atol=tolerance))
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-1.0) * np.array(PAIR), rtol=1e-7)


def turned(t, y, a):
    return (a * y[1], -a * y[0])


@pytest.mark.parametrize(
    "vector_field",
    [
        pytest.param(lambda t, y, a: (a * y[1], -a * y[0]), id="tuple"),
        pytest.param(lambda t, y, a: [a * y[1], -a * y[0]], id="list"),
        pytest.param(lambda t, y, a: [a * y[1], -a * y[0] + np.float64(0)], id="mixed"),
        pytest.param(lambda t, y, a: jnp.array([a * y[1], -a * y[0]], jnp.float64), id="array"),
        pytest.param(jax.jit(turned), id="compiled"),
        pytest.param(functools.partial(turned), id="partial"),
    ],
)
def test_any_kind_of_vector_field(vector_field):
    posterior = attempt(vector_field, y0=[1.0, 0.0], args=(2.0,))
    np.testing.assert_allclose(posterior.mean[-1], [np.cos(2.0), -np.sin(2.0)], atol=1e-4)


def test_numbers_among_the_outputs_of_the_vector_field():
    posterior = attempt(lambda t, y: [1, y[0]], y0=[0.0, 0.0])
    np.testing.assert_allclose(posterior.mean[-1], [1.0, 0.5], atol=1e-6)


def test_integers_as_output_of_the_vector_field():
    posterior = attempt(lambda t, y: jnp.array([1, 2]), y0=[0.0, 0.0])
    np.testing.assert_allclose(posterior.mean[-1], [1.0, 2.0], atol=1e-9)


def test_nested_args_reach_the_vector_field():
    def vector_field(t, y, parameters, kind):
        assert kind == "linear"
        rate, (shift, none) = parameters["rate"], parameters["others"]
        assert none is None
        return -rate * y + shift["by"]

    parameters = {"rate": np.array([1.0, 2.0]), "others": [{"by": jnp.array(0.0)}, None]}
    posterior = attempt(vector_field, args=(parameters, "linear"))
    np.testing.assert_allclose(posterior.mean[-1], [np.exp(-1.0), 2 * np.exp(-2.0)], rtol=1e-5)


def repeated(t, y, number, rate):
    for _ in range(number):
        y = rate * y
    return -y


@pytest.mark.parametrize("number", [2, np.int64(2)], ids=repr)
def test_an_integer_in_args_may_be_the_length_of_a_loop(number):
    posterior = attempt(repeated, args=(number, 0.5))
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-0.25) * np.array(PAIR), rtol=1e-5)


@pytest.mark.parametrize("flag", [True, np.True_], ids=repr)
def test_a_switch_in_args_may_steer_the_vector_field(flag):
    posterior = attempt(lambda t, y, grows: y if grows else -y, args=(flag,))
    np.testing.assert_allclose(posterior.mean[-1], np.exp(1.0) * np.array(PAIR), rtol=1e-5)


def test_an_integer_in_args_may_be_the_length_of_a_loop_in_jac_alone():
    def jac(t, y, number):
        return -sum(jnp.eye(2) for _ in range(number))

    posterior = attempt(lambda t, y, number: -number * y, args=(2,), jac=jac, solver=EK1(2))
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-2.0) * np.array(PAIR), rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"save_at": 1.0}, {"smooth": False}], ids=str)
def test_an_interval_of_length_zero_is_its_initial_value(options):
    posterior = attempt(t_span=(1.0, 1.0), **options)
    assert posterior.status == Status.SUCCESS
    np.testing.assert_array_equal(posterior.t, [1.0])
    np.testing.assert_array_equal(posterior.mean, [PAIR])
    np.testing.assert_array_equal(posterior.std, [(0.0, 0.0)])


def test_dense_output_and_samples_of_an_interval_of_length_zero():
    posterior = attempt(t_span=(1.0, 1.0))
    np.testing.assert_array_equal(posterior(1.0).mean, PAIR)
    np.testing.assert_array_equal(posterior.sample(2), [[PAIR], [PAIR]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"step": 0.01},
        {"grid": np.linspace(1.0, 0.0, 101)},
        {"save_at": [0.5, 0.0]},
    ],
    ids=str,
)
def test_integrating_backwards_in_time(options):
    posterior = attempt(t_span=(1.0, 0.0), y0=np.exp(-1.0) * np.array(PAIR), **options)
    assert posterior.status == Status.SUCCESS
    assert posterior.t[-1] == 0.0
    assert np.all(np.diff(posterior.t) < 0)
    np.testing.assert_allclose(posterior.mean[-1], PAIR, rtol=1e-4)
    assert_finite(posterior)
