"""Functions written with NumPy or plain Python, made traceable by JAX.

A right-hand side ``fun(t, y, *args)`` as it is written for SciPy is turned into one that JAX can
trace: it compiles, and its derivatives are exact. Three ways are tried:

=============  ==================================================================================
``"jax"``      the function traces as it is
``"numpy"``    a copy of it runs with stand-ins for NumPy, ``math`` and the arrays
``"scalars"``  it runs with NumPy's arrays of objects that hold traced scalars
=============  ==================================================================================

The outcome of each is compared with the original at several points. What asks for values while it
is traced (``if y[0] > 0``, ``float(y[0])``) is never guessed: such a function stays Python, and so
does one that does something with every call.

Numbers that the function reads (from its closure, from globals, attributes, dictionaries) are
constants of the trace, or inputs where ``numbers`` says so.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from probode.identity import Place
from probode.precision import double_precision
from probode.program import Program
from probode.tracing import operators, scalars
from probode.tracing.arrays import TracedArray, unwrap
from probode.tracing.effects import State
from probode.tracing.evaluate import Evaluator, count_equations
from probode.tracing.rewrite import Rewriter
from probode.tracing.verify import Reference
from probode.tracing.watch import OPERATION_LIMIT, watch

__all__ = ["Numbers", "Traceable", "as_jax", "make_traceable"]

operators.attach()

_SLOW = 2e-3
"""A call of so many seconds may be a long loop: it is traced with stand-ins, which count."""
_CHEAP = 2e-4
"""A call of at most so many seconds costs little next to a solve."""


@dataclass(frozen=True)
class Traceable:
    """A right-hand side that JAX can trace.

    Attributes
    ----------
    function
        ``(t, y, *args)`` to an array of float64: the original, seen by JAX.
    path
        How it was found: ``"jax"``, ``"numpy"`` or ``"scalars"``.
    is_of_jax
        Whether it was written for JAX, and behaves as JAX has it: what it does beside computing is
        done once, when it is traced.
    is_cheap
        Whether a call of the original takes next to no time.
    """

    function: Callable[..., jax.Array]
    path: str
    is_of_jax: bool = False
    is_cheap: bool = False


class Numbers:
    """Numbers that become inputs of a trace: those in given places.

    Attributes
    ----------
    values, replaced
        The numbers by their places; the places where one was replaced while tracing.
    """

    __slots__ = ("replaced", "values")  # no attributes: what is bound to places has no key

    def __init__(self, values: Mapping[Place, Any]) -> None:
        self.values = dict(values)
        self.replaced: set[Place] = set()

    def take(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[Place, Any]]:
        """Split arguments into those of the function, and the numbers, which come last."""
        if not self.values:
            return args, {}
        *rest, values = args
        return tuple(rest), dict(zip(self.values, values, strict=True))

    def after(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with the numbers behind."""
        return (*args, tuple(self.values.values())) if self.values else tuple(args)


def as_jax(fun: Callable[..., Any], numbers: Numbers) -> Callable[..., Any]:
    """``fun`` as JAX sees it, with ``numbers`` as the last argument (if there are any).

    A refusal of JAX that ``fun`` swallows comes through.
    """

    def function(t: Any, y: Any, *args: Any) -> Any:
        rest, values = numbers.take(args)
        run = fun
        if values:
            rewrite = Rewriter(fun, lambda value: None, lambda array: array, values)
            run = rewrite(fun)
            numbers.replaced |= rewrite.replaced
        watch.start()
        result = run(t, y, *rest)
        watch.finish()
        return result

    return function


def make_traceable(
    fun: Callable[..., Any],
    t_span: Any,
    y0: Any,
    args: tuple[Any, ...] = (),
    *,
    numbers: Numbers | None = None,
    extra_points: int = 4,
) -> Traceable | None:
    """Make ``fun(t, y, *args)`` traceable by JAX, or say that it is not.

    Parameters
    ----------
    fun
        The user's function, with NumPy, plain Python or JAX inside.
    t_span, y0, args
        Where it will be used: it is evaluated there, and around.
    numbers
        Numbers that ``fun`` reads and that are to be inputs: the last argument of the outcome.
    extra_points
        Number of points away from ``y0`` at which the outcome is compared with ``fun``.

    Returns
    -------
    ``None`` if nothing agrees with ``fun``: if its control flow depends on values, if it gives
    different values at the same point, or if it leaves something behind (a list that it appends
    to, a counter, printed text) or goes on with something (an iterator, a file, the clock). An
    exception of ``fun`` at ``(t0, y0)`` comes through.
    """
    t0, t1 = (float(t) for t in t_span)
    start = np.asarray(y0)
    if start.dtype.kind not in "biuf":
        return None
    start = np.array(start, float)
    args = tuple(args)
    state = State(fun, args)
    if state.acts:
        return None
    try:
        with double_precision():
            return _climb(fun, (t0, t1), start, args, state, numbers or Numbers({}), extra_points)
    finally:
        state.restore()


def _climb(
    fun: Callable[..., Any],
    t_span: tuple[float, float],
    y0: np.ndarray,
    args: tuple[Any, ...],
    state: State,
    numbers: Numbers,
    extra_points: int,
) -> Traceable | None:
    t0, given = t_span[0], numbers.after(args)
    if state.speaks_jax:
        plain = _prepare(_as_it_is(fun, Numbers({})), args)
        program = _jax_program(plain, t0, y0, args)
        if program is not None and not state.changed():
            if not numbers.values:
                return Traceable(plain, "jax", is_of_jax=True)
            # Outside of a compiled function every operation of JAX compiles by itself.
            known = Evaluator(program[0])
            reference = Reference(
                lambda t, y: known(np.float64(t), y, *program[1]), (), t_span, y0, extra_points
            )
            function = _prepare(_as_it_is(fun, numbers), given)
            works = _works(function, reference, t0, y0, given)
            return Traceable(function, "jax", is_of_jax=True) if works else None
        if state.handles_errors:  # among them, those of JAX about our stand-ins
            return None
    reference = Reference(fun, args, t_span, y0, extra_points)
    state.mark()
    if not reference.is_reproducible() or reference.prints or state.changed() or state.wrote_anew():
        return None
    for path, run in _rungs(fun, y0, reference.seconds, state.handles_errors, numbers):
        function = _prepare(run, given)
        if _works(function, reference, t0, y0, given):
            return Traceable(function, path, is_cheap=reference.seconds < _CHEAP)
    return None


def _rungs(
    fun: Callable[..., Any], y0: np.ndarray, seconds: float, careful: bool, numbers: Numbers
) -> Iterator[tuple[str, Callable[..., jax.Array]]]:
    if seconds < _SLOW and not careful:  # stand-ins remember every error, JAX's tracers some
        yield "jax", _as_it_is(fun, numbers)
    yield "numpy", _with_arrays(fun, careful, numbers)
    if y0.size <= scalars.SIZE_LIMIT and not watch.too_long:
        yield "scalars", _with_scalars(fun, careful, numbers)


# The three ways to run a function ---------------------------------------------------------------


def _as_it_is(fun: Callable[..., Any], numbers: Numbers) -> Callable[..., jax.Array]:
    seen = as_jax(fun, numbers)

    def function(t: Any, y: Any, *args: Any) -> jax.Array:
        return _output(seen(t, y, *args))

    return function


def _with_arrays(
    fun: Callable[..., Any], careful: bool, numbers: Numbers
) -> Callable[..., jax.Array]:
    def function(t: Any, y: Any, *args: Any) -> jax.Array:
        rest, values = numbers.take(args)
        inside = {place: TracedArray(jnp.asarray(value)) for place, value in values.items()}
        rewrite = Rewriter(fun, numbers=inside)

        def enter(leaf: Any) -> Any:
            return TracedArray(leaf) if isinstance(leaf, jax.Array) else rewrite(leaf)

        given = (jnp.asarray(t), jnp.asarray(y), *rest)
        inputs = _in_order(given, jax.tree.map(enter, given))
        watch.start(careful)
        result = rewrite(fun)(*inputs)
        watch.finish()
        numbers.replaced |= rewrite.replaced
        return _output(unwrap(result, as_array=True))

    return function


def _with_scalars(
    fun: Callable[..., Any], careful: bool, numbers: Numbers
) -> Callable[..., jax.Array]:
    def function(t: Any, y: Any, *args: Any) -> jax.Array:
        rest, values = numbers.take(args)
        watch.start(careful)
        inside = {place: scalars.scatter(jnp.asarray(value)) for place, value in values.items()}
        rewrite = Rewriter(fun, scalars.stand_in, lambda array: array, inside)
        given = (jnp.asarray(t), jnp.asarray(y), *rest)
        inputs = _in_order(given, jax.tree.map(scalars.scatter, given))
        result = rewrite(fun)(*inputs)
        watch.finish()
        numbers.replaced |= rewrite.replaced
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
        evaluator = Evaluator(program)
        if not reference.agrees(evaluator, data):
            return False
        _differentiate(program, np.float64(t0), y0, data, 1 if evaluator.is_plain else 2)
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


def _differentiate(
    program: core.ClosedJaxpr, t: Any, y: np.ndarray, data: list[Any], times: int
) -> None:
    """Raise if JAX has no derivative of one of the operations.

    Those of plain operations have derivatives themselves; eigenvalues have a first one only.
    """

    def value(t: Any, y: Any) -> Any:
        return jax.core.eval_jaxpr(program.jaxpr, program.consts, t, y, *data)[0]

    def along(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda t, y: jax.jvp(function, (t, y), (t, y))[1]

    for _ in range(times):
        value = along(value)
    jax.eval_shape(value, t, y)


def _jax_program(
    function: Callable[..., jax.Array], t0: float, y0: np.ndarray, args: tuple[Any, ...]
) -> tuple[core.ClosedJaxpr, list[Any]] | None:
    """The program of a function written for JAX, if it traces, and to the same program twice.

    It is not evaluated: outside of a compiled function every operation of JAX compiles by itself.
    """
    try:
        (first, data), (again, _) = (_program(function, t0, y0, args) for _ in range(2))
    except Exception:  # it may still work with NumPy arrays
        return None
    same = Program(first.jaxpr) == Program(again.jaxpr) and all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(first.consts, again.consts, strict=True)
    )
    return (first, data) if same else None
