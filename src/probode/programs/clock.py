"""When a function that only Python can run switches: ``t`` is followed through it.

Such a function is called with a time that is a number like any other, but remembers how it came
about. Each comparison, ``%``, ``int``, ``floor``, ``max`` or table lookup that it meets says when
it changes, on the whole interval (:mod:`probode.programs.switches` has the rules)::

    if t % 12 < 0.05:        12 k  and  12 k + 0.05

A function takes one branch at a time; so it is called again between the switches known so far,
until there are no new ones. What happens to ``t`` inside of compiled code cannot be followed: then
``f`` is to be looked at finely instead.
"""

import dis
import math
import operator
import types
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from probode.programs.switches import Switches, Timed, Walk, multiples, within
from probode.programs.tracing.rewrite import Rewriter
from probode.programs.user_code import closure

_MOST_CALLS, _ALONG = 256, 32
_GOLDEN = 0.6180339887498949
_COMPARISONS = {name: getattr(operator, name) for name in ("__lt__", "__le__", "__gt__", "__ge__")}
_NUMBERS = (int, float, np.number)


class Clock:
    """The switches of a function between two times, as far as it was followed.

    Parameters
    ----------
    function
        ``f(t, y, *arguments)``, the user's.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], t0: float, t1: float
    ) -> None:
        self._walk, self._arguments = Walk(min(t0, t1), max(t0, t1)), arguments
        self._function, self._noted, self._calls = function, set[Any](), 0
        self.evaluations = 0
        self._watched = Rewriter(
            function, _stand_in, lambda array: array, builtins={"float": _number}
        )(function)
        self._holds, self._start = True, t0
        self.met = False
        """Whether anything was done with ``t``."""
        self.lost = False
        """Whether it was made a plain number on the way."""
        self._first: np.ndarray | None = None

    @property
    def switches(self) -> Switches:
        """What is known now."""
        followed = bool(self._noted) and self._holds and not self.lost
        return self._walk.found(finely=not followed and self.met and branches(self._function))

    @np.errstate(all="ignore")
    def follow(self, y: np.ndarray) -> None:
        """Call the function at ``y`` between all switches known so far, until there are no more."""
        self._call(self._start, y)
        ends, middle = np.zeros(0), np.zeros(0)
        while self._holds and self._calls < _MOST_CALLS:
            ends = np.concatenate([[self._walk.low], self.times, [self._walk.high]])
            part = np.searchsorted(ends, middle)
            new = np.setdiff1d(np.arange(1, len(ends)), part)
            if len(new) == 0:
                break
            i = int(new[len(new) // 2])
            at = ends[i - 1] + _GOLDEN * (ends[i] - ends[i - 1])
            middle = np.append(middle, at)
            self._call(float(at), y)

    @np.errstate(all="ignore")
    def follow_along(self, t: np.ndarray, y: np.ndarray) -> bool:
        """Call the function at states of a solution; whether that shows switches not known yet."""
        reads_time = self.met or _reads_its_first(self._function)
        if not (self._holds and reads_time and branches(self._function)):
            return False
        before = len(self.times)
        for i in np.linspace(0, len(t) - 1, min(len(t), _ALONG)).astype(int):
            self._call(float(t[i]), y[i])
        return len(self.times) > before

    @property
    def times(self) -> np.ndarray:
        """The switches found so far."""
        return self._walk.inside(self._walk.times)

    def _call(self, t: float, y: np.ndarray) -> None:
        self._calls += 1
        self.evaluations += 1
        time = Time(t, self, ("t",), Timed(lambda t: t, linear=True))
        try:
            found = self._watched(time, y.copy(), *self._arguments)
            lost, value = self.lost, np.asarray(found, float)
            self.lost = lost  # the value may well be a plain number
            self.evaluations += 1
            plain = np.asarray(self._function(t, y.copy(), *self._arguments), float)
            self._holds &= bool(np.array_equal(value, plain, equal_nan=True))
            self._first = plain if self._first is None else self._first
            self.met |= not np.array_equal(plain, self._first, equal_nan=True)
        except Exception:  # one that does not take this for a number
            self._holds, self.met = False, True

    def note(self, key: Any, switches: Callable[[Walk], None]) -> None:
        """Note the switches of an operation, unless it was met before."""
        self.met = True
        if key not in self._noted:
            self._noted.add(key)
            switches(self._walk)


def _with_number(name: str, reflected: bool = False) -> Callable[..., Any]:
    operate = getattr(operator, name)

    def method(self: "Time", other: Any) -> Any:
        if not isinstance(other, _NUMBERS) or isinstance(other, np.complexfloating):
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        value = operate(*map(_plain, pair))
        lines = [x.timed.linear if isinstance(x, Time) else None for x in pair]
        linear = False not in lines and (
            name in ("add", "sub")
            or (name == "mul" and None in lines)
            or (name == "truediv" and lines[1] is None)
        )
        return self.made(value, name, pair, linear)

    return method


def _plain(x: Any) -> Any:
    return x.plain if isinstance(x, Time) else x


def _key(x: Any) -> Any:
    return x.key if isinstance(x, Time) else x.tobytes() if isinstance(x, np.ndarray) else float(x)


def _over(x: Any, t: np.ndarray) -> Any:
    """The values of an operand at all times."""
    if not isinstance(x, Time):
        return np.asarray(x)[None]
    assert x.timed.at is not None
    return x.timed.at(t)


class Time(float):
    """A number that knows which function of ``t`` it is."""

    clock: Clock
    key: Any
    timed: Timed

    def __new__(cls, value: float, clock: Clock, key: Any, timed: Timed) -> "Time":
        made = super().__new__(cls, value)
        made.clock, made.key, made.timed = clock, key, timed
        return made

    def __float__(self) -> float:
        self.clock.lost = True  # what becomes of it cannot be followed
        return self.plain

    @property
    def plain(self) -> float:
        """The number alone."""
        return float.__float__(self)

    def made(self, value: Any, name: str, operands: Any, linear: bool, rule: Any = None) -> Any:
        """The result of an operation that has no switches of its own."""
        operate, self.clock.met = rule or getattr(operator, name), True
        if not isinstance(value, float):
            return value

        def at(t: np.ndarray) -> np.ndarray:
            return np.broadcast_to(operate(*(_over(x, t) for x in operands)), t.shape)

        return Time(value, self.clock, (name, *map(_key, operands)), Timed(at, linear))

    def note(self, name: str, levels: Any, count: Any, other: Any, table: bool = False) -> None:
        """Note where this crosses ``levels``, of which ``count`` are below a value."""

        def switches(walk: Walk) -> None:
            if self.timed.linear:
                walk.cross(self.timed, levels, table)
            else:
                walk.sample(Timed(lambda t: count(_over(self, t))))

        self.clock.note((name, self.key, _key(other)), switches)

    def compared(self, name: str, other: Any) -> Any:
        """``self < other`` and the like, for a number, an array, another function of time."""
        if not isinstance(other, (*_NUMBERS, np.ndarray)):
            return NotImplemented
        if isinstance(other, Time):
            difference: Any = self - other
            difference.crosses(0.0)
        else:
            self.crosses(other)
        return _COMPARISONS[name](self.plain, _plain(other))

    def crosses(self, table: Any, fine: bool = False) -> None:
        """Note where this is one of some numbers, or an entry of a table that may be ``fine``."""
        numbers = np.unique(np.asarray(table, float))
        self.note(
            "numbers",
            lambda low, high: within(numbers, low, high),
            lambda value: np.searchsorted(numbers, value),
            numbers,
            fine,
        )

    def multiples_of(self, unit: Any, shift: float = 0.0) -> None:
        """Note where this is a multiple of a number."""
        if isinstance(unit, _NUMBERS) and not isinstance(unit, Time) and float(unit) != 0.0:
            size = abs(float(unit))
            self.note(
                "multiples",
                lambda low, high: multiples(size, shift, low, high),
                lambda value: np.floor(value / size - shift),
                size + shift,
            )

    def __mod__(self, other: Any) -> Any:
        self.multiples_of(other)
        return self.made(self.plain % _plain(other), "mod", (self, other), self.timed.linear)

    def __floordiv__(self, other: Any) -> Any:
        self.multiples_of(other)
        return self.plain // _plain(other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __abs__(self) -> Any:
        self.crosses(0.0)
        return self.made(abs(self.plain), "abs", (self,), self.timed.linear)

    def __neg__(self) -> Any:
        return self.made(-self.plain, "neg", (self,), self.timed.linear)

    def __pos__(self) -> "Time":
        return self

    def __round__(self, digits: Any = None) -> Any:
        self.multiples_of(10.0 ** -(digits or 0), 0.5)
        return round(self.plain, digits) if digits is not None else round(self.plain)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        value = getattr(ufunc, method)(*map(_plain, inputs), **options)
        single = len(inputs) == 1 or all(isinstance(x, _NUMBERS) for x in inputs)
        if method != "__call__" or options:
            return value
        first, *rest = inputs
        if ufunc in _COMPARING and len(rest) == 1:
            a, b = (first, rest[0]) if isinstance(first, Time) else (rest[0], first)
            a.compared("__lt__", b)
        elif ufunc in _ROUNDING and isinstance(first, Time):
            first.multiples_of(rest[0] if rest else 1.0, 0.5 if ufunc is np.rint else 0.0)
        elif ufunc in (np.sign, np.abs, np.fabs, np.heaviside) and isinstance(first, Time):
            first.crosses(0.0)
        if not single:
            return value
        return self.made(float(value), ufunc.__name__, inputs, False, ufunc)

    def __array_function__(self, function: Any, _: Any, args: Any, options: Any) -> Any:
        if function is np.interp and isinstance(args[0], Time):
            args[0].crosses(args[1], fine=True)
        elif function is np.searchsorted and isinstance(args[1], Time):
            args[1].crosses(args[0], fine=True)
        elif function is np.digitize and isinstance(args[0], Time):
            args[0].crosses(args[1], fine=True)
        return function(*map(_plain, args), **options)


def _rounded(function: Callable[[float], int]) -> Callable[[Time], int]:
    def method(self: Time) -> int:
        self.multiples_of(1.0)
        return function(self.plain)

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(Time, f"__{_name}__", _with_number(_name))
    setattr(Time, f"__r{_name}__", _with_number(_name, reflected=True))
for _name in _COMPARISONS:
    setattr(Time, _name, lambda self, other, _name=_name: self.compared(_name, other))
_ROUNDED = (("int", int), ("trunc", int), ("floor", math.floor), ("ceil", math.ceil))
for _name, _function in _ROUNDED:
    setattr(Time, f"__{_name}__", _rounded(_function))

_COMPARING = (np.less, np.less_equal, np.greater, np.greater_equal, np.maximum, np.minimum)
_ROUNDING = (np.floor, np.ceil, np.trunc, np.rint, np.remainder, np.fmod, np.floor_divide)


class _Math:
    """The module ``math``, whose functions pass on what a time remembers."""

    def __getattr__(self, name: str) -> Any:
        return _followed(getattr(math, name))


@lru_cache(maxsize=128)
def _followed(function: Any) -> Any:
    name = getattr(function, "__name__", "")
    ufunc = getattr(np, _RENAMED.get(name, name), None)
    if not isinstance(ufunc, np.ufunc):
        return function

    def called(*args: Any) -> Any:
        value, times = function(*args), [x for x in args if isinstance(x, Time)]
        if not times or function in (math.floor, math.ceil, math.trunc):
            return value
        return times[0].__array_ufunc__(ufunc, "__call__", *args) if value == value else value

    return called


_RENAMED = {
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
    "pow": "power",
}


def _number(x: Any = 0.0) -> Any:
    """``float``, which leaves a time one."""
    return x if isinstance(x, Time) else float(x)


def _stand_in(value: Any) -> Any | None:
    """What passes on what a time remembers, in place of ``math`` and its functions."""
    if value is math:
        return _Math()
    is_of_math = isinstance(value, types.BuiltinFunctionType) and value.__module__ == "math"
    return _followed(value) if is_of_math else None


_SWITCHING_NAMES = frozenset(
    (
        *("int", "round", "floor", "ceil", "trunc", "fmod", "bisect", "max", "min", "sign"),
        *("bisect_left", "bisect_right", "searchsorted", "interp", "digitize", "where", "clip"),
    )
)


def branches(function: Any, depth: int = 3) -> bool:
    """Whether a function, or one that it calls, compares something; or whether nobody knows."""
    function = function.func if isinstance(function, partial) else function
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return True
    if _switching(code):
        return True
    outside = function.__globals__
    inside = [value for _, _, value in closure(function)]
    called = [outside.get(name) for name in code.co_names] + inside
    some = [value for value in called if isinstance(value, types.FunctionType)]
    return any(branches(value, depth - 1) for value in some if depth > 0)


def _reads_its_first(function: Any) -> bool:
    """Whether a function makes use of its first argument, for all that its code says."""
    if not isinstance(function, types.FunctionType) or function.__code__.co_argcount == 0:
        return True
    name = function.__code__.co_varnames[0]
    code = dis.get_instructions(function.__code__)
    return any(x.opname.startswith("LOAD") and x.argval == name for x in code)


@lru_cache(maxsize=1024)
def _switching(code: types.CodeType) -> bool:
    if not _SWITCHING_NAMES.isdisjoint(code.co_names):
        return True
    for instruction in dis.get_instructions(code):
        if instruction.opname == "COMPARE_OP":
            return True
        if instruction.opname == "BINARY_OP" and instruction.argrepr.strip("=") in ("%", "//"):
            return True
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return any(map(_switching, inner))
