"""What the results of JAX's operations depend on, given what their operands depend on.

==================  =============================================================================
moves entries       the operation itself, on row numbers
entry by entry      the union of the operands; where a known factor is zero: nothing
sum, maximum, ...   the union along the axes
sum so far          the union of all entries before
product of arrays   of a known matrix its nonzeros decide; else the union along what is summed
convolution         of a known kernel its nonzeros decide
set, add at places  places that are known: exactly; else everything
==================  =============================================================================

A rule takes an equation and its operands: a :class:`Constant`, ``FREE`` (depends on ``t`` at most;
its value is not known) or a :class:`Dependence`. One without a rule has results that depend on all
that any of its operands does.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import jax
import numpy as np

from probode.base.jax_inside import IN_NUMPY, bind, kind, operation, those
from probode.programs.constants import Constant
from probode.programs.sparsity.dependence import (
    MOST,
    Dependence,
    everything,
    grouped,
    nothing,
    paired,
    reduced,
    spread,
    together,
    united,
)

FREE = object()
"""What does not depend on ``y``, with a value that is not known."""

_MOST_TAPS = 200
"""Entries of a kernel, or of a window, that are looked at one by one."""


def dependent(operands: Sequence[Any]) -> list[Dependence]:
    """The operands that depend on ``y``."""
    return [x for x in operands if isinstance(x, Dependence)]


def rule_for(name: str) -> Callable[[Any, list[Any]], list[Any]]:
    """The rule of an operation."""
    return _RULES.get(name, _everything)


def rows_of(operands: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> tuple[list[Any], Any]:
    """Row numbers of all operands in one pattern; of those that do not depend on ``y``, none."""
    found, of = together(dependent(operands))
    rest = iter(found)
    pairs = zip(operands, shapes, strict=True)
    return [next(rest) if isinstance(x, Dependence) else nothing(s) for x, s in pairs], of


def _shapes(atoms: Sequence[Any]) -> list[tuple[int, ...]]:
    return [kind(atom)[0] for atom in atoms]


def _everything(equation: Any, operands: list[Any]) -> list[Any]:
    inputs = dependent(operands)
    return [everything(inputs, shape) for shape in _shapes(equation.outvars)]


def _entrywise(equation: Any, operands: list[Any]) -> list[Any]:
    if len(equation.outvars) > 1:  # a barrier
        return operands
    (shape,) = _shapes(equation.outvars)
    return [united(shape, dependent(operands))]


def _product(equation: Any, operands: list[Any]) -> list[Any]:
    """Entry by entry; nothing is left where a known array is zero.

    A number that is zero may be a parameter, of which there will be others: it does not count.
    """
    (result,) = _entrywise(equation, operands)
    for x in operands:
        if isinstance(x, Constant) and x.value.ndim > 0 and not np.all(x.value):
            result = result.moved(np.where(x.value == 0, np.int32(-1), result.rows))
    return [result]


def _select(equation: Any, operands: list[Any]) -> list[Any]:
    """The case that is chosen where that is known, else all of them."""
    which, *cases = operands
    (shape,) = _shapes(equation.outvars)
    if not dependent(cases):
        return [FREE]
    if not isinstance(which, Constant):
        return [united(shape, dependent(cases))]
    rows, of = rows_of(cases, [shape] * len(cases))
    chosen = np.broadcast_to(which.value.astype(int), shape)
    result = rows[0]
    for k, case in enumerate(rows[1:], 1):
        result = np.where(chosen == k, case, result)
    return [Dependence(result, of)]


def _moving(equation: Any, operands: list[Any]) -> list[Any]:
    """The operation itself on row numbers, with the values of where to."""
    name = operation(equation)
    count = 1 if name in ("dynamic_slice", "gather") else len(operands)
    arrays, places = operands[:count], operands[count:]
    if not dependent(arrays):
        return [FREE] * len(equation.outvars)
    if not all(isinstance(x, Constant) for x in places):
        return _everything(equation, arrays)
    rows, of = rows_of(arrays, _shapes(equation.invars)[:count])
    found = IN_NUMPY[name](equation.params, *rows, *(x.value for x in places))
    return [Dependence(x, of) for x in (found if isinstance(found, list) else [found])]


def _update_slice(equation: Any, operands: list[Any]) -> list[Any]:
    starts = operands[2:]
    if not dependent(operands[:2]):
        return [FREE]
    if not all(isinstance(x, Constant) for x in starts):
        return _everything(equation, operands[:2])
    (array, update), of = rows_of(operands[:2], _shapes(equation.invars)[:2])
    key = []
    for start, n, size in zip(starts, array.shape, update.shape, strict=True):
        first = min(max(int(start.value), 0), n - size)
        key.append(slice(first, first + size))
    result = np.array(array)
    result[tuple(key)] = update
    return [Dependence(result, of)]


def _scatter(equation: Any, operands: list[Any]) -> list[Any]:
    """Updates go where a gather with the same numbers would take them from."""
    array, places, updates = operands
    if not dependent((array, updates)):
        return [FREE]
    if not isinstance(places, Constant):
        return _everything(equation, [array, updates])
    shape, _, sizes = _shapes(equation.invars)
    at = _places(equation.params, shape, sizes, places.value).reshape(-1)
    (old, new), of = rows_of((array, updates), (shape, sizes))
    old, new, inside = old.reshape(-1), new.reshape(-1), at >= 0
    at, new = at[inside], new[inside]
    if operation(equation) == "scatter" and len(np.unique(at)) == len(at):
        result = np.array(old)
        result[at] = new
        return [Dependence(result.reshape(shape), of)]
    entry = np.concatenate([np.arange(len(old)), at])
    return [paired(shape, entry, np.concatenate([old, new]), of)]


def _places(params: Any, shape: Any, sizes: Any, places: np.ndarray) -> np.ndarray:
    """Which entry of the array each update goes to; ``-1``: to none."""
    numbers = params["dimension_numbers"]
    hidden = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = iter(numbers.update_window_dims)
    slices = [1 if axis in hidden else sizes[next(windows)] for axis in range(len(shape))]
    found: Any = jax.lax.gather(
        np.arange(prod(shape), dtype=np.int32).reshape(shape),
        places,
        jax.lax.GatherDimensionNumbers(
            numbers.update_window_dims,
            numbers.inserted_window_dims,
            numbers.scatter_dims_to_operand_dims,
            numbers.operand_batching_dims,
            numbers.scatter_indices_batching_dims,
        ),
        slices,
        mode=params["mode"],
        fill_value=-1,
    )
    return np.asarray(found)


def _reduction(equation: Any, operands: list[Any]) -> list[Any]:
    return [reduced(operands[0], equation.params["axes"])]


def _cumulative(equation: Any, operands: list[Any]) -> list[Any]:
    (x,), axis = operands, equation.params["axis"]
    n = x.shape[axis]
    if x.rows.size * n > MOST:
        return [spread(x, (axis,), x.shape)]
    before, here = np.tril_indices(n)[::-1]
    if equation.params["reverse"]:
        before, here = n - 1 - before, n - 1 - here
    entries = np.moveaxis(np.arange(x.rows.size).reshape(x.shape), axis, 0)
    rows = np.moveaxis(x.rows, axis, 0)
    return [paired(x.shape, entries[here].reshape(-1), rows[before].reshape(-1), x.of)]


def _sort(equation: Any, operands: list[Any]) -> list[Any]:
    """Each result has the entries of its own operand, somewhere along the axis."""
    axis = equation.params["dimension"]
    return [spread(x, (axis,), x.shape) if isinstance(x, Dependence) else FREE for x in operands]


def _fft(equation: Any, operands: list[Any]) -> list[Any]:
    (shape,), rank = _shapes(equation.outvars), len(operands[0].shape)
    return [spread(operands[0], range(rank - len(equation.params["fft_lengths"]), rank), shape)]


def _dot(equation: Any, operands: list[Any]) -> list[Any]:
    """``out[b, i, j] = Σ_k x[b, i, k] y[b, k, j]``, with any number of axes in each of these."""
    (shape,) = _shapes(equation.outvars)
    summed, batch = equation.params["dimension_numbers"]
    parts = []
    for side, x in enumerate(operands):
        if not isinstance(x, Dependence):
            continue
        other = operands[1 - side]
        if isinstance(other, Constant) and not np.all(other.value):
            part = _by_matrix(x, other.value, summed, batch, side, shape)
        else:
            part = None
        parts.append(_along_sum(x, summed, batch, side, shape) if part is None else part)
    return [united(shape, parts)]


def _along_sum(
    x: Dependence, summed: Any, batch: Any, side: int, shape: tuple[int, ...]
) -> Dependence:
    """The union along what is summed, for every place along the free axes of the other one."""
    free = [a for a in range(len(x.shape)) if a not in (*summed[side], *batch[side])]
    order = [*batch[side], *free]
    less = reduced(x.moved(x.rows.transpose(*order, *summed[side])), range(len(order), x.rows.ndim))
    others = len(shape) - len(order)
    start = len(batch[side]) if side == 1 else len(order)
    rows = np.expand_dims(less.rows, tuple(range(start, start + others)))
    return less.moved(np.broadcast_to(rows, shape))


def _by_matrix(
    x: Dependence, matrix: np.ndarray, summed: Any, batch: Any, side: int, shape: tuple[int, ...]
) -> Dependence | None:
    """Only what the nonzeros of the other operand reach; ``None``: these are too many."""
    other = 1 - side

    def arranged(array: np.ndarray, side: int) -> np.ndarray:
        free = [a for a in range(array.ndim) if a not in (*summed[side], *batch[side])]
        array = array.transpose(*batch[side], *free, *summed[side])
        ends = np.cumsum([0, len(batch[side]), len(free), len(summed[side])])
        sizes = [prod(array.shape[a:b]) for a, b in pairwise(ends)]
        return array.reshape(sizes)

    rows, weights = arranged(x.rows, side), arranged(matrix, other)
    b, i, k = np.nonzero(weights)
    width = rows.shape[1]
    if len(b) * width > MOST:
        return None
    entries = np.arange(prod(shape)).reshape(
        len(rows), *((width, weights.shape[1]) if side == 0 else (weights.shape[1], width))
    )
    entry = entries[b, :, i] if side == 0 else entries[b, i, :]
    return paired(shape, entry.reshape(-1), rows[b, :, k].reshape(-1), x.of)


def _sparse_dot(equation: Any, operands: list[Any]) -> list[Any]:
    """A sparse matrix of JAX's, with known places of its entries, times an array."""
    (shape,), (data, *places, x) = _shapes(equation.outvars), operands
    ((own,), (axis,)), batch = equation.params["dimension_numbers"]
    plain = batch == ((), ()) and len(_shapes(equation.invars)[0]) == 1
    if not plain or dependent((data, *places)) or not all(isinstance(p, Constant) for p in places):
        return _everything(equation, operands)
    if operation(equation) == "bcsr_dot_general":
        columns, ends = (place.value for place in places)
        pair = [np.repeat(np.arange(len(ends) - 1), np.diff(ends)), columns[: ends[-1]]]
    else:
        pair = list(places[0].value.T)
    k, i = pair[own], pair[1 - own]
    rows = np.moveaxis(x.rows, axis, 0).reshape(x.shape[axis], -1)
    entries = np.arange(prod(shape)).reshape(-1, rows.shape[1])
    inside = (k < len(rows)) & (i < len(entries))  # others are padding
    i, k = i[inside], k[inside]
    return [paired(shape, entries[i].reshape(-1), rows[k].reshape(-1), x.of)]


def _convolution(equation: Any, operands: list[Any]) -> list[Any]:
    """One entry of the kernel at a time: convolved with it, row numbers are but moved."""
    (shape,), params = _shapes(equation.outvars), equation.params
    x, kernel = operands
    _, sizes = _shapes(equation.invars)
    outputs = params["dimension_numbers"].rhs_spec[0]
    taps = [range(n) if axis != outputs else (slice(None),) for axis, n in enumerate(sizes)]
    count = prod(sizes) // sizes[outputs]
    known = isinstance(x, Dependence) and not isinstance(kernel, Dependence)
    if not known or count > _MOST_TAPS or params["batch_group_count"] != 1:
        return _everything(equation, operands)
    weights = kernel.value != 0 if isinstance(kernel, Constant) else np.ones(sizes, bool)
    numbers, found = (x.rows + 1).astype(float), []
    for choice in np.ndindex(*(len(tap) for tap in taps)):
        tap = tuple(slots[i] for slots, i in zip(taps, choice, strict=True))
        single = np.zeros(sizes)
        single[tap] = weights[tap]
        if single.any():
            plain = {**params, "preferred_element_type": None}
            (moved,) = bind(equation.primitive, [jax.numpy.asarray(numbers), single], plain)
            found.append(np.rint(np.asarray(moved)).astype(np.int32).reshape(-1) - 1)
    if not found:
        return [FREE]
    return [grouped(shape, np.stack(found, axis=1), x.of)]


def _window(equation: Any, operands: list[Any]) -> list[Any]:
    """One place of the window at a time."""
    (shape,), params, (x,) = _shapes(equation.outvars), equation.params, operands
    between = [n - 1 for n in params["base_dilation"]]
    ends = [(*pair, n) for pair, n in zip(params["padding"], between, strict=True)]
    if prod(params["window_dimensions"]) > _MOST_TAPS:
        return _everything(equation, operands)
    wide = IN_NUMPY["pad"]({"padding_config": ends}, x.rows, np.int32(-1))
    found = []
    for place in np.ndindex(*params["window_dimensions"]):
        starts = [i * n for i, n in zip(place, params["window_dilation"], strict=True)]
        bounds = zip(starts, params["window_strides"], shape, strict=True)
        key = tuple(slice(start, start + (n - 1) * by + 1, by) for start, by, n in bounds)
        found.append(wide[key].reshape(-1))
    return [grouped(shape, np.stack(found, axis=1), x.of)]


_RULES: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
    **dict.fromkeys(those("entrywise", "each"), _entrywise),
    **dict.fromkeys(those("moving") & IN_NUMPY.keys(), _moving),
    **dict.fromkeys(those("reduction"), _reduction),
    **dict.fromkeys(those("cumulative"), _cumulative),
    **dict.fromkeys(("scatter", "scatter-add", "scatter-sub", "scatter-mul"), _scatter),
    **dict.fromkeys(("scatter-max", "scatter-min"), _scatter),
    "mul": _product,
    "select_n": _select,
    "dynamic_update_slice": _update_slice,
    "sort": _sort,
    "fft": _fft,
    "dot_general": _dot,
    **dict.fromkeys(("bcoo_dot_general", "bcsr_dot_general"), _sparse_dot),
    "conv_general_dilated": _convolution,
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _window),
}
