"""Functions as programs: trace once per call, compare by what was traced.

A function is traced to JAX's intermediate language. Two functions that trace to the same program
(say, a lambda written in a loop and created again each time) are *equal*, so compiled code is found
again; the arrays that they close over become inputs, so that new values do not recompile. The
function object itself is not kept.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base import jax_inside
from probode.base.jax_inside import (
    Closed,
    Jaxpr,
    Opaque,
    Unreadable,
    equations,
    is_literal,
    kind,
    library_calls,
    operation,
    program_of,
    programs_in,
    reading,
    those,
    walk,
)
from probode.base.precision import is_traced


class Program:
    """A traced function of arrays: hashable, compared by structure."""

    __slots__ = ("_hash", "_key", "calls_libraries", "jaxpr")

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.jaxpr = jaxpr
        self.calls_libraries = True
        """Whether it has decompositions or transforms, which wait for threads (batched ones do)."""
        self._key: Any = _ByIdentity(jaxpr)
        try:
            with reading("programs that can be compared", "they are compiled anew for each solve"):
                self.calls_libraries = not library_calls().isdisjoint(self.operations())
                self._key = _jaxpr_key(jaxpr)
        except Unreadable:
            pass  # equal to itself only, and run alone
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self._hash == other._hash and self._key == other._key

    def fingerprint(self) -> str:
        """What the program computes as text, the same in every process."""
        return re.sub(r"0x[0-9a-f]+", "", str(self.jaxpr))

    def operations(self) -> set[str]:
        """Names of the operations in the program; raises :class:`Unreadable`."""
        with reading("programs with operations", "any of them may be there"):
            return set(map(operation, equations(self.jaxpr)))

    def closed(self, constants: Sequence[Any]) -> Closed:
        """The program with what it closes over."""
        return Closed(self.jaxpr, list(constants))

    def __call__(self, constants: Sequence[Any], *inputs: Any) -> Any:
        """Run the program; it has one output."""
        return jax_inside.run(self.jaxpr, constants, *inputs)[0]


def trace(function: Callable[..., Any], *inputs: Any) -> tuple[Program, tuple[Any, ...]]:
    """Trace ``function`` (of arrays, to one array) and return it with what it closes over."""
    closed = jax_inside.with_callbacks(jax_inside.trace(function, *inputs), inputs)
    # Arrays, not results of a trace around this one (a user's jit), which they would not outlive.
    with jax.ensure_compile_time_eval():
        # Put there, not converted: for that JAX would compile a program.
        constants = tuple(
            constant
            if is_traced(constant) or is_key(constant)
            else jax.device_put(np.asarray(constant))
            for constant in closed.consts
        )
    return Program(closed.jaxpr), constants


def with_data(leaves: Sequence[Any], attempt: Callable[[Callable[[Any], bool]], Any]) -> Any:
    """``attempt(is_data)`` with all numbers among parameters as data, if that works.

    A whole number or switch may steer a function's control flow (``range(n)``, ``if flag``): then
    all of these are part of the program, not data.
    """
    try:
        return attempt(is_numeric)
    except NEEDS_VALUES as error:
        if not any(map(is_whole, leaves)):
            error.add_note(_WRITE_IT_IN_JAX)
            raise
        return attempt(lambda leaf: is_numeric(leaf) and not is_whole(leaf))


NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Raised where a function wants to know a number that is not known while tracing."""

_WRITE_IT_IN_JAX = (
    "probode: the function has to be one that JAX can trace: use jax.numpy instead of numpy, and "
    "jax.numpy.where instead of branches on values. probode.solve_ivp takes NumPy functions as "
    "they are."
)


def is_numeric(leaf: Any) -> bool:
    """Whether a parameter can be data."""
    return isinstance(leaf, bool | int | float | np.ndarray | np.generic | jax.Array)


def is_key(leaf: Any) -> bool:
    """Whether a parameter is a key of ``jax.random.key``: not a number, but made of some."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def numbers_of(leaf: Any) -> Any:
    """Return the numbers that a parameter is made of."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def is_whole(leaf: Any) -> bool:
    """Whether a parameter may steer."""
    return isinstance(leaf, int | np.integer | np.bool_)


def of_data(
    function: Callable[..., Any], leaves: Sequence[Any], tree: Any, is_data: Callable[[Any], bool]
) -> Callable[..., Any]:
    """``function(t, y, *parameters)`` as one of ``t``, ``y`` and those parameters that are data."""

    def evaluate(t: Any, y: Any, *values: Any) -> Any:
        rest = iter(values)
        full = [_made_of(next(rest), leaf) if is_data(leaf) else leaf for leaf in leaves]
        return function(t, y, *jax.tree.unflatten(tree, full))

    return evaluate


def _made_of(numbers: Any, leaf: Any) -> Any:
    """A parameter of the kind of ``leaf``."""
    if not is_key(leaf):
        return numbers
    return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(leaf))


def alike(one: Jaxpr, other: Jaxpr) -> bool:
    """Whether two programs, each with constants of its own, compute the same."""
    if isinstance(one, Opaque) and isinstance(other, Opaque):
        return Program(one).fingerprint() == Program(other).fingerprint()
    return Program(one) == Program(other)


def _jaxpr_key(jaxpr: Jaxpr, in_rule: bool = False) -> tuple[Any, ...]:
    """Everything that decides what a program computes, as nested hashable tuples."""
    numbers: dict[Any, int] = {}

    def define(variable: Any) -> tuple[Any, ...]:
        numbers[variable] = len(numbers)
        return kind(variable)

    def use(atom: Any) -> Any:
        if is_literal(atom):
            value = np.asarray(atom.val)
            return (value.shape, value.dtype.str, value.tobytes(), kind(atom)[2])
        return numbers[atom]

    inputs = tuple(define(v) for v in (*jaxpr.constvars, *jaxpr.invars))
    equations = []
    for eqn in jaxpr.eqns:
        read = tuple(use(atom) for atom in eqn.invars)
        params = tuple(
            (name, _param_key(value, in_rule))
            for name, value in sorted(eqn.params.items())
            if name not in _RULES
        )
        # A rule may use the function it belongs to: rules within rules are left out.
        rules = (
            ()
            if in_rule
            else tuple(
                _rule_key(eqn.params[name], len(eqn.invars))
                for name in _RULES
                if name in eqn.params
            )
        )
        write = tuple(define(v) for v in eqn.outvars)
        equations.append((eqn.primitive, read, params, rules, write))
    return (inputs, tuple(equations), tuple(use(atom) for atom in jaxpr.outvars))


_RULES = ("jvp_jaxpr_fun",)
"""Parameters that hold the derivative rule of a function, made again at each trace."""


def _rule_key(rule: Any, inputs: int) -> Any:
    """A derivative rule by what it computes: traced, as the program itself."""
    known = jax_inside.rule_of_jvp(rule, inputs)
    if known is None:
        return _ByIdentity(rule)
    (jaxpr, constants), zeros = known
    return (_jaxpr_key(jaxpr, True), tuple(map(_param_key, constants)), zeros)


class _ByIdentity:
    """An unhashable parameter: equal to itself only."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self._value is other._value


def _param_key(value: Any, in_rule: bool = False) -> Any:
    program = program_of(value)
    if program is not None:
        return (_jaxpr_key(program.jaxpr, in_rule), tuple(map(_param_key, program.consts)))
    if isinstance(value, tuple | list):
        return tuple(_param_key(item, in_rule) for item in value)
    if isinstance(value, dict):
        return tuple((key, _param_key(item, in_rule)) for key, item in sorted(value.items()))
    if isinstance(value, np.ndarray | np.generic | jax.Array) and not is_traced(value):
        value = np.asarray(value)
        return (value.shape, value.dtype.str, value.tobytes())
    try:
        hash(value)
    except TypeError:
        return _ByIdentity(value)
    return value


def work(jaxpr: Jaxpr) -> float:
    """How many numbers a program computes; infinite if it has loops of unknown length."""
    try:
        with reading("programs that can be measured", "they are evaluated by XLA"):
            return _work(jaxpr)
    except Unreadable:
        return np.inf


def _work(jaxpr: Jaxpr) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = operation(equation), equation.params
        if name == "while":
            return np.inf
        inner = [_work(x.jaxpr) for x in programs_in(params)]
        if inner:
            total += params.get("length", 1) * sum(inner)
            continue
        size = sum(float(np.prod(kind(variable)[0])) for variable in equation.outvars)
        if name == "dot_general":
            (summed, _), _ = params["dimension_numbers"]
            size *= float(np.prod([kind(equation.invars[0])[0][axis] for axis in summed]))
        total += size
    return total


class Timing(NamedTuple):
    """What a program has to do with time, whatever its numbers."""

    depends: bool
    """Whether its result depends on ``t``."""
    switches: bool
    """Whether something that depends on ``t``, not on ``y``, is compared, rounded or looked up."""


@lru_cache(maxsize=1024)
def timing(program: Program) -> Timing:
    """The timing of a vector field's program; of one that cannot be read no switches are known."""
    try:
        with reading("programs with switches in time", "steps do not stop at them"):
            return _timing(program)
    except Unreadable:
        return Timing(depends=True, switches=False)


def _timing(program: Program) -> Timing:
    jaxpr, found = program.jaxpr, False

    def apply(equation: Any, operands: list[tuple[bool, bool]]) -> list[tuple[bool, bool]]:
        nonlocal found
        timed, stated = (any(x[i] for x in operands) for i in (0, 1))
        switching = operation(equation) in _SWITCHING_OR_LOOPS and not keeps_fractions(equation)
        found |= timed and not stated and switching
        return [(timed, stated)] * len(equation.outvars)

    neither = (False, False)
    inputs = [(True, False), (False, True), *[neither] * (len(jaxpr.invars) - 2)]
    out = walk(jaxpr, [None] * len(jaxpr.constvars), inputs, lambda *_: neither, apply)
    return Timing(any(timed for timed, _ in out), found)


SWITCHING = those("compares", "levels", "bends")
_SWITCHING_OR_LOOPS = SWITCHING | those("loop")


def keeps_fractions(equation: Any) -> bool:
    """Whether an equation changes the type of numbers only, not numbers to whole ones."""
    if operation(equation) != "convert_element_type":
        return False
    before, after = kind(equation.invars[0])[1], equation.params["new_dtype"]
    return not (np.issubdtype(before, np.floating) and np.issubdtype(after, np.integer))
