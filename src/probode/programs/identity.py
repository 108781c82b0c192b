"""Whether a function is still the same one: its code, and everything that its code refers to.

Tracing takes milliseconds, a solve often less. So what was traced is remembered, under a key made
of the function's code and of the *values* that it reads: constants, defaults, closure, globals,
attributes of its object, helpers in turn. Two lambdas made by the same line are the same function;
the same function after a change of a global it reads is not. There is a key only where everything
that the function reads is known to be in it: what cannot be compared, or lies behind a call (a
file, the environment, another package's objects: ``reads``), gives none, and the function is traced
each time.

The numbers among these values can be told apart from all the rest (:func:`signature_of`): functions
that differ in numbers only may share a trace in which these are inputs.
"""

import dataclasses
import functools
import hashlib
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import numpy as np

from probode.base.jax_inside import is_tracer
from probode.programs import interpolators
from probode.programs.reads import Trust, reads, trust, trust_in_callable
from probode.programs.user_code import (
    COPIED_MEMBERS,
    KEPT_MEMBERS,
    can_be_copied,
    closure,
    generated_members,
    home,
    is_ours,
    is_user_module,
)

_DEPTH = 6
_ITEMS = 1000
_ENTRIES = 1_000_000
_DIGEST = 512
"""Arrays of more bytes enter as a digest."""

_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), slice, range)
_BY_IDENTITY = (np.ufunc, np.dtype, jax.Array, type(np.sum))
_PLAIN_LAYOUT = object.__basicsize__ + 2 * np.dtype(np.intp).itemsize
"""Size of an object with nothing but attributes: a larger one keeps something elsewhere."""

_NUMBERS_AT_MOST = 100
"""Larger arrays are not taken as parameters: they are compared by content."""


class NoKey(Exception):
    """A value that cannot be compared."""


class Same:
    """A value compared by identity, and not kept alive: once gone, it equals nothing."""

    __slots__ = ("_id", "_reference")

    def __init__(self, value: Any) -> None:
        self._id = id(value)
        try:
            self._reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:  # built-in functions: they live as long as their module
            self._reference = lambda: value

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or self._id != other._id:
            return False
        value = self._reference()
        return value is not None and value is other._reference()


Place = tuple[int, Hashable]
"""Where a number stands: the id of a cell, dictionary, list or tuple, and the entry in it."""


class Signature(NamedTuple):
    """Functions without the numbers that they read, and the numbers.

    ``structure`` is equal for functions that differ in nothing but ``numbers`` (floats and small
    arrays of them, at ``places`` where they can be replaced).
    """

    structure: Hashable
    places: tuple[Place, ...]
    numbers: tuple[Any, ...]

    def values(self) -> tuple[Hashable, ...]:
        """The numbers, to be compared."""
        return tuple(number_key(number) for number in self.numbers)


def signature_of(*functions: Any, within: str | None = None) -> Signature:
    """What ``functions`` (or ``None``) are, apart from numbers; raises :class:`NoKey`.

    ``within`` names the package whose code is the user's, if not that of each function.
    """
    found = _Numbers({}, set())
    structure = tuple(
        None if fun is None else _Keys(home(fun) if within is None else within, found).key(fun, 0)
        for fun in functions
    )
    free: dict[Place, Any] = {}
    fixed = []
    for place, (_, value, _) in found.known.items():
        if place in found.fixed:
            fixed.append(number_key(value))
        else:
            free[place] = value
    return Signature((structure, tuple(fixed)), tuple(free), tuple(free.values()))


def key_of(fun: Any, within: str | None = None) -> Hashable:
    """A key that is equal for functions that compute the same; raises :class:`NoKey`."""
    signature = signature_of(fun, within=within)
    return signature.structure, signature.values()


class _Numbers(NamedTuple):
    """Numbers by where they stand, and those that code reads which sees no replacement.

    With each comes its index, and its owner: one that is kept alive keeps its id.
    """

    known: dict[Place, tuple[int, Any, Any]]
    fixed: set[Place]


def number_key(number: Any) -> Hashable:
    """A number or array by its value: NaN equals NaN, and -0.0 is not 0.0."""
    return repr(number) if type(number) is float else _array(number)


def key_of_arguments(leaves: list[Any]) -> Hashable:
    """Numbers and arrays by their type, all else (whole numbers too: they may steer) by value."""
    described: list[Hashable] = []
    for leaf in leaves:
        if is_tracer(leaf):
            raise NoKey
        if isinstance(leaf, float):
            described.append(float)
        elif isinstance(leaf, np.ndarray | np.generic | jax.Array) and (
            getattr(leaf.dtype, "kind", None) in ("f", "c", None)  # None: a key of jax.random
        ):
            described.append((type(leaf), leaf.dtype, leaf.shape))
        else:
            described.append(key_of(leaf, within=""))
    return tuple(described)


class _Keys:
    """Keys of values; ``numbers`` are collected there and left out of the keys.

    What ``tracing.rewrite`` copies is where numbers can be replaced: functions, methods, partials,
    lists, tuples, dictionaries and objects of plain classes.
    """

    def __init__(self, home: str, numbers: _Numbers) -> None:
        self._home = home
        self._numbers = numbers
        self._is_fixed = False
        self._open: list[int] = []
        """Functions and objects being looked into: they may refer to each other."""

    def key(self, value: Any, depth: int) -> Hashable:
        kind = type(value)
        if kind in _PLAIN:
            return (kind, value)
        if kind is float or kind is complex:
            return (kind, repr(value))  # NaN equals NaN, and -0.0 is not 0.0
        if kind is types.FunctionType:
            return self._within(value, depth, self._function)
        if kind is np.ndarray or isinstance(value, np.generic):
            return _array(value)
        if is_tracer(value):
            raise NoKey
        if isinstance(value, _BY_IDENTITY):
            return _trusted(value)
        if depth > _DEPTH:
            raise NoKey
        if kind in (tuple, list, dict):
            return self._container(value, depth)
        if kind is types.SimpleNamespace:
            return (kind, self._container(vars(value), depth))
        if kind is types.MethodType:
            return (kind, self.key(value.__func__, depth), self.key(value.__self__, depth + 1))
        if kind is functools.partial:
            parts = (value.func, value.args, value.keywords)
            return (kind, *(self.key(part, depth) for part in parts))
        if callable(value) and kind.__module__.startswith("jax"):
            return Same(value)  # a compiled function: what it reads was read when it was traced
        pieces: Any = interpolators.read(value) or interpolators.read_grid(value)
        if pieces is not None:
            return (Same(kind), self._fixed(self.key, tuple(pieces), depth))
        look: Callable[[Any, int], Hashable] = self._object
        if kind is types.BuiltinFunctionType:
            look = self._builtin
        elif kind is np.vectorize:
            look = self._vectorized
        elif isinstance(value, type):
            look = self._class
        elif can_be_copied(kind, self._home):
            return self._within(value, depth, look)
        return self._fixed(self._within, value, depth, look)

    def _fixed(self, look: Callable[..., Hashable], *args: Any) -> Hashable:
        """A key of what is not copied: the numbers that it reads are part of it."""
        before, self._is_fixed = self._is_fixed, True
        try:
            return look(*args)
        finally:
            self._is_fixed = before

    def _entry(self, owner: Any, slot: Hashable, value: Any, depth: int) -> Hashable:
        """What stands in a place; a number counts by its type where it can be replaced."""
        if not is_number(value):
            return self.key(value, depth)
        place, known = (id(owner), slot), self._numbers.known
        if self._is_fixed:
            self._numbers.fixed.add(place)
        index = known.setdefault(place, (len(known), value, owner))[0]
        kind = float if type(value) is float else (type(value), value.shape)
        return ("number", index, kind)

    def _is_user(self, module: str | None) -> bool:
        return is_user_module(module, self._home)

    def _within(self, value: Any, depth: int, look: Any) -> Hashable:
        if id(value) in self._open:
            return ("itself", self._open.index(id(value)))
        self._open.append(id(value))
        try:
            return look(value, depth)
        finally:
            self._open.pop()

    def _container(self, value: Any, depth: int) -> Hashable:
        if len(value) > _ITEMS:
            raise NoKey
        items: Any = value.items() if isinstance(value, dict) else enumerate(value)
        return (
            type(value),
            tuple(
                (self.key(slot, depth + 1), self._entry(value, slot, item, depth + 1))
                for slot, item in items
            ),
        )

    def _function(self, function: types.FunctionType, depth: int) -> Hashable:
        if not self._is_user(function.__module__):
            return _trusted(function)
        ours = is_ours(function.__module__)  # whose globals stay as they are
        if not ours and trust(function) is not Trust.KNOWN:
            raise NoKey
        namespace = function.__globals__
        return (
            function.__code__,
            tuple(
                (name, self._variable(cell, None, value, depth))
                for name, cell, value in closure(function)
            ),
            tuple(
                (name, self._variable(namespace, name, namespace[name], depth))
                for name in reads(function.__code__).names
                if name in namespace and not ours
            ),
            self.key(function.__defaults__, depth),
            self.key(function.__kwdefaults__, depth),
            self._fixed(self.key, function.__dict__, depth) if function.__dict__ else None,
        )

    def _variable(self, owner: Any, slot: Hashable, value: Any, depth: int) -> Hashable:
        """A variable of a function; what is asked of a module was judged with the function."""
        if isinstance(value, types.ModuleType):
            return Same(value)
        return self._entry(owner, slot, value, depth + 1)

    def _class(self, cls: type, depth: int) -> Hashable:
        if not self._is_user(cls.__module__) or cls.__module__ == "builtins":
            return _trusted(cls)
        if self._is_user(type(cls).__module__) and type(cls).__module__ != "builtins":
            raise NoKey  # a metaclass may answer for the class
        members = []
        for base in cls.__mro__:
            if base.__module__ == "builtins" or not self._is_user(base.__module__):
                members.append(("", _trusted(base)))
                continue
            for name, item in vars(base).items():
                if name in generated_members(base) or isinstance(
                    item, types.GetSetDescriptorType | types.MemberDescriptorType
                ):
                    continue
                is_copied = isinstance(item, COPIED_MEMBERS) and name not in KEPT_MEMBERS
                look = self.key if is_copied else functools.partial(self._fixed, self.key)
                members.append((name, look(_unwrapped(item), depth + 1)))
        factories = [
            (name, self.key(field.default_factory, depth + 1))
            for name, field in getattr(cls, "__dataclass_fields__", {}).items()
            if field.default_factory is not dataclasses.MISSING
        ]
        return (Same(cls), tuple(members), tuple(factories))

    def _object(self, value: Any, depth: int) -> Hashable:
        """An object of the user's class: its class, and its attributes."""
        cls = type(value)
        if not self._is_user(cls.__module__):
            raise NoKey
        if isinstance(value, tuple) and hasattr(cls, "_fields"):  # a named tuple
            return (self.key(cls, depth), *(self.key(item, depth + 1) for item in value))
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            raise NoKey from None
        if type(attributes) is not dict or cls.__basicsize__ > _PLAIN_LAYOUT or cls.__itemsize__:
            raise NoKey
        if any("__slots__" in vars(base) for base in cls.__mro__ if self._is_user(base.__module__)):
            raise NoKey
        return (self._within(cls, depth, self._class), self._container(attributes, depth))

    def _builtin(self, function: types.BuiltinFunctionType, depth: int) -> Hashable:
        """A function of a module, or a method bound to an object of C."""
        owner = function.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return _trusted(function)
        return (function.__name__, self.key(owner, depth + 1))

    def _vectorized(self, value: np.vectorize, depth: int) -> Hashable:
        return self.key((value.pyfunc, value.otypes, value.signature), depth)


def is_number(value: Any) -> bool:
    """Whether a value is a number, or an array of few, as parameters are."""
    if type(value) is float or type(value) is np.float64:
        return True
    return type(value) is np.ndarray and value.dtype == float and value.size <= _NUMBERS_AT_MOST


def _trusted(value: Any) -> Hashable:
    """A function or class of another package, by identity."""
    if callable(value) and trust_in_callable(value) is not Trust.KNOWN:
        raise NoKey
    if isinstance(value, np.ufunc) and _calls_python(value):
        raise NoKey
    return Same(value)


@functools.lru_cache(maxsize=1024)
def _calls_python(ufunc: np.ufunc) -> bool:
    """Whether a ufunc was made of a Python function."""
    return all("O" in signature for signature in ufunc.types)


def _unwrapped(item: Any) -> Any:
    if isinstance(item, staticmethod | classmethod):
        return item.__func__
    if isinstance(item, property):
        return (item.fget, item.fset, item.fdel)
    return item


def _array(value: Any) -> Hashable:
    if value.dtype.kind not in "biufc" or value.size > _ENTRIES:
        raise NoKey
    content = value.tobytes()
    if len(content) > _DIGEST:
        content = hashlib.blake2b(content, digest_size=16).digest()
    return (type(value), value.dtype.str, value.shape, content)
