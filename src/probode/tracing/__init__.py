"""Functions written with NumPy or plain Python, made traceable by JAX.

A right-hand side ``fun(t, y, *args)`` as it is written for SciPy is turned into one that JAX can
trace: it compiles, and its derivatives are exact. Three ways are tried:

=============  ==================================================================================
``"jax"``      the function traces as it is
``"numpy"``    a copy of it runs with stand-ins for NumPy, ``math`` and the arrays
``"scalars"``  it runs with NumPy's arrays of objects that hold traced scalars
=============  ==================================================================================

The outcome of each is compared with the original at several points. What asks for values while it
is traced (``if y[0] > 0``, ``float(y[0])``) is never guessed: such a function stays Python.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from probode.precision import double_precision
from probode.program import Program
from probode.tracing import operators, scalars
from probode.tracing.alone import one_at_a_time, others_run
from probode.tracing.arrays import TracedArray, unwrap
from probode.tracing.effects import State
from probode.tracing.evaluate import Evaluator, count_equations
from probode.tracing.rewrite import Rewriter
from probode.tracing.verify import Reference
from probode.tracing.watch import OPERATION_LIMIT, watch

__all__ = ["Traceable", "make_traceable"]

operators.attach()

_SLOW = 2e-3
"""A call of so many seconds may be a long loop: it is traced with stand-ins, which count."""


@dataclass(frozen=True)
class Traceable:
    """A right-hand side that JAX can trace.

    Attributes
    ----------
    function
        ``(t, y, *args)`` to an array of float64: the original, seen by JAX.
    path
        How it was found: ``"jax"``, ``"numpy"`` or ``"scalars"``.
    """

    function: Callable[..., jax.Array]
    path: str


def make_traceable(
    fun: Callable[..., Any],
    t_span: Any,
    y0: Any,
    args: tuple[Any, ...] = (),
    *,
    extra_points: int = 4,
) -> Traceable | None:
    """Make ``fun(t, y, *args)`` traceable by JAX, or say that it is not.

    Parameters
    ----------
    fun
        The user's function, with NumPy, plain Python or JAX inside.
    t_span, y0, args
        Where it will be used: it is evaluated there, and around.
    extra_points
        Number of points away from ``y0`` at which the outcome is compared with ``fun``.

    Returns
    -------
    ``None`` if nothing agrees with ``fun``: if its control flow depends on values, if it gives
    different values at the same point, or if it leaves something behind (a list that it appends
    to, a counter, printed text). An exception of ``fun`` at ``(t0, y0)`` comes through.
    """
    t0, t1 = (float(t) for t in t_span)
    start = np.asarray(y0)
    if start.dtype.kind not in "biuf":
        return None
    start = np.array(start, float)
    args = tuple(args)
    with one_at_a_time():
        state = State(fun, args)
        try:
            with double_precision():
                return _climb(fun, (t0, t1), start, args, state, extra_points)
        finally:
            # What another thread has changed meanwhile is not to be undone.
            if state.is_used or not others_run():
                state.restore()


def _climb(
    fun: Callable[..., Any],
    t_span: tuple[float, float],
    y0: np.ndarray,
    args: tuple[Any, ...],
    state: State,
    extra_points: int,
) -> Traceable | None:
    if state.speaks_jax and _is_jax_program(fun, t_span[0], y0, args):
        state.is_used = _changes(state, lambda _: _is_jax_program(fun, t_span[0], y0, args))
        return Traceable(_prepare(_as_it_is(fun), args), "jax")
    reference = Reference(fun, args, t_span, y0, extra_points)
    state.is_used = not reference.is_reproducible() or _changes(state, reference.visit)
    if state.is_used or reference.prints:
        return None
    for path, run in _rungs(fun, y0, reference.seconds):
        function = _prepare(run, args)
        if _works(function, reference, t_span[0], y0, args):
            return Traceable(function, path)
    return None


def _changes(state: State, call: Callable[[int], Any]) -> bool:
    """Whether the calls that were made have changed something outside the function.

    It may have been another thread: then not each of a few further calls changes something too.
    """
    if not state.changed():
        return False
    return not others_run() or all(state.changed_by(partial(call, k)) for k in range(_FURTHER))


_FURTHER = 3


def _rungs(
    fun: Callable[..., Any], y0: np.ndarray, seconds: float
) -> Iterator[tuple[str, Callable[..., jax.Array]]]:
    if seconds < _SLOW:
        yield "jax", _as_it_is(fun)
    yield "numpy", _with_arrays(fun)
    if y0.size <= scalars.SIZE_LIMIT and not watch.too_long:
        yield "scalars", _with_scalars(fun)


# The three ways to run a function ---------------------------------------------------------------


def _as_it_is(fun: Callable[..., Any]) -> Callable[..., jax.Array]:
    def function(t: Any, y: Any, *args: Any) -> jax.Array:
        return _output(fun(t, y, *args))

    return function


def _with_arrays(fun: Callable[..., Any]) -> Callable[..., jax.Array]:
    def function(t: Any, y: Any, *args: Any) -> jax.Array:
        rewrite = Rewriter(fun)

        def enter(leaf: Any) -> Any:
            return TracedArray(leaf) if isinstance(leaf, jax.Array) else rewrite(leaf)

        given = (jnp.asarray(t), jnp.asarray(y), *args)
        inputs = _in_order(given, jax.tree.map(enter, given))
        watch.start()
        result = rewrite(fun)(*inputs)
        watch.finish()
        return _output(unwrap(result, as_array=True))

    return function


def _with_scalars(fun: Callable[..., Any]) -> Callable[..., jax.Array]:
    def function(t: Any, y: Any, *args: Any) -> jax.Array:
        rewrite = Rewriter(fun, scalars.stand_in, lambda array: array)
        watch.start()
        given = (jnp.asarray(t), jnp.asarray(y), *args)
        inputs = _in_order(given, jax.tree.map(scalars.scatter, given))
        result = rewrite(fun)(*inputs)
        watch.finish()
        return _output(scalars.gather(result))

    return function


def _output(value: Any) -> jax.Array:
    """What a function returned, as an array of float64 of whatever shape."""
    if value is None:
        raise TypeError("The function returned None: does it end with a return statement?")
    array = jnp.asarray(value)
    if jnp.iscomplexobj(array):
        raise TypeError(f"The function must return real numbers, got {array.dtype}.")
    return array.astype(jnp.float64)


def _prepare(
    function: Callable[..., jax.Array], given: tuple[Any, ...]
) -> Callable[..., jax.Array]:
    """``function`` with arguments ordered as given, and with one kind of error for integers.

    JAX sorts dictionaries on their way. And where a traced integer may be the reason of a failure,
    the error says that it must be known: then all may be well.
    """

    def prepared(t: Any, y: Any, *args: Any) -> jax.Array:
        try:
            return function(t, y, *_in_order(given, args))
        except jax.errors.ConcretizationTypeError:
            raise
        except Exception as error:
            for leaf in jax.tree.leaves(args):
                if isinstance(leaf, jax.core.Tracer) and leaf.dtype.kind in "biu":
                    raise jax.errors.ConcretizationTypeError(
                        leaf, "An integer among the parameters must be known to trace fun."
                    ) from error
            raise

    return prepared


def _in_order(given: Any, value: Any) -> Any:
    """``value`` with the keys of dictionaries in the order in which they were given."""
    if type(given) is dict and type(value) is dict and given.keys() == value.keys():
        return {key: _in_order(item, value[key]) for key, item in given.items()}
    if type(given) in (list, tuple) and type(value) is type(given) and len(given) == len(value):
        return type(given)(_in_order(*pair) for pair in zip(given, value, strict=True))
    return value


# Whether it worked --------------------------------------------------------------------------------


def _works(
    function: Callable[..., jax.Array],
    reference: Reference,
    t0: float,
    y0: np.ndarray,
    args: tuple[Any, ...],
) -> bool:
    """Whether ``function`` traces, agrees with the original, and has a derivative."""
    try:
        program, data = _program(function, t0, y0, args)
        if count_equations(program.jaxpr) > OPERATION_LIMIT:
            return False
        if not reference.agrees(Evaluator(program), data):
            return False
        _differentiate(program, np.float64(t0), y0, data)
    except Exception:  # user code with arrays that it was not written for fails in any way
        return False
    return True


def _program(
    function: Callable[..., jax.Array], t0: float, y0: np.ndarray, args: tuple[Any, ...]
) -> tuple[core.ClosedJaxpr, list[Any]]:
    """Trace with all numbers among the arguments as data, or all but the integers."""
    leaves, tree = jax.tree.flatten(args)

    def attempt(is_data: list[bool]) -> tuple[core.ClosedJaxpr, list[Any]]:
        data = [leaf for leaf, data in zip(leaves, is_data, strict=True) if data]

        def flat(t: Any, y: Any, *values: Any) -> jax.Array:
            rest = iter(values)
            full = [
                next(rest) if data else leaf for leaf, data in zip(leaves, is_data, strict=True)
            ]
            return function(t, y, *jax.tree.unflatten(tree, full))

        return jax.make_jaxpr(flat)(np.float64(t0), y0, *data), data

    numeric = [
        isinstance(leaf, bool | int | float | np.ndarray | np.generic | jax.Array)
        for leaf in leaves
    ]
    try:
        return attempt(numeric)
    except jax.errors.ConcretizationTypeError:
        whole = [isinstance(leaf, int | np.integer | np.bool_) for leaf in leaves]
        if not any(whole):
            raise
        return attempt([data and not fixed for data, fixed in zip(numeric, whole, strict=True)])


def _differentiate(program: core.ClosedJaxpr, t: Any, y: np.ndarray, data: list[Any]) -> None:
    """Raise if JAX has no derivative of one of the operations."""

    def product(t: Any, y: Any) -> Any:
        def value(t: Any, y: Any) -> Any:
            return jax.core.eval_jaxpr(program.jaxpr, program.consts, t, y, *data)[0]

        return jax.jvp(value, (t, y), (t, y))

    jax.eval_shape(product, t, y)


def _is_jax_program(
    fun: Callable[..., Any], t0: float, y0: np.ndarray, args: tuple[Any, ...]
) -> bool:
    """Whether ``fun``, written for JAX, traces, and to the same program twice.

    It is not evaluated: outside of a compiled function every operation of JAX compiles by itself.
    """
    try:
        first, again = (_program(_prepare(_as_it_is(fun), args), t0, y0, args)[0] for _ in range(2))
    except Exception:  # it may still work with NumPy arrays
        return False
    return Program(first.jaxpr) == Program(again.jaxpr) and all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(first.consts, again.consts, strict=True)
    )
