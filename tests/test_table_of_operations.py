"""The one table of JAX's operations: what it says of them is so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from probode.base.jax_inside import IN_NUMPY, operation, operations, those
from probode.base.jax_inside.known import TABLE
from probode.base.precision import double_precision
from probode.engines.native.code import OPERATIONS
from probode.programs.switches import _OF_AXES, _with_times

NUMBERS = np.array([0.0, -0.0, 1.5, -2.5, 3.0, 1e300, np.inf, -np.inf, np.nan])
PAIRS = [x.reshape(-1) for x in np.meshgrid(NUMBERS, NUMBERS)]
SPECIAL = ("convert_element_type", "select_n")
EXACT = sorted(those("exact") & those("entrywise") - set(SPECIAL))


def bits(array):
    """All digits, and the sign of zeros; numbers that are none are all the same."""
    array = np.asarray(array)
    if array.dtype.kind != "f":
        return array
    return np.where(np.isnan(array), np.nan, array).view(np.int64)


@pytest.mark.parametrize("name", EXACT)
def test_exact_ones_are_those_of_jax_in_every_digit(name):
    with double_precision():
        of_truth = name in those("logical")
        operands = [x > 1.0 if of_truth else x for x in PAIRS]
        primitive = operations()[name]
        try:
            expected = primitive.bind(*map(jnp.asarray, operands))
        except TypeError:  # of one operand
            operands = operands[:1]
            expected = primitive.bind(jnp.asarray(operands[0]))
        with np.errstate(all="ignore"):
            found = IN_NUMPY[name]({}, *operands)
    np.testing.assert_array_equal(bits(found), bits(expected))


def test_tapes_have_entrywise_operations_only():
    merged = {"multiply_add", "multiply_subtract", "subtract_product"}
    of_others = {"root", "select", "round_even"}  # of pow, select_n, round
    assert set(OPERATIONS) - merged - of_others <= those("entrywise")


@pytest.mark.parametrize("name", sorted(TABLE.keys() & operations().keys()))
def test_every_word_of_a_row_is_known(name):
    """Kinds and traits are words of the table's heading: a misspelt one would have no effect."""
    kinds = {"entrywise", "moving", "reduction", "cumulative", "call", "loop", "library", "other"}
    traits = {"linear", "bilinear", "compares", "levels", "bends", "logical", "singular", "exact"}
    words = TABLE[name].words - {"-"}
    assert len(words & kinds) == 1
    assert words <= kinds | traits | {"each", "flat", "picks", "rules", "optional"}


X = np.arange(24.0).reshape(4, 1, 6) % 7.0 - 2.0

ALONG_AXES = {
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (3, 1, 2, 6), (1, 3)),
    "concatenate": lambda x: lax.concatenate([x, -x], 1),
    "copy": lambda x: jnp.copy(x),
    "reduce_and": lambda x: jnp.all(x > 0.0, 1),
    "reduce_or": lambda x: jnp.any(x > 0.0, 0),
    "reduce_sum": lambda x: jnp.sum(x, 1),
    "reshape": lambda x: lax.reshape(x, (3, 2)),
    "slice": lambda x: x[:, 1:5:2],
    "squeeze": lambda x: lax.squeeze(x, (0,)),
}


@pytest.mark.parametrize("name", ALONG_AXES)
def test_operations_at_all_times_are_those_at_each(name):
    """With one axis more in front, of states of shape (1, 6)."""
    with double_precision():
        jaxpr = jax.make_jaxpr(ALONG_AXES[name])(X[0]).jaxpr
        equation = next(x for x in jaxpr.eqns if operation(x) == name)
        assert name in _OF_AXES
        rule = IN_NUMPY[name]
        given = [X > 0.0 if name in those("logical") else X] * len(equation.invars)
        found = rule(_with_times(equation.params, len(X)), *given)
        each = [rule(equation.params, *(x[i] for x in given)) for i in range(len(X))]
    np.testing.assert_array_equal(found, np.stack(each))
