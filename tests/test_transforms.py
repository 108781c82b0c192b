"""Under ``jit``, ``vmap`` and ``jvp`` a solve is the same solve, in doubles, and fails alike."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once as jit
from transformed import (
    GRID,
    ON_GRID,
    QUICK,
    RATES,
    SAVE_AT,
    SAVED,
    SPAN,
    Y0,
    assert_same,
    outputs,
    solve,
)

import probode
from probode import EK1, PIControl, Status

pytestmark = pytest.mark.usefixtures("jax_as_it_comes")

# --- The same results -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "options"),
    [
        pytest.param(QUICK, ON_GRID, id="EK0-grid"),
        pytest.param(QUICK, SAVED, id="EK0-save_at"),
        pytest.param(EK1(2, "fixed"), SAVED, id="EK1-fixed-save_at", marks=pytest.mark.slow),
    ],
)
def test_jit_gives_the_eager_result(solver, options):
    def run(y0, rates):
        return outputs(solve(y0, rates, solver=solver, **options))

    assert_same(jit(run)(Y0, RATES), run(Y0, RATES))


def test_jit_gives_the_eager_dense_output():
    def run(t):
        gaussian = solve(**ON_GRID)(t)
        return gaussian.mean, gaussian.std

    times = np.array([0.0, 0.3125, 1.0, 2.0])
    assert_same(jit(run)(times), run(times))


@pytest.mark.parametrize("again", [jit, lambda run: run], ids=["jit", "plain"])
def test_a_field_with_constants_can_be_solved_again_after_a_jit(again):
    weights = np.array([1.0, 0.75])

    def field(t, y):
        return -jnp.asarray(weights) * y

    def solver(order):
        return lambda end: probode.solve(
            field, (0.0, end), Y0, solver=EK1(order), save_at=end, control=PIControl(1e-3, 1e-6)
        ).mean[-1]

    jit(solver(2))(1.0)
    np.testing.assert_allclose(again(solver(3))(1.0), Y0 * np.exp(-weights), rtol=1e-3)


def test_a_field_that_closes_over_a_traced_value_sees_the_value_of_each_trace():
    @jax.jit
    def run(rate):
        end = probode.solve(lambda t, y: -rate * y, (0.0, 1.0), Y0, solver=QUICK, save_at=1.0)
        return end.mean[-1]

    ratio = [float(run(rate)[0] / Y0[0]) for rate in (1.0, 2.0)]
    np.testing.assert_allclose(ratio, np.exp([-1.0, -2.0]), rtol=1e-3)


BATCHES = {
    "y0": np.array([[1.0, 0.5], [0.25, 2.0], [3.0, 0.125]]),
    "rates": np.array([[1.0, 0.75], [2.0, 0.5], [0.5, 0.5]]),
    "tolerance": np.array([2.0**-7, 2.0**-10, 2.0**-14]),
    "t_span": np.array([[0.0, 1.0], [0.5, 3.0], [2.0, 0.0]]),
    "grid": np.stack([GRID, GRID**2 / 2, 2 * np.sin(np.pi * GRID / 4)]).astype(np.float32),
}
BATCHES["grid"][:, -1] = 2.0


@pytest.mark.parametrize(
    "names",
    [("y0", "rates", "tolerance"), pytest.param(("t_span",), marks=pytest.mark.slow), ("grid",)],
    ids=" ".join,
)
def test_vmap_gives_what_single_solves_give(names):
    fixed = {} if "grid" in names else {"save_at": SAVE_AT}

    def run(*values):
        options = fixed | dict(zip(names, values, strict=True))
        if "t_span" in names:
            options["save_at"] = options["t_span"][1]
        return outputs(solve(**options))

    batch = [BATCHES[name] for name in names]
    single = [run(*values) for values in zip(*batch, strict=True)]
    assert_same(jit(jax.vmap(run))(*batch), jax.tree.map(lambda *xs: np.stack(xs), *single))


def test_jvp_gives_the_eager_result():
    def run(y0):
        return outputs(solve(y0, **SAVED))

    y0 = jnp.asarray(Y0)
    primal, _ = jit(lambda y0: jax.jvp(run, (y0,), (jnp.ones_like(y0),)))(y0)
    assert_same(primal, run(Y0))


@pytest.mark.parametrize("name", ["log_evidence", "step_sizes", "diffusion", "std", "cov"])
def test_a_posterior_returned_from_vmap_is_never_silently_wrong(name):
    """Either what single solves give, or an error that says that this is a batch."""
    batch = BATCHES["y0"]
    single = np.stack([getattr(solve(y0, **ON_GRID), name) for y0 in batch])
    posterior = _batch_of_posteriors()
    try:
        value = getattr(posterior, name)
    except (TypeError, ValueError) as error:
        assert "vmap" in str(error) or "batch" in str(error)
    else:
        np.testing.assert_allclose(value, single, rtol=1e-7)


@functools.cache
def _batch_of_posteriors():
    return jit(jax.vmap(lambda y0: solve(y0, **ON_GRID)))(BATCHES["y0"])


# --- What cannot run inside a trace ---------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: jit(lambda y0: solve(y0).mean)(Y0), id="jit"),
        pytest.param(lambda: jit(lambda: solve().mean)(), id="jit-of-constants"),
        pytest.param(lambda: jax.vmap(lambda y0: solve(y0).mean)(BATCHES["y0"]), id="vmap"),
        pytest.param(lambda: jax.jvp(lambda y0: solve(y0).mean, (Y0,), (Y0,)), id="jvp"),
        pytest.param(lambda: jit(lambda y0: solve(y0, step=0.5).mean)(Y0), id="step"),
        pytest.param(
            lambda: jax.grad(lambda a: probode.solve(lambda t, y: -a * y, SPAN, 1.0).mean[-1])(1.0),
            id="closure",
        ),
    ],
)
def test_a_solve_of_unknown_size_inside_a_trace_names_save_at_and_grid(call):
    with pytest.raises(ValueError, match=r"save_at .* grid"):
        call()


@pytest.mark.parametrize("option", ["grid", "save_at"])
def test_single_precision_times_inside_a_trace_do_not_end_in_a_silent_nan(option):
    """``jnp.linspace(0, 0.1, 5)`` ends at 0.1 in 32 bits, which is *beyond* the 0.1 of Python."""

    @jax.jit
    def run(y0):
        times = jnp.linspace(0.0, 0.1, 5, dtype=jnp.float32)
        posterior = solve(y0, t_span=(0.0, 0.1), **{option: times})
        return posterior.status_code, posterior.mean

    status, mean = run(Y0)
    assert status == Status.SUCCESS
    assert np.all(np.isfinite(mean))


# --- Precision ------------------------------------------------------------------------------------

ATTRIBUTES = {
    "t": lambda p: p.t,
    "mean": lambda p: p.mean,
    "std": lambda p: p.std,
    "cov": lambda p: p.cov,
    "spread": lambda p: p.spread,
    "log_evidence": lambda p: p.log_evidence,
    "sample": lambda p: p.sample(2),
}
DENSE_ATTRIBUTES = {
    "diffusion": lambda p: p.diffusion,
    "step_sizes": lambda p: p.step_sizes,
    "dense-mean": lambda p: p(0.25).mean,
    "dense-std": lambda p: p([0.25, 0.5]).std,
    "dense-cov": lambda p: p(0.25).cov,
    "derivative": lambda p: p.derivative(0.25).mean,
}


@pytest.mark.parametrize("name", [*ATTRIBUTES, *DENSE_ATTRIBUTES])
def test_outside_a_trace_results_are_numpy_arrays_of_doubles(name):
    value = {**ATTRIBUTES, **DENSE_ATTRIBUTES}[name](solve())
    assert isinstance(value, np.ndarray | np.floating)
    assert value.dtype == np.float64


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_with_save_at_results_are_numpy_arrays_of_doubles(name):
    value = ATTRIBUTES[name](solve(**SAVED))
    assert isinstance(value, np.ndarray | np.floating)
    assert value.dtype == np.float64


@functools.cache
def _inside_a_trace(*names):
    every = {**ATTRIBUTES, **DENSE_ATTRIBUTES}

    def run(y0):
        posterior = solve(y0, **ON_GRID)
        return {name: every[name](posterior) for name in names}

    return jit(run)(Y0)


@pytest.mark.parametrize("name", [*ATTRIBUTES, *DENSE_ATTRIBUTES])
def test_inside_a_trace_results_are_doubles(name):
    names = [other for other in (*ATTRIBUTES, *DENSE_ATTRIBUTES) if other != "sample"]
    value = _inside_a_trace(*(names if name in names else [name]))[name]
    assert value.dtype == np.float64
    assert np.all(np.isfinite(value))


def test_double_precision_is_not_only_a_label():
    """An error far below what 32 bits can hold."""
    control = PIControl(rtol=1e-12, atol=1e-14)
    posterior = probode.solve(lambda t, y: -y, (0.0, 1.0), 1.0, solver=EK1(5), control=control)
    assert abs(posterior.mean[-1] - np.exp(-1.0)) < 1e-11


def test_the_switch_of_the_user_changes_nothing():
    expected = outputs(solve())
    with jax.enable_x64(True):
        assert_same(outputs(solve()), expected)


def _fails():
    raise KeyError("own words")


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("call", [solve, _fails], ids=["solve", "exception"])
def test_the_switch_of_the_user_is_left_as_it_was(call, on):
    with jax.enable_x64(on):
        try:
            probode.solve(lambda t, y: -y if call is solve else call(), SPAN, 1.0, solver=QUICK)
        except KeyError:
            assert call is _fails
        assert jax.config.jax_enable_x64 is on
        assert jnp.ones(1).dtype == (np.float64 if on else np.float32)


# --- Failures inside a trace ----------------------------------------------------------------------


def decay_until(t, y, end):
    return jnp.where(t < end, -y, jnp.nan)


def solve_until(end, **options):
    return probode.solve(
        decay_until, (0.0, 1.0), 1.0, (end,), solver=QUICK, max_steps=500, **options
    )


UNTIL = {
    "save_at": {"save_at": np.linspace(0.0, 1.0, 5)},
    "grid": {"grid": np.linspace(0.0, 1.0, 33)},
}


@functools.cache
def _batch_until(mode):
    def run(end):
        posterior = solve_until(end, **UNTIL[mode])
        return posterior.status_code, posterior.t, posterior.mean, posterior.std

    return jit(jax.vmap(run))


@pytest.mark.parametrize("failing", [0.625, -1.0], ids=["later", "at-the-start"])
@pytest.mark.parametrize("mode", UNTIL)
def test_one_member_of_a_batch_fails_alone(mode, failing):
    status, *batch = _batch_until(mode)(np.array([2.0, failing, 3.0]))
    bad = Status.NOT_FINITE if failing > 0 else Status.START_NOT_FINITE
    np.testing.assert_array_equal(status, [Status.SUCCESS, bad, Status.SUCCESS])
    for member, end in [(0, 2.0), (2, 3.0)]:
        alone = solve_until(end, **UNTIL[mode])
        assert_same([x[member] for x in batch], (alone.t, alone.mean, alone.std))


@pytest.mark.parametrize("failing", [0.625, -1.0], ids=["later", "at-the-start"])
@pytest.mark.parametrize("mode", UNTIL)
def test_the_failing_member_of_a_batch_keeps_what_it_reached(mode, failing):
    _, *batch = _batch_until(mode)(np.array([2.0, failing, 3.0]))
    alone = solve_until(failing, **UNTIL[mode])
    reached = len(alone.t)
    assert 0 < reached < batch[0].shape[1]
    assert np.all(np.isfinite(alone.mean))
    assert_same([x[1, :reached] for x in batch], (alone.t, alone.mean, alone.std))


def test_max_steps_inside_a_trace_keeps_the_rows_that_were_reached():
    save_at = np.array([0.0, 0.0625, 1.0, 1.5, 2.0])

    def run(y0):
        return solve(y0, save_at=save_at, max_steps=5)

    traced, eager = jit(run)(Y0), run(Y0)
    assert traced.status == eager.status == Status.MAX_STEPS
    assert len(eager.t) == 2
    assert_same((traced.mean[:2], traced.std[:2]), (eager.mean, eager.std))
    assert np.all(np.isnan(traced.mean[2:]))
