"""The sparsity pattern of ``∂f/∂y``: a program walked with what each result depends on.

The pattern holds for all ``t`` and ``y``: it has every entry that can be nonzero, and where a
program combines numbers entry by entry (stencils, reactions) no others. What has no derivative by
``y`` (comparisons, whole numbers, ``floor``) does not count. Numbers that a program holds, and its
parameters, are known: places among them decide which entries are taken, and zeros of an array (a
matrix, a mask) leave entries out. With another such array the pattern is to be found anew.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from probode.base.jax_inside import (
    Closed,
    Unreadable,
    called,
    equations,
    kind,
    operation,
    program_of,
    reading,
    rule_of_jvp,
    those,
    walk,
)
from probode.base.precision import double_precision, is_traced
from probode.programs.constants import Constant, computed_later
from probode.programs.field import Field
from probode.programs.sparsity.dependence import (
    Dependence,
    TooFull,
    each,
    everything,
    nothing,
    pattern,
    reduced,
    united,
)
from probode.programs.sparsity.rules import FREE, dependent, rows_of, rule_for

_MOST_UNROLLED = 5_000
"""Equations up to which a loop is written out: a second or so."""
_MOST_ROUNDS = 40
"""Rounds after which the dependencies of a loop are taken as full."""


def sparsity(field: Field) -> Any | None:
    """Where ``∂f/∂y`` of a vector field may be nonzero, for its parameters and any ``t``, ``y``.

    Returns
    -------
    A matrix ``(d, m)`` of truths, a :class:`scipy.sparse.csr_array` with sorted indices, where
    ``y`` has ``m`` entries. ``None`` if it has more than 50 million entries (it is as good as full
    then), or if the program cannot be read.
    """
    jaxpr = field.program.jaxpr
    try:
        with (
            double_precision(),
            np.errstate(all="ignore"),
            reading(*_LOOKED_FOR, expected=(TooFull,)),
        ):
            (m,) = kind(jaxpr.invars[1])[0]
            arguments = [_known(value, None) for value in field.args]
            closed = Closed(jaxpr, field.constants)
            (result,) = _run(closed, [FREE, each(m), *arguments])
            return _handed_out(result, field.d, m)
    except (TooFull, Unreadable):
        return None


_LOOKED_FOR = ("programs with dependencies", "Jacobians are taken as full")


def _handed_out(result: Any, d: int, m: int) -> Any:
    if not isinstance(result, Dependence):
        result = Dependence(nothing((d,)), each(m).of)
    found = pattern(result)[:d]
    found.sort_indices()
    return found


def _known(value: Any, _: Any) -> Any:
    """What stands for a number that the program holds; one of a trace around is not known."""
    return FREE if is_traced(value) else Constant(value)


def _entered(equation: Any) -> Closed | None:
    # Derivatives are those of its rule, which need not have to do with what it computes.
    return None if operation(equation) == "custom_jvp_call" else called(equation)


def _run(closed: Closed, inputs: Sequence[Any]) -> list[Any]:
    return walk(closed.jaxpr, closed.consts, inputs, _known, _apply, _entered)


def _apply(equation: Any, operands: list[Any]) -> list[Any]:
    """What the results of an equation depend on."""
    name, smooth = operation(equation), [_is_smooth(v) for v in equation.outvars]
    if all(isinstance(x, Constant) for x in operands):
        return computed_later(equation, operands)
    if not dependent(operands) or not any(smooth) or name in _FLAT:
        return [FREE] * len(smooth)
    rule = _OF_PROGRAMS.get(name) or rule_for(name)
    results = rule(equation, operands)
    pairs = zip(results, smooth, strict=True)
    return [x if of_numbers or isinstance(x, Constant) else FREE for x, of_numbers in pairs]


_FLAT = those("flat")


def _is_smooth(variable: Any) -> bool:
    """Whether it is of a type that has derivatives."""
    return bool(np.issubdtype(kind(variable)[1], np.inexact))


def _all_of_it(equation: Any, operands: list[Any]) -> list[Any]:
    inputs = dependent(operands)
    return [everything(inputs, kind(v)[0]) for v in equation.outvars]


def _rule_of_its_own(equation: Any, operands: list[Any]) -> list[Any]:
    """A derivative rule is a program of values and directions: the latter are followed."""
    first = equation.params.get("num_consts", 0)
    operands = operands[first:]
    rule = equation.params.get("jvp_jaxpr_fun")
    found = None if rule is None else rule_of_jvp(rule, len(operands))
    if found is None:
        return _all_of_it(equation, operands)
    program, zeros = found
    values = [FREE if isinstance(x, Dependence) else x for x in operands]
    directions = [x if isinstance(x, Dependence) else FREE for x in operands]
    results = _run(program, [*values, *directions])
    moved = iter(results[len(zeros) :])
    return [FREE if zero else next(moved) for zero in zeros]


def _branches(equation: Any, operands: list[Any]) -> list[Any]:
    """The branch that is taken, if that is known; else the union of all."""
    which, *inputs = operands
    programs = _programs(equation.params["branches"])
    if isinstance(which, Constant):
        return _run(programs[int(np.clip(which.value, 0, len(programs) - 1))], inputs)
    found = [_run(program, inputs) for program in programs]
    return [
        _any_of(kind(v)[0], results)
        for v, results in zip(equation.outvars, zip(*found, strict=True), strict=True)
    ]


def _programs(params: Sequence[Any]) -> list[Closed]:
    return [closed for closed in map(program_of, params) if closed is not None]


def _any_of(shape: tuple[int, ...], values: Sequence[Any]) -> Any:
    """One of these values, it is not known which."""
    found = dependent(values)
    return united(shape, found) if found else FREE


def _scan(equation: Any, operands: list[Any]) -> list[Any]:
    """Written out where it is short; else its dependencies are followed until they stay."""
    params, (body,) = equation.params, _programs((equation.params["jaxpr"],))
    ends = np.cumsum([params["num_consts"], params["num_carry"]])
    fixed, carry, rows = operands[: ends[0]], operands[ends[0] : ends[1]], operands[ends[1] :]
    stacked = [kind(v)[0] for v in equation.outvars[len(carry) :]]
    length, count = params["length"], len(list(equations(body.jaxpr)))
    if length * count > _MOST_UNROLLED:
        along = [_along(x) for x in rows]
        carry, outputs = _until_they_stay(body, fixed, carry, along)
        return [*carry, *(_repeated(x, shape) for x, shape in zip(outputs, stacked, strict=True))]
    order = range(length)[:: -1 if params["reverse"] else 1]
    collected: list[list[Any]] = [[FREE] * length for _ in stacked]
    for i in order:
        inputs = [_at(x, i) for x in rows]
        results = _run(body, [*fixed, *carry, *inputs])
        # Numbers that are put off would wait for one another.
        last = results[: len(carry)]
        carry = [Constant(x.value) if isinstance(x, Constant) else x for x in last]
        for values, x in zip(collected, results[len(carry) :], strict=True):
            values[i] = x
    return [*carry, *(_stack(x, shape) for x, shape in zip(collected, stacked, strict=True))]


def _at(x: Any, i: int) -> Any:
    """Row ``i`` of an array."""
    if isinstance(x, Dependence):
        return x.moved(x.rows[i])
    return Constant(x.value[i]) if isinstance(x, Constant) else x


def _along(x: Any) -> Any:
    """Any row of an array."""
    return reduced(x, (0,)) if isinstance(x, Dependence) else FREE


def _repeated(x: Any, shape: tuple[int, ...]) -> Any:
    return x.moved(np.broadcast_to(x.rows, shape)) if isinstance(x, Dependence) else FREE


def _stack(values: list[Any], shape: tuple[int, ...]) -> Any:
    if not dependent(values):
        return FREE
    rows, of = rows_of(values, [shape[1:]] * len(values))
    return Dependence(np.stack(rows), of)


def _while(equation: Any, operands: list[Any]) -> list[Any]:
    """When it ends has no derivative."""
    params, (body,) = equation.params, _programs((equation.params["body_jaxpr"],))
    start = params["cond_nconsts"]
    end = start + params["body_nconsts"]
    return _until_they_stay(body, operands[start:end], operands[end:], [])[0]


def _until_they_stay(
    body: Closed, fixed: list[Any], carry: list[Any], rows: list[Any]
) -> tuple[list[Any], list[Any]]:
    """What is carried through a loop, and its outputs, after any number of rounds."""
    shapes = [kind(v)[0] for v in body.jaxpr.outvars]
    carry = [x if isinstance(x, Dependence) else FREE for x in carry]
    inputs = [x for x in (*fixed, *carry, *rows) if isinstance(x, Dependence)]
    for _ in range(_MOST_ROUNDS):
        results = _run(body, [*fixed, *carry, *rows])
        pairs = list(zip(shapes, carry, results[: len(carry)], strict=False))
        after = [_any_of(shape, (x, new)) for shape, x, new in pairs]
        if all(x is y or _alike(x, y) for x, y in zip(after, carry, strict=True)):
            return carry, results[len(carry) :]
        carry = after
    full = [everything(inputs, shape) if inputs else FREE for shape in shapes]
    return full[: len(carry)], full[len(carry) :]


def _alike(x: Any, y: Any) -> bool:
    both = isinstance(x, Dependence) and isinstance(y, Dependence)
    return both and x.of is y.of and np.array_equal(x.rows, y.rows)


_OF_PROGRAMS = {
    "cond": _branches,
    "custom_jvp_call": _rule_of_its_own,
    "scan": _scan,
    "while": _while,
}
"""Rules for operations that hold programs."""
