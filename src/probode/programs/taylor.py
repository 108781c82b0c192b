"""Taylor mode: derivatives of a solution, each coefficient of each intermediate result once.

Along a solution every intermediate result ``v`` of ``f(t, y(t))`` is a power series
``v_0 + v_1 s + v_2 s² + ...`` in ``s = t - t0``. Coefficient ``k`` of ``f`` follows from the first
``k`` of ``y``, and gives the next one: ``y_(k+1) = f_k / (k+1)``. Coefficients that were computed
stay, so that ``q`` derivatives cost little more than ``q`` evaluations of ``f``.

==================  =============================================================================
linear in ``x``     ``v_k = L x_k``
``x y``             ``v_k = Σ_j x_j y_(k-j)``: products of numbers, of matrices, convolutions
``x / y``           ``v_k = (x_k - Σ_(j<k) v_j y_(k-j)) / y_0``
anything else       ``v_k = w_(k-1) / k`` with ``w = v'``, the series of JAX's own derivative rule
                    for it, in which ``v`` and its like are recognised: ``w = v x'`` for ``exp``
==================  =============================================================================
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import factorial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.jax_inside import (
    Closed,
    Unreadable,
    apply,
    bind,
    called,
    is_literal,
    operation,
    reading,
    those,
    trace,
    walk,
)


def derivatives(
    field: Callable[[Array, Array], Array], t0: Array, y0: Array, order: int
) -> Float[Array, "n d"]:
    """``y, y', ..., y^(order)`` at ``t0`` of the solution of ``y' = f(t, y)``, ``y(t0) = y0``."""
    try:
        with reading(*_SERIES, expected=(NotImplementedError,)):
            return _by_series(field, t0, y0, order)
    except Unreadable:
        return _by_nesting(field, t0, y0, order)


_SERIES = ("programs that can be expanded", "derivatives at the start take longer to compile")


def _by_nesting(
    field: Callable[[Array, Array], Array], t0: Array, y0: Array, order: int
) -> Float[Array, "n d"]:
    """``d/dt g(t, y(t)) = ∂g/∂t + ∂g/∂y f``, applied again and again: twice the work each time."""

    def following(g: Callable[..., Array]) -> Callable[..., Array]:
        return lambda t, y: jax.jvp(g, (t, y), (jnp.ones_like(t), field(t, y)))[1]

    rows, g = [y0], field
    for _ in range(order):
        rows.append(g(t0, y0))
        g = following(g)
    return jnp.stack(rows)


def _by_series(
    field: Callable[[Array, Array], Array], t0: Array, y0: Array, order: int
) -> Float[Array, "n d"]:
    closed = trace(field, t0, y0)
    expansion = _Expansion()
    time = Series(t0, [t0, jnp.ones_like(t0)])
    solution = Series(y0, [y0], lambda k: _times(slope[k - 1], 1.0 / k))
    (slope,) = expansion.run(closed, [time, solution])
    every = expansion.series.copy()
    for k in range(order):
        # In the order of the program: asking for the last one first would recurse through all.
        for series in every:
            series[k]
    return jnp.stack([factorial(k) * solution.instantiated(k) for k in range(order + 1)])


def along_curve(
    function: Callable[[Array, Array], Array], t0: Array, rows: Float[Array, "n d"]
) -> Float[Array, "m d"]:
    """Taylor coefficients ``0..n-2`` of ``F(t, y(t), y'(t))`` along a polynomial ``y``.

    ``rows`` are the coefficients ``y_0..y_(n-1)`` of ``y`` in powers of ``t - t0``; ``function``
    takes ``(t, u)``, where ``u`` is ``y`` followed by ``y'``.
    """
    count = rows.shape[0] - 1
    slopes = jnp.arange(1.0, count + 1.0)[:, None] * rows[1:]
    curve = jnp.concatenate([rows[:-1], slopes], axis=-1)
    try:
        with reading(*_SERIES, expected=(NotImplementedError,)):
            closed = trace(function, t0, curve[0])
            expansion = _Expansion()
            time = Series(t0, [t0, jnp.ones_like(t0)])
            (value,) = expansion.run(closed, [time, Series(curve[0], list(curve))])
            for k in range(count):
                for series in expansion.series.copy():
                    series[k]
            return jnp.stack([value.instantiated(k) for k in range(count)])
    except Unreadable:
        pass

    def moved(s: Array) -> Array:
        return function(t0 + s, jnp.polyval(curve[::-1], s))

    found, g = [], moved
    for k in range(count):
        found.append(g(jnp.zeros_like(t0)) / factorial(k))
        g = partial(_slope, g)
    return jnp.stack(found)


def _slope(g: Callable[[Array], Array], s: Array) -> Array:
    return jax.jvp(g, (s,), (jnp.ones_like(s),))[1]


class Series:
    """Coefficients of one array, computed when they are asked for; ``None`` is a zero."""

    def __init__(
        self, like: Any, known: list[Any], following: Callable[[int], Any] | None = None
    ) -> None:
        aval = jax.typeof(like)
        self.shape, self.dtype = aval.shape, aval.dtype
        self._known = known
        self.following = following

    @property
    def constant(self) -> bool:
        """Whether all coefficients but the first are zero."""
        return self.following is None and len(self._known) == 1

    @property
    def smooth(self) -> bool:
        """Whether this has derivatives at all, as whole numbers and truth values have not."""
        return bool(jnp.issubdtype(self.dtype, np.inexact))

    def __getitem__(self, k: int) -> Any:
        while len(self._known) <= k:
            if self.following is None:
                return None
            self._known.append(self.following(len(self._known)))
        return self._known[k]

    def instantiated(self, k: int) -> Any:
        """Coefficient ``k`` as an array, also where it is zero."""
        value = self[k]
        return jnp.zeros(self.shape, self.dtype) if value is None else value

    def derivative(self) -> "Series":
        """``x'_k = (k+1) x_(k+1)``."""
        like = jax.ShapeDtypeStruct(self.shape, self.dtype)
        return Series(like, [], lambda k: _times(self[k + 1], k + 1.0))


class _Expansion:
    """Runs programs on series. The same operation on the same series is done once."""

    def __init__(self) -> None:
        self.series: list[Series] = []
        self._done: dict[Any, tuple[list[Series], list[Series]]] = {}
        self._literals: dict[Any, Series] = {}

    def run(self, closed: Closed, inputs: Sequence[Series]) -> list[Series]:
        """The results of a program."""
        return walk(*closed, inputs, self._known, self._once, _entered)

    def _known(self, value: Any, variable: Any) -> Series:
        if not is_literal(variable):
            return Series(value, [value])
        array = np.asarray(value)
        key = (array.shape, array.dtype, array.tobytes(), jax.typeof(value).weak_type)
        return self._literals.setdefault(key, Series(value, [value]))

    def _once(self, equation: Any, operands: list[Series]) -> list[Series]:
        try:
            how = tuple(sorted(equation.params.items()))
            key = (equation.primitive, how, tuple(map(id, operands)))
            hash(key)
        except TypeError:  # not recognised again
            return self._apply(equation, operands)
        if key not in self._done:
            # With the operands: what is kept alive keeps its id.
            self._done[key] = (self._apply(equation, operands), operands)
        return self._done[key][0]

    def _apply(self, equation: Any, operands: list[Series]) -> list[Series]:
        name = operation(equation)
        first = apply(equation, [x.instantiated(0) for x in operands])
        results = [Series(value, [value]) for value in first]
        if name == "stop_gradient" or all(x.constant for x in operands):
            return results
        moving = [x for x in results if x.smooth]
        if name in _LINEAR:
            rule = _linear(equation, operands)
        elif name in _BILINEAR:
            rule = _product(equation, operands)
        elif name == "div":
            rule = _quotient(operands, moving)
        else:
            rule = self._by_derivative(equation, operands, results)
        _follow(moving, rule)
        self.series += moving
        return results

    def _by_derivative(
        self, equation: Any, operands: list[Series], results: list[Series]
    ) -> "Rule":
        """``v_k = w_(k-1) / k``, ``w = v'``."""
        places = [i for i, x in enumerate(operands) if x.smooth and not x.constant]
        slopes: list[Series] = []

        def tangents(values: list[Array], directions: list[Array]) -> list[Array]:
            def function(*moved: Array) -> list[Array]:
                every = list(values)
                for i, value in zip(places, moved, strict=True):
                    every[i] = value
                found = apply(equation, every)
                return [v for v, x in zip(found, results, strict=True) if x.smooth]

            return jax.jvp(function, [values[i] for i in places], directions)[1]

        def rule(k: int) -> list[Any]:
            if not slopes:
                like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
                closed = trace(tangents, like, [like[i] for i in places])
                directions = [operands[i].derivative() for i in places]
                slopes.extend(self.run(closed, [*operands, *directions]))
            return [_times(w[k - 1], 1.0 / k) for w in slopes]

        return rule


Rule = Callable[[int], list[Any]]
"""From ``k`` to coefficient ``k`` of each result that has derivatives."""


def _follow(results: list[Series], rule: Rule) -> None:
    """Let these series go on by a rule, which is asked once for each coefficient."""
    rows: dict[int, list[Any]] = {}

    def coefficient(place: int, k: int) -> Any:
        if k not in rows:
            rows[k] = rule(k)
        return rows[k][place]

    for place, series in enumerate(results):
        series.following = partial(coefficient, place)


def _linear(equation: Any, operands: list[Series]) -> Rule:
    def rule(k: int) -> list[Any]:
        if all(x[k] is None for x in operands if x.smooth):
            return [None] * len(equation.outvars)
        return _bind(equation, [x.instantiated(k) if x.smooth else x[0] for x in operands])

    return rule


def _product(equation: Any, operands: list[Series]) -> Rule:
    x, y = operands

    def rule(k: int) -> list[Any]:
        pairs = [(x[j], y[k - j]) for j in range(k + 1)]
        return [
            _sum(_bind(equation, [a, b])[0] for a, b in pairs if a is not None and b is not None)
        ]

    return rule


def _quotient(operands: list[Series], results: list[Series]) -> Rule:
    (x, y), (v,) = operands, results

    def rule(k: int) -> list[Any]:
        pairs = [(v[j], y[k - j]) for j in range(k)]
        rest = _sum(a * b for a, b in pairs if a is not None and b is not None)
        if rest is None:
            return [None if x[k] is None else x[k] / y[0]]
        return [(x.instantiated(k) - rest) / y[0]]

    return rule


def _sum(terms: Any) -> Any:
    total = None
    for term in terms:
        total = term if total is None else total + term
    return total


def _times(value: Any, factor: float) -> Any:
    return value if value is None or factor == 1.0 else value * factor


def _bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    """The operation of an equation, a simple one, on other values."""
    return bind(equation.primitive, values, equation.params)


def _entered(equation: Any) -> Closed | None:
    # A rule for forward mode says how series go on, one for reverse mode does not.
    return None if operation(equation) == "custom_jvp_call" else called(equation)


_LINEAR, _BILINEAR = those("moving", "linear"), those("bilinear")
