"""A program on small arrays, run on lanes: each entry of each array is a number of all members.

The program is a traced function (JAX's intermediate language). Equations fall into a few kinds:

- those that only move entries (slices, reshapes, concatenations, gathers with known indices) are
  run once on *labels* instead of numbers, and say which entry goes where;
- elementwise ones are run entry by entry, sums and products of matrices are written out;
- complex numbers are pairs of entries (:mod:`~probode.programs.unroll.complex_numbers`);
- calls are entered; a branch chosen per member becomes a selection; loops of known length are
  unrolled.

What a member's number decides (a loop until convergence, an index) has no such form:
:class:`Unsupported` says so.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from probode.base.jax_inside import (
    Jaxpr,
    Unreadable,
    bind,
    kind,
    operation,
    reading,
    those,
    walk,
)
from probode.programs.unroll import algebra, complex_numbers
from probode.programs.unroll import entries as e
from probode.programs.unroll.entries import Entry, Lanes, Unsupported, Value, as_lanes
from probode.programs.unroll.known import run_on_arrays

LONGEST_LOOP = 32
"""Loops of at most this many rounds are unrolled."""


def lift(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of (trees of) arrays with :class:`Lanes` in their place."""
    leaves, tree = jax.tree.flatten(args)
    shapes = [_shape_of(leaf) for leaf in leaves]
    closed, out = jax.make_jaxpr(
        lambda *flat: function(*jax.tree.unflatten(tree, flat)), return_shape=True
    )(*shapes)
    values = [leaf if isinstance(leaf, Lanes) else np.asarray(leaf) for leaf in leaves]
    results = run(closed.jaxpr, closed.consts, values)
    return jax.tree.unflatten(jax.tree.structure(out), [as_lanes(x) for x in results])


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    if not isinstance(leaf, Lanes):
        return jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype)
    arrays = [x for x in leaf.entries if not e.constant(x)]
    dtype = arrays[0].dtype if arrays else np.asarray(leaf.entries).dtype
    return jax.ShapeDtypeStruct(leaf.shape, dtype)


def run(jaxpr: Jaxpr, constants: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
    """Run a program on lanes; raises :class:`Unsupported`."""
    try:
        with reading("programs that can be written out", _BY_XLA, (Unsupported,)):
            return _run(jaxpr, constants, inputs)
    except Unreadable as error:
        raise Unsupported(str(error)) from error


_BY_XLA = "steps of small systems, and ensembles of them, are evaluated by XLA"


def _run(jaxpr: Jaxpr, constants: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
    def known(number: Any, _: Any) -> Value:
        return number if isinstance(number, Lanes) else np.asarray(number)

    return walk(jaxpr, constants, inputs, known, _evaluate)


def _evaluate(equation: Any, operands: list[Value]) -> Sequence[Value]:
    name = operation(equation)
    if name in _SPECIAL and not complex_numbers.is_complex(equation):
        return _SPECIAL[name](equation, operands)
    if name != "fft" and all(isinstance(x, np.ndarray) for x in operands):
        return run_on_arrays(equation, operands, equation.params)
    if name in _MOVES:
        return _move(equation, operands)
    if complex_numbers.is_complex(equation):
        return complex_numbers.evaluate(equation, operands)
    if name in _REDUCTIONS:
        return _reduce(equation, operands[0])
    if name in _CUMULATIVE:
        return _cumulate(equation, operands[0])
    if name in _ELEMENTWISE:
        dtype = kind(equation.outvars[0])[1]
        doubles = dtype.kind in "biu" or dtype == np.float64
        if not doubles and not (name in e.NOT_ROUNDED and dtype == np.float32):
            raise Unsupported(f"{name!r} in {dtype}: constants are doubles")
        return [_elementwise(equation, operands)]
    raise Unsupported(f"the operation {name!r} has no form on lanes")


_MOVES, _ELEMENTWISE = those("moving"), those("entrywise")


def _move(equation: Any, operands: list[Value]) -> list[Lanes]:
    """Run the equation on labels, and fetch what they stand for."""
    name = operation(equation)
    data = {"gather": 1, "dynamic_slice": 1, "dynamic_update_slice": 2, "scatter": 3}
    pool: list[Entry] = []
    labelled: list[Any] = []
    for i, operand in enumerate(operands):
        if i >= data.get(name, len(operands)) or (name == "scatter" and i == 1):
            if isinstance(operand, Lanes):
                if name == "gather":
                    return _choose_rows(equation, operands)
                raise Unsupported(f"{name!r} at an index that differs between members")
            labelled.append(operand)
            continue
        lanes = as_lanes(operand)
        labels = len(pool) + np.arange(len(lanes.entries)).reshape(lanes.shape)
        labelled.append(labels)
        pool.extend(lanes.entries)
    if "fill_value" in equation.params or name == "scatter":
        parameters = {**equation.params, "mode": lax.GatherScatterMode.CLIP}
        if name == "gather":
            parameters["fill_value"] = None
        else:
            parameters.update(update_jaxpr=None, update_consts=())
    else:
        parameters = equation.params
    moved = run_on_arrays(equation, labelled, parameters)
    return [Lanes(x.shape, [pool[i] for i in x.reshape(-1)]) for x in moved]


def _choose_rows(equation: Any, operands: list[Value]) -> list[Lanes]:
    """``x[i]`` along one axis of known length, ``i`` a number of each member: one of all rows."""
    how = equation.params["dimension_numbers"]
    axes, size = how.start_index_map, equation.params["slice_sizes"]
    x, index = operands[0], as_lanes(operands[1])
    batched = how.operand_batching_dims or how.start_indices_batching_dims
    if len(axes) != 1 or size[axes[0]] != 1 or batched:
        raise Unsupported("'gather' at indices that differ between members")
    shape = kind(equation.outvars[0])[0]
    places = np.arange(len(index.entries)).reshape(index.shape[:-1])
    loose = [1 if i in how.offset_dims else n for i, n in enumerate(shape)]
    which = np.broadcast_to(places.reshape(loose), shape).reshape(-1)
    length = kind(equation.invars[0])[0][axes[0]]
    rows = [_move(equation, [x, np.full(index.shape, k)])[0].entries for k in range(length)]
    results = list(rows[-1])
    for k in reversed(range(length - 1)):
        here = [e.equal(i, k) for i in index.entries]
        results = [e.choose(here[i], y, z) for i, y, z in zip(which, rows[k], results, strict=True)]
    return [Lanes(shape, results)]


_ARITHMETIC: dict[str, Callable[..., Entry]] = {
    "add": e.add,
    "add_any": e.add,
    "sub": e.sub,
    "mul": e.mul,
    "neg": e.neg,
    "square": e.square,
    "one_minus_square": lambda x: e.mul(e.add(1.0, x), e.sub(1.0, x)),
    "polynomial": lambda x, *terms: _horner(x, terms),
    "stop_gradient": lambda x: x,
    "optimization_barrier": lambda x: x,
    "select_n": lambda which, *cases: _select(which, cases),
    "is_finite": lambda x: e.compare("lt", lambda a, b: a < b, e.absolute(x), np.inf),
}
"""Operations that know their constants."""


def _horner(x: Entry, terms: Sequence[Entry]) -> Entry:
    total = terms[-1]
    for term in reversed(terms[:-1]):
        total = e.add(e.mul(total, x), term)
    return total


def _select(which: Entry, cases: Sequence[Entry]) -> Entry:
    if e.constant(which):
        return cases[int(which)]
    if len(cases) != 2 or which.dtype != bool:
        raise Unsupported("a choice among more than two branches")
    return e.choose(which, cases[1], cases[0])


def _elementwise(equation: Any, operands: list[Value]) -> Lanes:
    shape = kind(equation.outvars[0])[0]
    columns = [_spread(as_lanes(x), shape) for x in operands]
    types = [kind(atom)[1] for atom in equation.invars]
    exact = _ARITHMETIC.get(operation(equation))
    inverses: dict[int, Entry] = {}
    divides = Counter(map(id, columns[-1]))

    def one(*numbers: Entry) -> Entry:
        if exact is not None:
            return exact(*numbers)
        if operation(equation) == "div":
            return _divide(numbers[0], numbers[1], inverses, divides[id(numbers[1])])
        return _bind(equation, numbers, types)

    return Lanes(shape, [one(*numbers) for numbers in zip(*columns, strict=True)])


def _divide(a: Entry, b: Entry, inverses: dict[int, Entry], times: int) -> Entry:
    """``a / b``; where a number divides several others, by its reciprocal."""
    if e.zero(b):
        return float(np.divide(a, b)) if e.constant(a) else e.apply("div", a, e.full(b, a, a))
    if e.constant(b) or e.zero(a) or times == 1:
        return e.div(a, b)
    if id(b) not in inverses:
        inverses[id(b)] = e.reciprocal(b)
    return e.mul(a, inverses[id(b)])


def _bind(equation: Any, numbers: Sequence[Entry], types: Sequence[Any]) -> Entry:
    arrays = [x for x in numbers if not e.constant(x)]
    if not arrays:
        with jax.ensure_compile_time_eval():
            known = [jnp.asarray(x, dtype) for x, dtype in zip(numbers, types, strict=True)]
            return np.asarray(bind(equation.primitive, known, equation.params)[0]).item()
    if isinstance(arrays[0], e.Symbol):
        dtype = kind(equation.outvars[0])[1]
        return arrays[0].operation(operation(equation), numbers, types, dtype, equation.params)
    wide = [
        lax.full(arrays[0].shape, x, dtype) if e.constant(x) else x
        for x, dtype in zip(numbers, types, strict=True)
    ]
    return bind(equation.primitive, wide, equation.params)[0]


def _spread(lanes: Lanes, shape: tuple[int, ...]) -> list[Entry]:
    if lanes.shape == shape:
        return lanes.entries
    labels = np.arange(len(lanes.entries)).reshape(lanes.shape)
    return [lanes.entries[i] for i in np.broadcast_to(labels, shape).reshape(-1)]


_BITS = 62
"""Labels that one whole number can hold."""


def _scatter_add(equation: Any, operands: list[Value]) -> list[Value]:
    """``x.at[i].add(v)``: where each update goes is found out with labels, powers of two.

    A place may get several updates, and those outside of the array go nowhere, as JAX has it.
    """
    if all(isinstance(operand, np.ndarray) for operand in operands):
        return [*run_on_arrays(equation, operands, equation.params)]
    where = operands[1]
    if isinstance(where, Lanes):
        raise Unsupported("'scatter-add' at indices that are data")
    into, updates = as_lanes(operands[0]), as_lanes(operands[2])
    how = {
        name: equation.params[name]
        for name in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    }
    results = list(into.entries)
    for first in range(0, len(updates.entries), _BITS):
        own = updates.entries[first : first + _BITS]
        labels = np.zeros(len(updates.entries), np.int64)
        labels[first : first + len(own)] = 2 ** np.arange(len(own))
        with jax.ensure_compile_time_eval():
            found = lax.scatter_add(
                jnp.zeros(into.shape, np.int64), where, labels.reshape(updates.shape), **how
            )
        for i, label in enumerate(np.asarray(found).reshape(-1).tolist()):
            for k, update in enumerate(own):
                if label >> k & 1:
                    results[i] = e.add(results[i], update)
    return [Lanes(into.shape, results)]


_REDUCTIONS: dict[str, Callable[[Entry, Entry], Entry]] = {
    "reduce_sum": e.add,
    "reduce_prod": e.mul,
    "reduce_max": e.largest,
    "reduce_min": e.smallest,
    "reduce_and": lambda a, b: e.choose(a, b, False),
    "reduce_or": lambda a, b: e.choose(a, True, b),
}


def _reduce(equation: Any, operand: Value) -> list[Lanes]:
    combine = _REDUCTIONS[operation(equation)]
    lanes, axes = as_lanes(operand), equation.params["axes"]
    kept = [i for i in range(len(lanes.shape)) if i not in axes]
    shape = tuple(lanes.shape[i] for i in kept)
    results: dict[tuple[int, ...], Entry] = {}
    for index, entry in zip(np.ndindex(lanes.shape), lanes.entries, strict=True):
        at = tuple(index[i] for i in kept)
        results[at] = combine(results[at], entry) if at in results else entry
    return [Lanes(shape, [results[at] for at in np.ndindex(shape)])]


_CUMULATIVE = {
    "cumsum": e.add,
    "cumprod": e.mul,
    "cummax": e.largest,
    "cummin": e.smallest,
}


def _cumulate(equation: Any, operand: Value) -> list[Lanes]:
    combine, lanes = _CUMULATIVE[operation(equation)], as_lanes(operand)
    labels = np.moveaxis(
        np.arange(len(lanes.entries)).reshape(lanes.shape), equation.params["axis"], -1
    )
    results = list(lanes.entries)
    for line in labels.reshape(-1, labels.shape[-1]).tolist():
        ordered = line[::-1] if equation.params["reverse"] else line
        for before, i in pairwise(ordered):
            results[i] = combine(results[before], results[i])
    return [Lanes(lanes.shape, results)]


def _cond(equation: Any, operands: list[Value]) -> Sequence[Value]:
    """Every branch, and a selection; or the one branch that is known to be taken."""
    which, *inputs = operands
    branches = equation.params["branches"]
    if isinstance(which, np.ndarray):
        branch = branches[int(np.clip(which, 0, len(branches) - 1))]
        return _run(branch.jaxpr, branch.consts, inputs)
    if len(branches) != 2:
        raise Unsupported("a choice among more than two branches")
    index = which.entries[0]
    condition = index if index.dtype == bool else e.apply("ne", index, e.full(0, index, index))
    no, yes = (map(as_lanes, _run(b.jaxpr, b.consts, inputs)) for b in branches)
    return [
        Lanes(
            a.shape, [e.choose(condition, x, y) for x, y in zip(a.entries, b.entries, strict=True)]
        )
        for a, b in zip(yes, no, strict=True)
    ]


def _scan(equation: Any, operands: list[Value]) -> list[Value]:
    """A loop of known length, unrolled."""
    how, body = equation.params, equation.params["jaxpr"]
    length = how["length"]
    if "num_consts" in how:
        consts, carried = how["num_consts"], how["num_carry"]
    else:  # since JAX 0.11: a tree of constants, what is carried, and series
        consts, carried, _ = map(len, how["ft_in"].unpack())
    if length > LONGEST_LOOP:
        raise Unsupported(f"a loop of {length} rounds")
    fixed, carry = operands[:consts], operands[consts : consts + carried]
    series = [as_lanes(x) for x in operands[consts + carried :]]
    collected: list[list[Lanes]] = []
    for k in reversed(range(length)) if how["reverse"] else range(length):
        results = _run(body.jaxpr, body.consts, [*fixed, *carry, *(_part(x, k) for x in series)])
        carry = results[:carried]
        collected.append([as_lanes(x) for x in results[carried:]])
    if how["reverse"]:
        collected.reverse()
    stacked = [
        Lanes((length, *rows[0].shape), [x for row in rows for x in row.entries])
        for rows in zip(*collected, strict=True)
    ]
    return [*carry, *stacked]


def _part(lanes: Lanes, k: int) -> Lanes:
    size = len(lanes.entries) // lanes.shape[0]
    return Lanes(lanes.shape[1:], lanes.entries[k * size : (k + 1) * size])


def _linear_solve(equation: Any, operands: list[Value]) -> list[Value]:
    """``x`` with ``A x = b`` by elimination; ``A`` from the products that the equation knows.

    The decomposition that the program has made for it is not needed.
    """
    counts, product = equation.params["const_lengths"], equation.params["jaxprs"].matvec
    given, right = operands[: counts.matvec], operands[sum(counts) :]
    if len(right) != 1:
        raise Unsupported("a linear system of several arrays")
    b = as_lanes(right[0])
    size = len(b.entries)
    if size > _LARGEST_SYSTEM:
        raise Unsupported(f"a linear system of {size} unknowns")
    columns = [
        as_lanes(_run(product.jaxpr, product.consts, [*given, unit.reshape(b.shape)])[0]).entries
        for unit in np.eye(size)
    ]
    rows = [list(row) for row in zip(*columns, strict=True)]
    solution = algebra.eliminate([[*row, x] for row, x in zip(rows, b.entries, strict=True)])
    return [Lanes(b.shape, solution)]


_LARGEST_SYSTEM = 64


def _several(
    on_lanes: Callable[[Any, list[Value]], Sequence[Value]],
) -> Callable[[Any, list[Value]], Sequence[Value]]:
    """On known numbers at once, else by ``on_lanes``."""

    def evaluate(equation: Any, operands: list[Value]) -> Sequence[Value]:
        if all(isinstance(x, np.ndarray) for x in operands):
            return run_on_arrays(equation, operands, equation.params)
        return on_lanes(equation, operands)

    return evaluate


_SPECIAL: dict[str, Callable[[Any, list[Value]], Sequence[Value]]] = {
    "dot_general": _several(algebra.dot_general),
    "qr": algebra.qr,
    "triangular_solve": algebra.triangular_solve,
    "lu": algebra.lu,
    "sort": _several(algebra.sort),
    "custom_linear_solve": _linear_solve,
    "cond": _cond,
    "scan": _scan,
    "scatter-add": _scatter_add,
    "platform_index": lambda equation, operands: [np.asarray(0, np.int32)],
}
