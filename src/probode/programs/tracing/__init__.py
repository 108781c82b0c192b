"""Functions written with NumPy or plain Python, made traceable by JAX.

A right-hand side ``fun(t, y, *args)`` as it is written for SciPy is turned into one that JAX can
trace: it compiles, and its derivatives are exact. Three ways are tried:

=============  ==================================================================================
``"jax"``      the function traces as it is
``"numpy"``    a copy of it runs with stand-ins for NumPy, ``math`` and the arrays
``"scalars"``  it runs with NumPy's arrays of objects that hold traced scalars
=============  ==================================================================================

The outcome of each is compared with the original at several points. A function that branches on
values (``if y[0] > 0``) is run along every path, and the results are selected. What else asks for
values (a list that is indexed by ``int(t)``) is never guessed: such a function stays Python, and so
does one that does something with every call.

Numbers that the function reads (from its closure, from globals, attributes, dictionaries) are
constants of the trace, or inputs where ``numbers`` says so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from probode.base.jax_inside import Closed, is_tracer, run, trace, unknown_value
from probode.base.precision import double_precision
from probode.programs.program import alike, of_data, with_data
from probode.programs.tracing import operators, scalars
from probode.programs.tracing.alone import one_at_a_time, others_run
from probode.programs.tracing.effects import State
from probode.programs.tracing.evaluate import Evaluator, count_equations
from probode.programs.tracing.reasons import (
    LONG,
    NOT_THE_SAME,
    OTHER_VALUES,
    PRINTS,
    Reason,
    reason_of,
)
from probode.programs.tracing.verify import Reference
from probode.programs.tracing.watching import OPERATION_LIMIT
from probode.programs.tracing.watching import watch as _watch  # `watch` is an older module's name
from probode.programs.tracing.ways import (
    Numbers,
    as_it_is,
    as_jax,
    in_order,
    with_arrays,
    with_scalars,
)
from probode.programs.user_code import home

__all__ = ["Numbers", "Reason", "Traceable", "as_jax", "make_traceable", "traceable_or_why"]

operators.attach()

_SLOW = 5e-4
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
        Whether it was written for JAX, and behaves as JAX has it: what it does besides computing is
        done once, when it is traced.
    is_cheap
        Whether a call of the original takes next to no time.
    """

    function: Callable[..., jax.Array]
    path: str
    is_of_jax: bool = False
    is_cheap: bool = False


def make_traceable(
    fun: Callable[..., Any],
    t_span: Any,
    y0: Any,
    args: tuple[Any, ...] = (),
    *,
    numbers: Numbers | None = None,
    extra_points: int = 4,
) -> Traceable | None:
    """Return :func:`traceable_or_why`, or ``None`` where that is a reason."""
    found = traceable_or_why(fun, t_span, y0, args, numbers=numbers, extra_points=extra_points)
    return found if isinstance(found, Traceable) else None


def traceable_or_why(
    fun: Callable[..., Any],
    t_span: Any,
    y0: Any,
    args: tuple[Any, ...] = (),
    *,
    numbers: Numbers | None = None,
    extra_points: int = 4,
) -> Traceable | Reason:
    """Make ``fun(t, y, *args)`` traceable by JAX, or return the reason why that is impossible.

    Parameters
    ----------
    fun
        The user's function, with NumPy, plain Python or JAX inside.
    t_span, y0, args
        Interval, start and parameters: it is evaluated there, and at points nearby.
    numbers
        Numbers that ``fun`` reads and that are to be inputs: the last argument of the outcome.
    extra_points
        Number of points away from ``y0`` at which the outcome is compared with ``fun``.

    Returns
    -------
    A traceable form, or the reason why there is none: no form agrees with ``fun``, its control flow
    needs values, it gives different values at the same point, it changes something outside of
    itself (a list that it appends to, a counter, printed text), or its result depends on a state
    outside of it (an iterator, a file, the clock). An exception of ``fun`` at ``(t0, y0)`` is
    raised.
    """
    t0, t1 = (float(t) for t in t_span)
    start = np.asarray(y0)
    if start.dtype.kind not in "biuf":
        return Reason(f"y0 has entries of type {start.dtype}")
    start = np.array(start, float)
    args = tuple(args)
    with one_at_a_time():
        state = State(fun, args)
        if state.acts is not None:
            return Reason(state.acts, _OUTSIDE)
        span, lifted = (t0, t1), numbers or Numbers({})
        try:
            with double_precision():
                return _climb(fun, span, start, args, state, lifted, extra_points)
        finally:
            # What another thread has changed meanwhile is not to be undone.
            if state.is_used or not others_run():
                state.restore()
            else:
                state.restore_what_is_written()


_OUTSIDE = "move everything but the computation out of the function"


def _climb(
    fun: Callable[..., Any],
    t_span: tuple[float, float],
    y0: np.ndarray,
    args: tuple[Any, ...],
    state: State,
    numbers: Numbers,
    extra_points: int,
) -> Traceable | Reason:
    t0, given = t_span[0], numbers.after(args)
    if state.speaks_jax:
        plain = _prepare(as_it_is(fun, Numbers({})), args)
        program = _jax_program(plain, t0, y0, args)
        state.is_used = _changes(state, lambda _: _jax_program(plain, t0, y0, args))
        if program is not None and not state.is_used:
            if not numbers.values:
                return Traceable(plain, "jax", is_of_jax=True)
            # Outside of a compiled function every operation of JAX compiles by itself.
            known = Evaluator(program[0])
            reference = Reference(
                lambda t, y: known(np.float64(t), y, *program[1]), (), t_span, y0, extra_points
            )
            function = _prepare(as_it_is(fun, numbers), given)
            why_not = _why_not(function, reference, t0, y0, given, home(fun))
            return why_not or Traceable(function, "jax", is_of_jax=True)
        if state.handles_errors:  # among them, those of JAX about our stand-ins
            return Reason("it calls JAX and has a try statement, and JAX cannot trace it")
    try:
        reference = Reference(fun, args, t_span, y0, extra_points)
    except AttributeError as error:
        if state.speaks_jax or not _asks_for_array_of_jax(error):
            raise
        state.speaks_jax = True
        return _climb(fun, t_span, y0, args, state, numbers, extra_points)
    state.mark()
    same = reference.is_reproducible()
    changes = same and _changes(state, reference.visit)
    state.is_used = not same or changes or state.wrote_anew()
    state.call = partial(reference.visit, 0)
    if state.is_used:
        changed = f"it changes {state.first_change() or 'something outside of it'}"
        return Reason(changed, _OUTSIDE) if same else NOT_THE_SAME
    if reference.prints:
        return PRINTS
    reasons = {}
    for path, way in _rungs(fun, y0, reference.seconds, state.handles_errors, numbers):
        function = _prepare(way, given)
        why_not = _why_not(function, reference, t0, y0, given, home(fun))
        if why_not is None:
            return Traceable(function, path, is_cheap=reference.seconds < _CHEAP)
        reasons[path] = why_not
    return reasons["numpy"]


def _asks_for_array_of_jax(error: AttributeError) -> bool:
    """Whether it is about ``y.at[...]``: a function may speak JAX and name nothing of it."""
    return error.name == "at" and isinstance(error.obj, np.ndarray | np.generic)


def _changes(state: State, call: Callable[[int], Any]) -> bool:
    """Whether the calls that were made have changed something outside the function.

    It may have been another thread: then not each of a few further calls changes something too.
    """
    if not state.changed():
        return False
    return not others_run() or all(state.changed_by(partial(call, k)) for k in range(_FURTHER))


_FURTHER = 3


def _rungs(
    fun: Callable[..., Any], y0: np.ndarray, seconds: float, careful: bool, numbers: Numbers
) -> Iterator[tuple[str, Callable[..., jax.Array]]]:
    if seconds < _SLOW and not careful:  # stand-ins remember every error, JAX's tracers some
        yield "jax", as_it_is(fun, numbers)
    yield "numpy", with_arrays(fun, careful, numbers)
    if y0.size <= scalars.SIZE_LIMIT and not _watch.too_long:
        yield "scalars", with_scalars(fun, careful, numbers)


def _prepare(
    function: Callable[..., jax.Array], given: tuple[Any, ...]
) -> Callable[..., jax.Array]:
    """``function`` with arguments ordered as given, and with one kind of error for integers.

    JAX sorts dictionaries on their way. And where a traced integer may be the reason of a failure,
    the error says that it must be known: then all may be well.
    """

    def prepared(t: Any, y: Any, *args: Any) -> jax.Array:
        try:
            return function(t, y, *in_order(given, args))
        except jax.errors.ConcretizationTypeError:
            raise
        except Exception as error:
            for leaf in jax.tree.leaves(args):
                if is_tracer(leaf) and leaf.dtype.kind in "biu":
                    message = "An integer among the parameters must be known to trace fun."
                    raise unknown_value(leaf, message) from error
            raise

    return prepared


# Whether it worked --------------------------------------------------------------------------------


def _why_not(
    function: Callable[..., jax.Array],
    reference: Reference,
    t0: float,
    y0: np.ndarray,
    args: tuple[Any, ...],
    home: str,
) -> Reason | None:
    """Return ``None`` if ``function`` traces, agrees with the original, and has a derivative."""
    try:
        program, data = _program(function, t0, y0, args)
        if count_equations(program.jaxpr) > OPERATION_LIMIT:
            return LONG
        evaluator = Evaluator(program)
        if not reference.agrees(evaluator, data, at_more_points=_watch.questions > 0):
            return OTHER_VALUES
        _differentiate(program, np.float64(t0), y0, data, 1 if evaluator.is_plain else 2)
    except Exception as error:  # user code with arrays that it was not written for fails in any way
        return reason_of(error, home)
    return None


def _program(
    function: Callable[..., jax.Array], t0: float, y0: np.ndarray, args: tuple[Any, ...]
) -> tuple[Closed, list[Any]]:
    """Trace with all numbers among the arguments as data, or all but the integers."""
    leaves, tree = jax.tree.flatten(args)

    def attempt(is_data: Callable[[Any], bool]) -> tuple[Closed, list[Any]]:
        data = [leaf for leaf in leaves if is_data(leaf)]
        flat = of_data(function, leaves, tree, is_data)
        return trace(flat, np.float64(t0), y0, *data), data

    found: tuple[Closed, list[Any]] = with_data(leaves, attempt)
    return found


def _differentiate(program: Closed, t: Any, y: np.ndarray, data: list[Any], times: int) -> None:
    """Raise if JAX has no derivative of one of the operations.

    Those of plain operations have derivatives themselves; eigenvalues have a first one only.
    """

    def value(t: Any, y: Any) -> Any:
        return run(program.jaxpr, program.consts, t, y, *data)[0]

    def along(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda t, y: jax.jvp(function, (t, y), (t, y))[1]

    for _ in range(times):
        value = along(value)
    jax.eval_shape(value, t, y)


def _jax_program(
    function: Callable[..., jax.Array], t0: float, y0: np.ndarray, args: tuple[Any, ...]
) -> tuple[Closed, list[Any]] | None:
    """The program of a function written for JAX, if it traces, and to the same program twice.

    It is not evaluated: outside of a compiled function every operation of JAX compiles by itself.
    """
    try:
        (first, data), (again, _) = (_program(function, t0, y0, args) for _ in range(2))
    except Exception:  # it may still work with NumPy arrays
        return None
    same = alike(first.jaxpr, again.jaxpr) and all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(first.consts, again.consts, strict=True)
    )
    return (first, data) if same else None
