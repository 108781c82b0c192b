"""What becomes of right-hand sides as scientists write them.

Values are compared with the snippet itself, Jacobians with central differences of it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet
from snippets import SNIPPETS, STAYS, TRACED, Snippet, ids, original, traceable
from snippets.numpy_functions import pendulum_math

from probode.base.precision import double_precision
from probode.programs.field import bind
from probode.programs.tracing import make_traceable
from probode.programs.tracing.evaluate import Evaluator
from probode.programs.tracing.ways import in_order


@pytest.mark.parametrize("s", STAYS, ids=ids(STAYS))
def test_what_depends_on_values_is_not_traced(s: Snippet) -> None:
    assert traceable(s) is None


@pytest.mark.parametrize("s", TRACED, ids=ids(TRACED))
def test_snippet_is_traced_with_its_values_and_jacobian(s: Snippet) -> None:
    """Central differences with step 1e-6 are good to about 1e-9 relative to the scale of f."""
    found = traceable(s)
    assert found is not None
    assert found.path == s.path
    y0 = np.array(s.y0, float)
    t, y = sum(s.t_span) / 2 + 0.1, 1.01 * y0 + 0.003
    known = tuple(s.args)  # parameters as they are: only t and y are traced here

    def both(t, y):
        def value(y):
            return found.function(t, y, *known)

        return value(y), jax.jacfwd(value)(y)

    with double_precision():
        value, jacobian = jax.jit(both)(t, y)
        expected = original(s, t, y)
        differences = np.empty(y.shape + y.shape)
        for i in np.ndindex(y.shape):
            h = np.zeros(y.shape)
            h[i] = 1e-6
            differences[(..., *i)] = (original(s, t, y + h) - original(s, t, y - h)) / 2e-6
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-13)
    scale = max(1.0, float(np.abs(differences).max()))
    np.testing.assert_allclose(jacobian, differences, atol=1e-7 * scale, rtol=1e-6)


WITH_ARGUMENTS = [s for s in TRACED if s.args]


@pytest.mark.parametrize("s", WITH_ARGUMENTS, ids=ids(WITH_ARGUMENTS))
def test_numbers_among_the_arguments_are_data(s: Snippet) -> None:
    """The program that the solvers bind gives the values for other numbers, put in later."""
    y0 = np.array(s.y0, float)
    found = traceable(s)
    with double_precision():
        field = bind(found.function, jnp.zeros(()), jnp.asarray(y0), s.args, None, diagonal=False)
        others = [x if x.dtype.kind in "biu" else 1.1 * x for x in field.args]
        value = jax.jit(lambda t, y, x: field.program(field.constants, t, y, *x))(
            0.5, y0.reshape(-1), others
        )

    def changed(leaf: Any) -> Any:
        is_real = isinstance(leaf, float) or getattr(leaf, "dtype", None) == np.float64
        return 1.1 * leaf if is_real else leaf

    expected = s.fun(0.5, y0.copy(), *in_order(s.args, jax.tree.map(changed, s.args)))
    np.testing.assert_allclose(value, np.ravel(expected), rtol=1e-11)


@pytest.mark.parametrize(
    "name",
    [
        "hires_zeros_and_items",
        "heat_with_boundaries",
        "brusselator_interleaved_views",
        "laplacian_two_dimensional",
        "n_body_loops",
        "interpolated_forcing",
        "sparse_matrix",
        "fancy_index_and_known_mask",
        "mask_assignment",
    ],
)
def test_item_assignment_leaves_taylor_mode_possible(name: str) -> None:
    """Assignments become slices and selections, for which Taylor mode has rules (not: scatters)."""
    (s,) = [s for s in SNIPPETS if s.name == name]
    found, y0 = traceable(s), np.array(s.y0, float) + 0.01
    with double_precision():
        direction, zero = np.ones_like(y0), np.zeros_like(y0)
        _, (first, _) = jax.jit(
            lambda y: jet(
                lambda t, y: found.function(t, y, *s.args),
                (0.3, y),
                ([0.0, 0.0], [direction, zero]),
            )
        )(y0)
    h = 1e-6
    difference = (original(s, 0.3, y0 + h) - original(s, 0.3, y0 - h)) / (2 * h)
    np.testing.assert_allclose(first, difference, rtol=1e-5, atol=1e-5)


def test_vmap_gives_what_single_calls_give() -> None:
    found = make_traceable(pendulum_math, (0, 1), [1.0, 0.0], (0.2, 9.81, 1.0))
    assert found is not None
    ys = np.array([[1.0, 0.0], [0.3, -0.2], [2.0, 1.0]])
    with double_precision():
        rows = jax.jit(jax.vmap(lambda y: found.function(0.0, y, 0.2, 9.81, 1.0)))(ys)
    np.testing.assert_allclose(rows, [pendulum_math(0.0, y, 0.2, 9.81, 1.0) for y in ys], 1e-14)


@pytest.mark.parametrize("s", TRACED, ids=ids(TRACED))
def test_programs_run_with_numpy_as_when_compiled(s: Snippet) -> None:
    """The interpreter that checks traces computes what the compiler makes of them."""
    found, y0 = traceable(s), np.array(s.y0, float) + 0.01
    with double_precision():
        program = jax.make_jaxpr(lambda t, y: found.function(t, y, *s.args))(0.7, y0)
        compiled = jax.jit(lambda t, y: jax.core.eval_jaxpr(program.jaxpr, program.consts, t, y))
        value = Evaluator(program)(np.float64(0.7), y0)
        np.testing.assert_allclose(value, compiled(0.7, y0)[0], rtol=1e-12, atol=1e-13)
