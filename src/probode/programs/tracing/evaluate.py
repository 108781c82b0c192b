"""Run a traced program with NumPy, without compiling anything.

Checking a trace takes a handful of evaluations of a small program: NumPy has finished long before a
compiler would have started. Programs with operations that are not listed here are compiled.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from probode.base import jax_inside
from probode.base.jax_inside import Closed, Unreadable, called, is_literal, kind, operation, reading

_SHAKE = 1e-13
"""Relative change of all intermediate results that is to show what rounding does."""


class Evaluator:
    """A traced program with one output as a function of NumPy arrays.

    ``is_plain`` says that all its operations are listed here.
    """

    def __init__(self, program: Closed) -> None:
        self._program = program
        self._compiled: Callable[..., Any] | None = None
        self.is_plain = False
        try:
            with reading(*_PLAIN):
                self.is_plain = _is_listed(program.jaxpr)
        except Unreadable:
            pass
        if not self.is_plain:
            self._compile()

    def _compile(self) -> None:
        jaxpr, constants = self._program.jaxpr, self._program.consts
        self._compiled = jax.jit(lambda *inputs: jax_inside.run(jaxpr, constants, *inputs))

    def __call__(self, *inputs: Any) -> np.ndarray:
        """The value."""
        if self._compiled is None:
            try:
                with reading(*_PLAIN, expected=(FloatingPointError,)):
                    return _run(self._program.jaxpr, self._program.consts, inputs)[0]
            except Unreadable:
                self._compile()
        assert self._compiled is not None
        return np.asarray(self._compiled(*inputs)[0])

    def spread(self, *inputs: Any) -> np.ndarray:
        """How far the value moves when all intermediate results move a little.

        Zero if the program was compiled: then nothing is known about it.
        """
        value = self(*inputs)
        if self._compiled is not None:
            return np.zeros_like(value)
        generator = np.random.default_rng(0)

        def shake(result: np.ndarray) -> np.ndarray:
            if result.dtype.kind != "f":
                return result
            return result * (1 + _SHAKE * generator.uniform(-1, 1, result.shape))

        shaken = [_run(self._program.jaxpr, self._program.consts, inputs, shake)[0] for _ in "ab"]
        return np.maximum(*(np.abs(other - value) for other in shaken))


_PLAIN = ("programs that NumPy can run", "checking a function takes a compilation")


def count_equations(jaxpr: Any) -> int:
    """The length of a program, with everything that it calls; zero if it cannot be read."""
    try:
        with reading("programs that can be counted", "long ones are compiled all the same"):
            return _count(jaxpr)
    except Unreadable:
        return 0


def _count(jaxpr: Any) -> int:
    return sum(
        1 + sum(_count(inner.jaxpr) for inner in jax_inside.programs_in(eqn.params))
        for eqn in jaxpr.eqns
    )


def _is_listed(jaxpr: Any) -> bool:
    for eqn in jaxpr.eqns:
        inner = called(eqn)
        if inner is not None:
            if not _is_listed(inner.jaxpr):
                return False
        elif operation(eqn) not in OPERATIONS:
            return False
    return True


def _run(
    jaxpr: Any,
    constants: Sequence[Any],
    inputs: Sequence[Any],
    change: Callable[[np.ndarray], np.ndarray] = lambda result: result,
) -> list[np.ndarray]:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *inputs), strict=True))

    def read(atom: Any) -> Any:
        return np.asarray(atom.val if is_literal(atom) else values[atom])

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        inner = called(eqn)
        if inner is not None:
            results = _run(inner.jaxpr, inner.consts, operands, change)
        else:
            result = OPERATIONS[operation(eqn)](eqn.params, *operands)
            results = result if isinstance(result, list) else [result]
        for variable, result in zip(eqn.outvars, results, strict=True):
            values[variable] = change(np.asarray(result, kind(variable)[1]))
    return [read(atom) for atom in jaxpr.outvars]


_Operation = Callable[..., Any]


def _plain(function: Callable[..., Any]) -> _Operation:
    return lambda params, *operands: function(*operands)


def _reduction(function: Callable[..., Any]) -> _Operation:
    return lambda params, x: function(x, axis=params["axes"])


def _cumulative(function: Callable[..., Any]) -> _Operation:
    def run(params: Any, x: Any) -> Any:
        axis = params["axis"]
        if not params["reverse"]:
            return function(x, axis=axis)
        return np.flip(function(np.flip(x, axis), axis=axis), axis)

    return run


def _div(params: Any, x: Any, y: Any) -> Any:
    return np.trunc(x / y) if x.dtype.kind in "iu" else x / y


def _slice(params: Any, x: Any) -> Any:
    strides = params["strides"] or (1,) * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*bound) for bound in bounds)]


def _dynamic_slice(params: Any, x: Any, *starts: Any) -> Any:
    key = []
    for start, size, n in zip(starts, params["slice_sizes"], x.shape, strict=True):
        first = min(max(int(start), 0), n - size)
        key.append(slice(first, first + size))
    return x[tuple(key)]


def _broadcast(params: Any, x: Any) -> Any:
    shape = [1] * len(params["shape"])
    for axis, n in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = n
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _select(params: Any, which: Any, *cases: Any) -> Any:
    which = np.broadcast_to(which, cases[0].shape).astype(int)
    return np.choose(which, cases) if cases[0].ndim else cases[int(which)]


def _pad(params: Any, x: Any, fill: Any) -> Any:
    """Padding; a negative amount cuts off."""
    config = params["padding_config"]
    shape = [
        max(low, 0) + max(high, 0) + (n - 1) * (inner + 1) + 1 if n else max(low, 0) + max(high, 0)
        for n, (low, high, inner) in zip(x.shape, config, strict=True)
    ]
    whole = np.full(shape, fill, x.dtype)
    places, cut = [], []
    for n, total, (low, high, inner) in zip(x.shape, shape, config, strict=True):
        first = max(low, 0)
        places.append(slice(first, first + n * (inner + 1), inner + 1) if n else slice(0, 0))
        cut.append(slice(max(-low, 0), total - max(-high, 0)))
    whole[tuple(places)] = x
    return whole[tuple(cut)]


def _dot(params: Any, x: Any, y: Any) -> Any:
    (x_sum, y_sum), (x_batch, y_batch) = params["dimension_numbers"]
    x_axes, y_axes = list(range(x.ndim)), list(range(x.ndim, x.ndim + y.ndim))
    for i, j in zip((*x_sum, *x_batch), (*y_sum, *y_batch), strict=True):
        y_axes[j] = x_axes[i]
    kept = [axis for i, axis in enumerate(x_axes) if i not in (*x_sum, *x_batch)]
    kept += [axis for j, axis in enumerate(y_axes) if j not in (*y_sum, *y_batch)]
    return np.einsum(x, x_axes, y, y_axes, [x_axes[i] for i in x_batch] + kept)


def _gather(params: Any, x: Any, indices: Any) -> Any:
    """``out[batch, offset] = x[start(batch) + offset]``, starts kept inside the array."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    batch = indices.shape[:-1]
    hidden = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    offsets = [axis for axis in range(x.ndim) if axis not in hidden]
    ndim = len(batch) + len(offsets)
    key: list[Any] = []
    for axis in range(x.ndim):
        start = np.zeros(batch, int)
        if axis in numbers.start_index_map:
            start = indices[..., numbers.start_index_map.index(axis)].astype(int)
            start = np.clip(start, 0, x.shape[axis] - sizes[axis])
        elif axis in numbers.operand_batching_dims:
            at = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(axis)]
            shape = [1] * len(batch)
            shape[at] = -1
            start = np.broadcast_to(np.arange(batch[at]).reshape(shape), batch)
        start = start.reshape(batch + (1,) * len(offsets))
        if axis in offsets:
            shape = [1] * ndim
            shape[len(batch) + offsets.index(axis)] = -1
            start = start + np.arange(sizes[axis]).reshape(shape)
        key.append(start)
    result = np.broadcast_arrays(*key)[0].shape if key else batch
    found = np.broadcast_to(x[tuple(key)], result)
    return np.moveaxis(found, range(len(batch), ndim), numbers.offset_dims)


def _iota(params: Any) -> Any:
    shape = [1] * len(params["shape"])
    shape[params["dimension"]] = -1
    n = params["shape"][params["dimension"]]
    return np.broadcast_to(np.arange(n).reshape(shape), params["shape"])


def _reshape(params: Any, x: Any) -> Any:
    order = params["dimensions"]
    return (x if order is None else x.transpose(order)).reshape(params["new_sizes"])


def _round(params: Any, x: Any) -> Any:
    if params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return np.rint(x)
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _split(params: Any, x: Any) -> list[Any]:
    return np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"])


def _unstack(params: Any, x: Any) -> list[Any]:
    axis = params["axis"]
    return [np.take(x, i, axis) for i in range(x.shape[axis])]


_ENTRYWISE: dict[str, Callable[..., Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "copy": np.copy,
    "copy_p": np.copy,
    "eq": np.equal,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]),
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "logistic": lambda x: np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))),
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "one_minus_square": lambda x: (1 + x) * (1 - x),
    "or": np.bitwise_or,
    "polynomial": lambda x, *terms: functools.reduce(lambda a, b: a * x + b, terms[::-1]),
    "pow": np.power,
    "rem": np.fmod,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "stop_gradient": np.copy,
    "sub": np.subtract,
    "xor": np.bitwise_xor,
}

OPERATIONS: dict[str, _Operation] = {
    **{
        name: _plain(getattr(np, name))
        for name in (
            *("cos", "sin", "tan", "cosh", "sinh", "tanh", "exp", "exp2", "expm1", "log", "log1p"),
            *("sqrt", "cbrt", "square", "sign", "abs", "floor", "ceil", "conj", "real", "imag"),
        )
    },
    **{name: _plain(function) for name, function in _ENTRYWISE.items()},
    "argmax": lambda params, x: np.argmax(x, params["axes"][0]),
    "argmin": lambda params, x: np.argmin(x, params["axes"][0]),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda params, *xs: np.concatenate(xs, params["dimension"]),
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "cummax": _cumulative(np.maximum.accumulate),
    "cummin": _cumulative(np.minimum.accumulate),
    "cumprod": _cumulative(np.cumprod),
    "cumsum": _cumulative(np.cumsum),
    "div": _div,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "expand_dims": lambda params, x: np.expand_dims(x, params["dimensions"]),
    "gather": _gather,
    "integer_pow": lambda params, x: x ** float(params["y"]),
    "iota": _iota,
    "pad": _pad,
    "reduce_and": _reduction(np.all),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_or": _reduction(np.any),
    "reduce_prod": _reduction(np.prod),
    "reduce_sum": _reduction(np.sum),
    "reshape": _reshape,
    "rev": lambda params, x: np.flip(x, params["dimensions"]),
    "round": _round,
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "squeeze": lambda params, x: x.squeeze(params["dimensions"]),
    "stack": lambda params, *xs: np.stack(xs, params["axis"]),
    "transpose": lambda params, x: x.transpose(params["permutation"]),
    "unstack": _unstack,
}

ENTRYWISE = frozenset(
    (
        *_ENTRYWISE,
        *("cos", "sin", "tan", "cosh", "sinh", "tanh", "exp", "exp2", "expm1", "log", "log1p"),
        *("sqrt", "cbrt", "square", "sign", "abs", "floor", "ceil", "div", "round", "integer_pow"),
        "convert_element_type",
    )
)
"""Operations that take arrays entry by entry, whatever their axes."""
