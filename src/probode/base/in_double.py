"""A function of arrays, computed in double precision, as one operation inside a user's trace.

JAX's transformations are applied after the function has returned, outside of our scope of double
precision, where they mix 64-bit values with 32-bit constants. Inside of a single operation they do
nothing: they see its results only. Its program is traced, differentiated, batched and lowered by
the rules below, each within that scope. For ``y = f(x)`` there are three kinds of operation::

    values        f(x)
    tangents      f'(x) dx          linear in dx
    cotangents    f'(x)ᵀ w          linear in w

The second and the third are the transposes of one another, so that every mode of differentiation
comes down to these; their own derivatives by ``x`` are the tangents of a function of ``(x, dx)``.
Loops in ``f`` need no bound on their length (:mod:`probode.base.reversible`).
"""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.compile import compiled
from probode.base.jax_inside import (
    Closed,
    Derivatives,
    is_tracer,
    new_operation,
    readable,
    run,
    trace,
)
from probode.base.precision import double_precision, is_traced
from probode.base.reversible import run_reversibly
from probode.base.status import Status

_FUNCTIONS = 128
"""Number of functions that are remembered with their programs."""


def in_double(
    function: Callable[..., Any],
    static: Hashable,
    *trees: Any,
    differentiated: Callable[..., Any] | None = None,
    throw: bool = False,
) -> Any:
    """Return ``function(static, *trees)``, computed in double precision; arrays in, arrays out.

    Parameters
    ----------
    function
        A pure function that is defined in a module and depends on its arguments only.
    static
        The part of its arguments that its program depends on.
    differentiated
        The same function in a form that JAX can differentiate; by default ``function``.
    throw
        Whether to raise while the program runs if the first of the results is the code of a
        failure (:class:`Status`).
    """
    leaves, tree = jax.tree.flatten(trees)
    with double_precision():
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        if _bind is not None and readable():
            source = _Source(function, differentiated or function, static, tree)
            known = _function(source, tuple(map(_kind, leaves)), throw)
            if known.closed:
                found = _bind(*leaves, function=known, how=_VALUES)
                return jax.tree.unflatten(known.results, found)
        return (differentiated or function)(static, *jax.tree.unflatten(tree, leaves))


def as_one(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of a record: in a trace outside of our scope it becomes one operation."""

    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if jnp.result_type(float) == jnp.float64 or not is_traced(self, args, options):
            return method(self, *args, **options)
        leaves, tree = jax.tree.flatten((args, options))
        arrays = [leaf if isinstance(leaf, jax.Array | np.ndarray) else None for leaf in leaves]
        others = [None if isinstance(leaf, jax.Array | np.ndarray) else leaf for leaf in leaves]
        return in_double(_called, (method, tree, tuple(others)), self, arrays)

    return call


def _called(static: tuple[Any, ...], record: Any, arrays: list[Any]) -> Any:
    method, tree, others = static
    pairs = zip(arrays, others, strict=True)
    args, options = jax.tree.unflatten(tree, [b if a is None else a for a, b in pairs])
    return method(record, *args, **options)


class _Kind(NamedTuple):
    """Shape and type of an array whose values are not known yet."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False

    @property
    def described(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype, weak_type=self.weak_type)

    @property
    def real(self) -> bool:
        """Whether it has derivatives."""
        return bool(jnp.issubdtype(self.dtype, jnp.inexact))


def _kind(value: Any) -> _Kind:
    return _Kind(value.shape, value.dtype, bool(getattr(value, "weak_type", False)))


class _Source(NamedTuple):
    """A Python function, and the structure of what it is called with."""

    function: Callable[..., Any]
    differentiated: Callable[..., Any]
    static: Hashable
    tree: Any

    def call(self, function: Callable[..., Any], *leaves: Any) -> Any:
        """Return the results for these arrays."""
        return function(self.static, *jax.tree.unflatten(self.tree, leaves))


class _How(NamedTuple):
    """One of the three kinds of operation, with the derivatives that it forms."""

    kind: str
    moving: tuple[int, ...] = ()
    """Inputs by which the derivatives are taken."""
    stacked: int = 0
    """Leading axes of the tangents, or cotangents: as many derivatives at the same ``x``."""


_VALUES = _How("values")


class _DoubleFunction:
    """A function and its programs, traced on first use; equal functions share one object."""

    def __init__(
        self,
        evaluate: Callable[..., Any],
        differentiated: Callable[..., Any],
        inputs: tuple[_Kind, ...],
        throw: bool = False,
    ) -> None:
        self._sources = evaluate, differentiated
        self.inputs, self.throw = inputs, throw
        self._programs: dict[bool, Closed] = {}
        self._results: Any = None
        program = self.program(False)
        self.closed = not any(map(is_tracer, program.consts))
        """Whether it depends on its inputs alone, and not on a value of some trace."""

    def __repr__(self) -> str:
        return str(self.program(False).jaxpr)

    def program(self, differentiated: bool) -> Closed:
        """Return the program of the function, or of the form of it that is differentiated."""
        one = self._sources[0] is self._sources[1]
        known = self._programs.get(differentiated and not one)
        if known is None:
            known = self._traced(self._sources[differentiated])
            self._programs[differentiated and not one] = known
        return known

    def _traced(self, source: Callable[..., Any]) -> Closed:
        seen: list[Any] = []

        def flat(*inputs: Any) -> list[Any]:
            leaves, results = jax.tree.flatten(source(*inputs))
            seen.append(results)
            return [jnp.asarray(leaf) for leaf in leaves]

        with double_precision():
            found = trace(flat, *[kind.described for kind in self.inputs])
        self.results = seen[0]
        return found

    @property
    def outputs(self) -> list[_Kind]:
        """Shapes and types of the results."""
        return [_Kind(x.aval.shape, x.aval.dtype) for x in self.program(False).jaxpr.outvars]

    def kinds(self, how: _How, rest: Sequence[Any]) -> list[_Kind]:
        """Describe the results of one of the three operations."""
        if how.kind == "values":
            return self.outputs
        sizes = rest[0].shape[: how.stacked] if rest else ()
        every = self.outputs if how.kind == "tangents" else [self.inputs[i] for i in how.moving]
        return [_Kind((*sizes, *kind.shape), kind.dtype) for kind in every if kind.real]

    def evaluate(self, how: _How, *values: Any, guarded: bool = True) -> list[Any]:
        """Evaluate one of the three operations, within double precision."""
        inputs, rest = values[: len(self.inputs)], values[len(self.inputs) :]
        guarded = guarded and self.throw
        program = self.program(how.kind != "values")
        if how.kind == "values":
            results = run(program.jaxpr, program.consts, *inputs)
            return _unless_failed(results[0], results) if guarded else results
        real = [i for i, kind in enumerate(self.outputs) if kind.real]
        moved = [inputs[i] for i in how.moving]
        back = how.kind == "cotangents"

        def along(*moved: Any) -> tuple[list[Any], list[Any]]:
            given = list(inputs)
            for i, value in zip(how.moving, moved, strict=True):
                given[i] = value
            results = (
                run_reversibly(program, given)
                if back
                else run(program.jaxpr, program.consts, *given)
            )
            return [results[i] for i in real], results[:1]

        if back:
            _, pull, first = jax.vjp(along, *moved, has_aux=True)
            linear: Any = pull
            kinds = [self.outputs[i] for i in real]
        else:
            kinds = [self.inputs[i] for i in how.moving]

            def linear(tangents: list[Any]) -> Any:
                _, found, first = jax.jvp(along, moved, tangents, has_aux=True)
                return found, first

        for _ in range(how.stacked):
            linear = jax.vmap(linear, out_axes=0 if back else (0, None))
        found = linear([x.astype(kind.dtype) for x, kind in zip(rest, kinds, strict=True)])
        found, first = (found, first) if back else found
        return _unless_failed(first[0], list(found)) if guarded else list(found)


@lru_cache(maxsize=_FUNCTIONS)
def _function(source: _Source, inputs: tuple[_Kind, ...], throw: bool) -> _DoubleFunction:
    forms = source.function, source.differentiated
    evaluate, differentiated = (partial(source.call, form) for form in forms)
    if forms[0] is forms[1]:
        differentiated = evaluate
    return _DoubleFunction(evaluate, differentiated, inputs, throw)


@lru_cache(maxsize=_FUNCTIONS)
def _batched(function: _DoubleFunction, axes: tuple[int | None, ...], size: int) -> _DoubleFunction:
    """Map ``function`` over those inputs that have an axis."""
    inputs = tuple(
        kind if axis is None else _Kind((size, *kind.shape), kind.dtype)
        for kind, axis in zip(function.inputs, axes, strict=True)
    )

    def form(differentiated: bool) -> Callable[..., Any]:
        def one(*inputs: Any) -> list[Any]:
            program = function.program(differentiated)
            return run(program.jaxpr, program.consts, *inputs)

        return jax.vmap(one, in_axes=axes)

    return _DoubleFunction(form(False), form(True), inputs, function.throw)


@lru_cache(maxsize=_FUNCTIONS)
def _derivative(function: _DoubleFunction, how: _How, rest: tuple[_Kind, ...]) -> _DoubleFunction:
    """Return tangents, or cotangents, as a function of all that they depend on."""
    evaluate = partial(function.evaluate, how, guarded=False)
    return _DoubleFunction(evaluate, evaluate, (*function.inputs, *rest))


def _shape(*values: Any, function: _DoubleFunction, how: _How) -> list[jax.ShapeDtypeStruct]:
    found = function.kinds(how, values[len(function.inputs) :])
    return [kind.described for kind in found]


def _evaluated(*values: Any, function: _DoubleFunction, how: _How) -> list[Any]:
    with double_precision(), jax.debug_nans(False), jax.debug_infs(False):
        found: list[Any] = _compiled((function, how), *values)
        return found


_compiled = compiled(0)(lambda what, *values: what[0].evaluate(what[1], *values))


def _lowered(*values: Any, function: _DoubleFunction, how: _How) -> list[Any]:
    with double_precision():  # lowering happens after all transformations
        return function.evaluate(how, *values)


def _in_batches(values: Any, axes: Any, *, function: _DoubleFunction, how: _How) -> Any:
    count = len(function.inputs)
    size = next(
        x.shape[axis] for x, axis in zip(values, axes, strict=True) if isinstance(axis, int)
    )
    with double_precision():

        def along(value: Any, axis: Any, place: int) -> Any:
            """Return the value with the axis of the batch in this place."""
            if isinstance(axis, int):
                return jnp.moveaxis(value, axis, place)
            shape = value.shape
            wide = jnp.expand_dims(value, place)
            return jnp.broadcast_to(wide, (*shape[:place], size, *shape[place:]))

        pairs = list(zip(values, axes, strict=True))
        given, rest = pairs[:count], pairs[count:]
        if all(not isinstance(axis, int) for _, axis in given):
            wider = how._replace(stacked=how.stacked + 1)
            inputs = [value for value, _ in given]
            results = _bound(
                *inputs, *[along(*pair, 0) for pair in rest], function=function, how=wider
            )
            return results, [0] * len(results)
        places = [
            0 if isinstance(axis, int) or i in how.moving else None
            for i, (_, axis) in enumerate(given)
        ]
        inputs = [
            value if place is None else along(value, axis, 0)
            for (value, axis), place in zip(given, places, strict=True)
        ]
        wide = _batched(function, tuple(places), size)
        rest = [along(*pair, how.stacked) for pair in rest]
        results = _bound(*inputs, *rest, function=wide, how=how)
        return results, [how.stacked] * len(results)


def _forward(values: Any, tangents: Any, *, function: _DoubleFunction, how: _How) -> Any:
    results = _bound(*values, function=function, how=how)
    count = len(function.inputs)
    moving = tuple(i for i, x in enumerate(tangents) if x is not None and _kind(values[i]).real)
    terms = []
    rest = tangents[count:]
    if any(x is not None for x in rest):  # it is linear in these
        with double_precision():
            whole = [
                jnp.zeros_like(x) if dx is None else dx
                for x, dx in zip(values[count:], rest, strict=True)
            ]
        terms.append(_bound(*values[:count], *whole, function=function, how=how))
    moving = tuple(i for i in moving if i < count)
    if moving:
        kinds = tuple(_Kind(x.shape, x.dtype) for x in values[count:])
        by = function if how.kind == "values" else _derivative(function, how, kinds)
        directions = [tangents[i] for i in moving]
        terms.append(_bound(*values, *directions, function=by, how=_How("tangents", moving)))
    if not terms:
        return results, [None] * len(results)
    total = iter(terms[0] if len(terms) == 1 else map(jax.lax.add, *terms))
    return results, [next(total) if _kind(x).real else None for x in results]


def _reverse(cotangents: Any, known: Any, *, function: _DoubleFunction, how: _How) -> list[Any]:
    count = len(function.inputs)
    rest = known[count:]
    kind = "cotangents" if how.kind == "tangents" else "tangents"
    kinds = function.kinds(how, [])
    sizes = next(w for w in cotangents if w is not None).shape[: how.stacked]
    with double_precision():
        whole = [
            jnp.zeros((*sizes, *kind.shape), kind.dtype) if w is None else w
            for w, kind in zip(cotangents, kinds, strict=True)
        ]
    found = _bound(*known[:count], *whole, function=function, how=how._replace(kind=kind))
    assert len(found) == len(rest)
    return [None] * count + list(found)


_bind = new_operation(
    "probode",
    shape=_shape,
    evaluate=_evaluated,
    batched=_in_batches,
    on_cpu=_lowered,
    derivatives=Derivatives(_forward, _reverse),
)


def _bound(*values: Any, function: _DoubleFunction, how: _How) -> list[Any]:
    assert _bind is not None
    found: list[Any] = _bind(*values, function=function, how=how)
    return found


def _unless_failed(status: Any, results: list[Any]) -> list[Any]:
    """Return the results; raise while the program runs if a status is that of a failure."""
    kinds = [_kind(x).described for x in results]
    failed = jnp.any(status < 0)
    codes = status.astype(jnp.int32)
    return jax.lax.cond(
        failed, lambda: jax.pure_callback(_raise, kinds, codes), lambda: list(results)
    )


def _raise(codes: Any) -> Any:
    codes = np.asarray(codes)
    failed = np.argwhere(codes < 0)
    where = tuple(map(int, failed[0]))
    status, member = Status(int(codes[where])), where[0] if len(where) == 1 else where
    words = failure(status, status.message)
    if where:
        words = f"Member {member} of a batch ({len(failed)} of {codes.size} failed): {words}"
    raise RuntimeError(words)


def failure(status: Status, message: str) -> str:
    """Describe in words the failure of a solve with ``throw=True``."""
    return f"solve failed with Status.{status.name}, and throw=True. {message}"
