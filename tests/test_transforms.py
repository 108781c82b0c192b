"""Under ``jit``, ``vmap``, ``jvp`` and ``grad`` a solve is the same solve, compiled once."""

import functools
import gc
import subprocess
import sys
import weakref
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once as jit

import probode
from probode import EK0, EK1, PIControl, Status

# All numbers are exact in 32 bits too, so that a solve does not depend on who rounded them.
Y0 = np.array([1.0, 0.5])
RATES = np.array([1.0, 0.75])
SPAN = (0.0, 2.0)
GRID = np.linspace(*SPAN, 17)
SAVE_AT = np.linspace(*SPAN, 5)
LOOSE = 2.0**-10
QUICK = EK0(2)


def predator_prey(t, y, rates):
    return jnp.stack([rates[0] * y[0] - y[0] * y[1], y[0] * y[1] - rates[1] * y[1]])


def solve(
    y0=Y0,
    rates=RATES,
    t_span=SPAN,
    tolerance=LOOSE,
    solver=QUICK,
    field=predator_prey,
    **options,
):
    control = PIControl(rtol=tolerance, atol=tolerance * 2.0**-7)
    return probode.solve(field, t_span, y0, (rates,), solver=solver, control=control, **options)


def outputs(posterior):
    return posterior.t, posterior.mean, posterior.std, posterior.log_evidence


def assert_same(actual, expected):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


ON_GRID, SAVED = {"grid": GRID}, {"save_at": SAVE_AT}
SOLVERS = pytest.mark.parametrize(
    "solver",
    [EK0(2), EK1(2), EK0(2, "fixed"), EK1(2, "fixed")],
    ids=lambda s: f"{s.name}-{s.diffusion.name}",
)


@pytest.fixture(autouse=True)
def _switch_off():
    """These tests are about JAX as it comes: 32 bits, unless one asks for more."""
    assert not jax.config.jax_enable_x64


# --- The same results -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("solver", "options"),
    [
        pytest.param(QUICK, ON_GRID, id="EK0-grid"),
        pytest.param(QUICK, SAVED, id="EK0-save_at"),
        pytest.param(EK1(2, "fixed"), SAVED, id="EK1-fixed-save_at"),
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


BATCHES = {
    "y0": np.array([[1.0, 0.5], [0.25, 2.0], [3.0, 0.125]]),
    "rates": np.array([[1.0, 0.75], [2.0, 0.5], [0.5, 0.5]]),
    "tolerance": np.array([2.0**-7, 2.0**-10, 2.0**-14]),
    "t_span": np.array([[0.0, 1.0], [0.5, 3.0], [2.0, 0.0]]),
    "grid": np.stack([GRID, GRID**2 / 2, 2 * np.sin(np.pi * GRID / 4)]).astype(np.float32),
}
BATCHES["grid"][:, -1] = 2.0


@pytest.mark.parametrize("name", BATCHES)
def test_vmap_gives_what_single_solves_give(name):
    fixed = {} if name == "grid" else {"save_at": SAVE_AT}

    def run(value):
        options = {**fixed, name: value}
        if name == "t_span":
            options["save_at"] = value[1]
        return outputs(solve(**options))

    batch = BATCHES[name]
    single = [run(value) for value in batch]
    assert_same(jit(jax.vmap(run))(batch), jax.tree.map(lambda *xs: np.stack(xs), *single))


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


# --- Compiled once --------------------------------------------------------------------------------

_COMPILED = []


def _record(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_record)


@contextmanager
def compilations():
    """A list that has as many entries as programs were compiled within the block."""
    before, found = len(_COMPILED), []
    yield found
    found.extend(_COMPILED[before:])


def unlisted(t, y, rates):
    """A field that no kernel can list: it has to be compiled."""
    return predator_prey(t, y, rates) * jnp.exp(jax.lax.lgamma(2.0 + 0.0 * y))


def test_compilations_are_counted():
    with compilations() as found:
        probode.solve(unlisted, SPAN, Y0, (0.9 * RATES,), solver=EK0(1))
    assert found


CALLS = {
    "y0": lambda i: solve(Y0 + i).mean,
    "args": lambda i: solve(rates=RATES + 0.25 * i).mean,
    "t_span": lambda i: solve(t_span=(0.5 * i, 2.0 - i)).mean,
    "tolerance": lambda i: solve(tolerance=2.0 ** (-10 - i)).mean,
    "max_steps": lambda i: solve(max_steps=1000 + i).mean,
    "grid": lambda i: solve(grid=2.0 * (GRID / 2.0) ** (1 + i)).mean,
    "save_at": lambda i: solve(save_at=2.0 * (SAVE_AT / 2.0) ** (1 + i)).mean,
    "step": lambda i: solve(step=0.125 / (1 + i)).mean,
    "dense-output": lambda i: solve(Y0 + i)(np.linspace(0.0, 1.0 + i, 7)).std,
    "derivative": lambda i: solve(Y0 + i).derivative(0.25 * i).mean,
    "sample": lambda i: solve(grid=GRID, y0=Y0 + i).sample(3, seed=i),
    "sample-dense": lambda i: solve(grid=GRID, y0=Y0 + i).sample(3, seed=i, t=[0.3 * i + 0.1]),
    "sample-save_at": lambda i: solve(Y0 + i, save_at=SAVE_AT).sample(3, seed=i),
    "unlisted-y0": lambda i: solve(Y0 + i, field=unlisted).mean,
    "unlisted-args": lambda i: solve(rates=RATES + 0.25 * i, field=unlisted).mean,
    "unlisted-tolerance": lambda i: solve(tolerance=2.0 ** (-10 - i), field=unlisted).mean,
}


@pytest.mark.parametrize("name", CALLS)
def test_new_values_do_not_compile_again(name):
    first = CALLS[name](0)
    with compilations() as found:
        others = [CALLS[name](1), CALLS[name](2)]
    assert not found
    assert all(np.all(np.isfinite(value)) for value in (first, *others))


@jax.custom_jvp
def _own_rule(y):
    return -y


_own_rule.defjvp(lambda primals, tangents: (-primals[0], -tangents[0]))

FRESH = {
    "arithmetic": lambda: lambda t, y: -y,
    "relu": lambda: lambda t, y: -jax.nn.relu(y),
    "custom_jvp": lambda: lambda t, y: _own_rule(y),
    "jit": lambda: jax.jit(lambda t, y: -y),
    "cond": lambda: lambda t, y: jax.lax.cond(t < 9.0, lambda y: -y, lambda y: y, y),
    "scan": lambda: lambda t, y: jax.lax.scan(lambda c, _: (-c, None), y, None, length=3)[0],
}


@pytest.mark.parametrize("name", FRESH)
def test_a_function_created_anew_does_not_compile_again(name):
    def final():
        return probode.solve(FRESH[name](), (0.0, 1.0), 1.0, solver=QUICK).mean[-1]

    first = final()
    with compilations() as found:
        assert final() == first
    assert not found
    assert first == pytest.approx(np.exp(-1.0), rel=1e-5)


@pytest.mark.parametrize("name", FRESH)
def test_a_vector_field_is_not_kept_alive(name):
    vector_field = FRESH[name]()
    reference = weakref.ref(vector_field)
    posterior = probode.solve(vector_field, (0.0, 1.0), 1.0, solver=QUICK)
    del vector_field
    gc.collect()
    assert reference() is None
    assert posterior.success


CLOSURES = {
    "numpy-array": lambda rate: np.array([rate, 1.0]),
    "jax-array": lambda rate: jnp.array([rate, 1.0]),
    "jax-number": lambda rate: jnp.asarray(rate, jnp.float32),
    "float": float,
    "numpy-number": np.float64,
}


def _with_closure(kind, rate, wrap=lambda f: f):
    captured = CLOSURES[kind](rate)
    vector_field = wrap(lambda t, y: -captured * y)
    return probode.solve(vector_field, (0.0, 1.0), [1.0, 1.0], solver=QUICK).mean[-1, 0]


@pytest.mark.parametrize("kind", CLOSURES)
def test_a_new_value_in_a_closure_gives_the_new_result(kind):
    for rate in (1.0, 2.0, 1.0):
        assert _with_closure(kind, rate) == pytest.approx(np.exp(-rate), rel=1e-4)


@pytest.mark.parametrize("kind", ["jax-array", "float"])
def test_a_new_value_in_the_closure_of_a_compiled_function_gives_the_new_result(kind):
    for rate in (1.0, 2.0, 1.0):
        assert _with_closure(kind, rate, jax.jit) == pytest.approx(np.exp(-rate), rel=1e-4)


@pytest.mark.parametrize("kind", ["numpy-array", "jax-array", "jax-number"])
def test_a_new_array_in_a_closure_does_not_compile_again(kind):
    _with_closure(kind, 1.0)
    with compilations() as found:
        _with_closure(kind, 2.0)
    assert not found


_rate = 1.0


def _global_decay(t, y):
    return -_rate * y


@pytest.mark.parametrize("kind", [float, jnp.float32])
def test_a_global_that_changes_gives_the_new_result(kind, monkeypatch):
    for rate in (1.0, 2.0):
        monkeypatch.setitem(globals(), "_rate", kind(rate))
        posterior = probode.solve(_global_decay, (0.0, 1.0), 1.0, solver=QUICK)
        assert posterior.mean[-1] == pytest.approx(np.exp(-rate), rel=1e-4)


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


# --- Derivatives ----------------------------------------------------------------------------------


X0 = np.concatenate([Y0, RATES])
DIRECTION = np.array([0.5, -1.0, 0.25, 0.75])


def values(x, **options):
    """Means and standard deviations as a function of ``y0`` and ``args``."""
    posterior = solve(x[:2], x[2:], **options)
    # Standard deviations at the start are zero, whatever the parameters are.
    return posterior.mean[1:], posterior.std[1:]


def differences(function, x, h=2.0**-20):
    """Central differences along the coordinates, stacked on the last axis."""
    columns = [
        jax.tree.map(lambda a, b: (a - b) / (2 * h), function(x + h * e), function(x - h * e))
        for e in np.eye(len(x))
    ]
    return jax.tree.map(lambda *xs: np.stack(xs, axis=-1), *columns)


def assert_close(actual, expected, tolerance=1e-6):
    """Each array up to ``tolerance`` times its largest entry."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.max(np.abs(b)))


def weights(shape):
    return np.cos(np.arange(np.prod(shape))).reshape(shape)


def weighted(x, **options):
    """One number in which every mean counts, and one for the standard deviations."""
    return tuple(jnp.sum(weights(value.shape) * value) for value in values(x, **options))


def weighted_differences(differences):
    return [np.tensordot(weights(d.shape[:-1]), d, axes=d.ndim - 1) for d in differences]


@functools.cache
def _grid_differences(solver):
    """Of solves outside a trace."""
    return differences(lambda x: values(x, solver=solver, grid=GRID), X0)


@SOLVERS
def test_forward_derivatives_on_a_grid_are_those_of_differences(solver):
    with jax.enable_x64(True):
        run = functools.partial(values, solver=solver, grid=GRID)
        tangent = jit(lambda x: jax.jvp(run, (x,), (DIRECTION,))[1])(X0)
    assert_close(tangent, jax.tree.map(lambda d: d @ DIRECTION, _grid_differences(solver)))


@SOLVERS
def test_reverse_derivatives_on_a_grid_are_those_of_differences(solver):
    with jax.enable_x64(True):
        gradients = jit(jax.jacrev(lambda x: weighted(x, solver=solver, grid=GRID)))(X0)
    assert_close(gradients, weighted_differences(_grid_differences(solver)))


ADAPTIVE = {"tolerance": 2.0**-5, "save_at": np.array([0.5, 1.25, 2.0])}
MAX_STEPS = 12


@functools.cache
def _frozen_differences():
    """Central differences of a solve that takes the steps of the adaptive one, whatever ``x``.

    Derivatives of an adaptive solve are those of its result at the steps taken: the choice of the
    steps is not differentiated.
    """
    steps = solve(tolerance=ADAPTIVE["tolerance"])
    assert steps.stats.steps <= MAX_STEPS
    return differences(lambda x: values(x, grid=steps.t, **ADAPTIVE), X0)


def test_forward_derivatives_of_an_adaptive_solve_at_the_steps_taken():
    with jax.enable_x64(True):
        run = functools.partial(values, **ADAPTIVE)
        tangent = jit(lambda x: jax.jvp(run, (x,), (DIRECTION,))[1])(X0)
    assert_close(tangent, jax.tree.map(lambda d: d @ DIRECTION, _frozen_differences()))


def test_reverse_derivatives_of_an_adaptive_solve_with_max_steps():
    with jax.enable_x64(True):
        gradients = jit(jax.jacrev(lambda x: weighted(x, max_steps=MAX_STEPS, **ADAPTIVE)))(X0)
    assert_close(gradients, weighted_differences(_frozen_differences()))


def test_derivatives_of_an_adaptive_mean_are_right_up_to_the_tolerance():
    """Against differences of the adaptive solve itself, whose steps follow the parameters."""
    expected = differences(lambda x: values(x, save_at=SAVE_AT), X0)[0] @ DIRECTION
    with jax.enable_x64(True):
        run = functools.partial(values, save_at=SAVE_AT)
        actual = jit(lambda x: jax.jvp(run, (x,), (DIRECTION,))[1][0])(X0)
    assert_close(actual, expected, tolerance=20 * LOOSE)


def test_parameters_in_a_closure_have_derivatives():
    def final(rate):
        grid = np.linspace(0.0, 1.0, 33)
        return probode.solve(
            lambda t, y: -rate * y, (0.0, 1.0), 1.0, solver=EK1(2), grid=grid
        ).mean[-1]

    with jax.enable_x64(True):
        assert jit(jax.grad(final))(0.5) == pytest.approx(-np.exp(-0.5), rel=1e-4)


def test_reverse_mode_works_in_scoped_double_precision():
    """The backward pass runs after ``solve``: JAX must be in double precision around ``grad``."""
    with jax.enable_x64(True):
        gradient = jit(jax.grad(lambda x: weighted(x, grid=GRID)[0]))(jnp.asarray(X0))
    expected = weighted_differences(_grid_differences(QUICK))[0]
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)


def test_forward_mode_works_with_the_switch_off():
    x, direction = jnp.asarray(X0), jnp.asarray(DIRECTION)
    run = functools.partial(values, grid=GRID)
    tangent = jit(lambda x: jax.jvp(run, (x,), (direction,))[1])(x)
    expected = jax.tree.map(lambda d: d @ DIRECTION, _grid_differences(QUICK))
    assert_close(tangent, expected, tolerance=1e-5)


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize(
    "second",
    [
        pytest.param(lambda f: jax.jacfwd(jax.jacrev(f)), id="forward-over-reverse"),
        pytest.param(lambda f: jax.jacfwd(jax.jacfwd(f)), id="forward-over-forward"),
    ],
)
def test_second_derivatives_are_refused_rather_than_wrong(name, second):
    def final(x):
        return getattr(solve(x[:2], x[2:], grid=GRID), name)[-1].sum()

    with (
        jax.enable_x64(True),
        pytest.raises(NotImplementedError, match="second derivatives"),
    ):
        jit(second(final))(X0)


def test_a_second_process_finds_compiled_programs(tmp_path):
    """The cache holds the solver after one process, and the next adds no other version of it.

    (On a busy machine it may add a program that was compiled too quickly before to be kept.)
    """
    code = (
        "import sys, probode; probode.use_compilation_cache(sys.argv[1]);"
        "probode.solve(lambda t, y: -y, (0.0, 1.0), 1.0, solver=probode.EK1(2), save_at=[0.5])"
    )
    kept = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
        kept.append({path.name for path in tmp_path.glob("*-cache")})
    assert kept[0]
    known = {name.split("-")[0] for name in kept[0]}
    assert {name for name in kept[1] if name.split("-")[0] in known} == kept[0]


@pytest.mark.parametrize("derivative", [jax.grad, jax.jacfwd])
def test_where_the_end_was_not_reached_the_derivative_is_not_known_either(derivative):
    def end(rate):
        field = lambda t, y: -rate * y  # noqa: E731
        options = {"solver": EK1(2), "save_at": 5.0, "max_steps": 3}
        return probode.solve(field, (0.0, 5.0), jnp.ones(1), **options).mean[0, 0]

    with jax.enable_x64(True):
        assert np.isnan(jit(derivative(end))(1.0))
