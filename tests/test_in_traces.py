"""With JAX's switch for 64 bits off, every transformation of a solve works, and failures raise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once as jit
from jax import lax

import probode
from probode import EK0, EK1, PIControl, Status
from probode.base import reversible
from probode.base.in_double import in_double

pytestmark = pytest.mark.usefixtures("jax_as_it_comes")

CONTROL = PIControl(1e-5, 1e-8)
ENDS = {"end": 1.0, "times": np.array([0.5, 1.0])}


def decay(t, y, rate):
    return -rate * y


def final(rate, save_at=1.0, **options):
    """``exp(-rate)``, in single precision."""
    options = {"solver": EK0(2), "control": CONTROL} | options
    options |= {"save_at": save_at, "smooth": False}
    posterior = probode.solve(decay, (0.0, 1.0), jnp.ones(1), (rate,), **options)
    return posterior.mean[-1, 0].astype(jnp.float32)


def likelihood(rate):
    data = probode.Observations([0.5, 1.0], [0.6, 0.4], noise=0.1)
    options = {"solver": EK1(2), "control": CONTROL}
    return probode.log_likelihood(decay, (0.0, 1.0), 1.0, (rate,), data, **options)


# --- Transformations ------------------------------------------------------------------------------

AROUND = {
    "scan": lambda f: lambda a: lax.scan(lambda c, _: (f(c), None), a, None, length=2)[0],
    "fori_loop": lambda f: lambda a: lax.fori_loop(0, 2, lambda i, c: f(c), a),
    "cond": lambda f: lambda a: lax.cond(a > 0.0, f, lambda a: a, a),
    "map": lambda f: lambda a: lax.map(f, jnp.stack([a, 2 * a])).sum(),
    "checkpoint": jax.checkpoint,
    "vmap": lambda f: lambda a: jax.vmap(f)(jnp.stack([a, 2 * a])).sum(),
}


# In reverse a scan stands for the others, which are run by `make slow`.
VARIANTS = [(name, jax.jacfwd) for name in AROUND] + [
    pytest.param(name, jax.grad, marks=() if name == "scan" else pytest.mark.slow)
    for name in AROUND
]


@pytest.mark.parametrize(("name", "derivative"), VARIANTS)
def test_derivatives_of_whatever_is_put_around_a_solve(name, derivative):
    expected = derivative(AROUND[name](lambda a: jnp.exp(-a)))(0.5)
    actual = jit(derivative(AROUND[name](final)))(0.5)
    np.testing.assert_allclose(actual, expected, rtol=1e-4)


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.grad], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", ["scan", "checkpoint"])
def test_derivatives_of_whatever_is_put_around_a_likelihood(name, derivative):
    def around(function):
        return AROUND[name](lambda a: 0.1 * function(a))

    h = 2.0**-6  # in single precision
    plain = around(lambda a: jnp.float32(likelihood(a)))
    expected = (plain(jnp.float32(0.5 + h)) - plain(jnp.float32(0.5 - h))) / (2 * h)
    actual = jit(derivative(around(likelihood)))(jnp.float32(0.5))
    np.testing.assert_allclose(actual, expected, rtol=1e-2)


@pytest.mark.parametrize("kept", ENDS)
def test_reverse_mode_needs_neither_the_switch_nor_a_bound_on_the_steps(kept):
    gradient = jit(jax.grad(functools.partial(final, save_at=ENDS[kept])))(0.5)
    np.testing.assert_allclose(gradient, -np.exp(-0.5), rtol=1e-4)


def test_members_that_take_different_numbers_of_steps_have_their_own_gradients():
    rates = np.array([0.5, 12.0, 2.0], np.float32)
    np.testing.assert_allclose(jit(jax.vmap(jax.grad(final)))(rates), -np.exp(-rates), rtol=1e-3)


def test_what_is_derived_from_a_posterior_can_be_differentiated_too():
    def spread(rate):
        grid = np.linspace(0.0, 1.0, 9)
        how = {"solver": EK0(2), "grid": grid, "differentiate": "all"}
        posterior = probode.solve(decay, (0.0, 1.0), 1.0, (rate,), **how)
        parts = posterior(0.3).mean, posterior.std, posterior.cov, posterior.log_evidence
        return sum(jnp.sum(part).astype(jnp.float32) for part in parts)

    looped = jit(jax.grad(lambda a: lax.scan(lambda c, _: (c, spread(c)), a, None, length=2)[1][0]))
    h = 1e-3
    expected = (float(spread(0.5 + h)) - float(spread(0.5 - h))) / (2 * h)
    np.testing.assert_allclose(looped(0.5), expected, rtol=1e-3)


def test_a_loss_that_leaves_out_what_was_not_reached_has_the_derivatives_of_the_rest():
    def loss(rate):
        how = {"solver": EK1(2), "save_at": 5.0, "max_steps": 3}
        posterior = probode.solve(decay, (0.0, 5.0), 1.0, (rate,), **how)
        return jnp.where(posterior.success, posterior.mean[0], 3.0 * rate)

    assert float(jit(jax.grad(loss))(1.0)) == 3.0


# --- Loops in reverse -----------------------------------------------------------------------------


def _many(_, x, count):
    def body(carry):
        x, i = carry
        return x + 0.1 * jnp.sin(x) * jnp.cos(i / 7.0), i + 1

    return lax.while_loop(lambda carry: carry[1] < count, body, (x, 0))[0]


@pytest.mark.parametrize("count", [0, 1, 7, 500])
def test_a_loop_in_reverse_with_room_for_few_of_its_states(count, monkeypatch):
    monkeypatch.setattr(reversible, "_FEWEST", 16)
    monkeypatch.setattr(reversible, "_MEMORY", 0)

    def one(x):
        return in_double(_many, None, x, count).astype(jnp.float32)

    forward = jit(jax.jacfwd(one))(0.7)
    np.testing.assert_allclose(jit(jax.grad(one))(0.7), forward, rtol=1e-6)


# --- Functions that call Python, and random keys --------------------------------------------------


def called_back(t, y, rate):
    shape = jax.ShapeDtypeStruct(y.shape, y.dtype)
    negative = lambda y, rate: -np.asarray(rate) * np.asarray(y)  # noqa: E731
    return jax.pure_callback(negative, shape, y, rate, vmap_method="sequential")


def solve_called_back(rate, **options):
    options = {"solver": EK0(2), "save_at": 1.0, "control": PIControl(1e-9, 1e-9)} | options
    return probode.solve(called_back, (0.0, 1.0), jnp.ones(2), (rate,), **options).mean[-1, 0]


@pytest.mark.parametrize("run", [lambda f: f, jit], ids=["plain", "jit"])
def test_python_is_called_back_in_double_precision(run):
    """At a tolerance that 32 bits would not reach, from Taylor's start, without derivatives."""
    np.testing.assert_allclose(run(solve_called_back)(1.0), np.exp(-1.0), rtol=1e-8)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(lambda: solve_called_back(1.0, solver=EK1(2)), "jac=, use EK0", id="EK1"),
        pytest.param(lambda: jax.grad(solve_called_back)(1.0), "jax.custom_jvp", id="grad"),
    ],
)
def test_derivatives_of_what_is_called_back_are_refused_in_words(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def noisy(t, y, key):
    return jax.random.normal(key, y.shape) - y


@pytest.mark.parametrize("run", [lambda f: f, jit], ids=["plain", "jit"])
def test_typed_random_keys_are_parameters(run):
    def end(key):
        options = {"solver": EK0(2), "control": CONTROL, "save_at": 1.0}
        return probode.solve(noisy, (0.0, 1.0), jnp.zeros(2), (key,), **options).mean[-1]

    key = jax.random.key(3)
    with jax.enable_x64(True):
        level = jax.random.normal(key, (2,))
    np.testing.assert_allclose(run(end)(key), level * (1.0 - np.exp(-1.0)), rtol=1e-4)


# --- Failures -------------------------------------------------------------------------------------


def short(rate, **options):
    return final(rate, max_steps=8, **options)


CALLS = {
    "plain": lambda f: f(3.0),
    "jit": lambda f: jit(f)(3.0),
    "forward": lambda f: jit(jax.jacfwd(f))(3.0),
    "reverse": lambda f: jit(jax.grad(f))(3.0),
    "scan": lambda f: jit(AROUND["scan"](f))(3.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_throw_raises_where_a_solve_fails(name):
    with pytest.raises(RuntimeError, match="MAX_STEPS"):
        jax.block_until_ready(CALLS[name](functools.partial(short, throw=True)))


def test_throw_says_which_member_of_a_batch_has_failed():
    run = jit(jax.vmap(functools.partial(short, throw=True)))
    assert np.all(np.isfinite(run(np.zeros(3))))
    # JAX passes errors on as one class at the first call of a program, as the other later.
    with pytest.raises(
        (RuntimeError, ValueError), match=r"Member 2 of a batch \(1 of 3 failed\).*MAX_STEPS"
    ):
        jax.block_until_ready(run(np.array([0.0, 0.0, 9.0])))


def test_without_throw_a_trace_can_look_at_the_status():
    def loss(rate):
        options = {"solver": EK0(2), "control": CONTROL, "save_at": 1.0, "max_steps": 8}
        posterior = probode.solve(decay, (0.0, 1.0), 1.0, (rate,), **options)
        good = posterior.success & (posterior.status == Status.SUCCESS)
        return jnp.where(good, posterior.mean[-1], -1.0), posterior.status_code

    value, codes = jit(jax.vmap(loss))(np.array([0.0, 9.0]))
    np.testing.assert_allclose(value, [1.0, -1.0])
    np.testing.assert_array_equal(codes, [Status.SUCCESS, Status.MAX_STEPS])


def test_max_steps_holds_on_a_grid_too():
    def code(rate):
        grid = np.linspace(0.0, 1.0, 9)
        posterior = probode.solve(
            decay, (0.0, 1.0), 1.0, (rate,), solver=EK0(2), grid=grid, max_steps=5
        )
        return posterior.status_code

    assert jit(code)(1.0) == code(1.0) == Status.MAX_STEPS
