"""Whether a function is still the same one: its code, and everything that its code refers to.

Tracing takes milliseconds, a solve often less. So what was traced is remembered, under a key made
of the function's code and of the *values* that it reads: constants, defaults, closure, globals,
attributes of its object, helpers in turn. Two lambdas made by the same line are the same function;
the same function after a change of a global it reads is not. Where a value cannot be compared there
is no key, and the function is traced each time.
"""

import functools
import hashlib
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import numpy as np

from probode import interpolators

_OURS = __name__.partition(".")[0]

_DEPTH = 6
_ITEMS = 1000
_ENTRIES = 1_000_000
_DIGEST = 512
"""Arrays of more bytes enter as a digest."""

_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), slice, range)
_BY_IDENTITY = (types.BuiltinFunctionType, types.ModuleType, np.ufunc, np.dtype, jax.Array)


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


def global_names(code: types.CodeType) -> Iterator[str]:
    """Names that a function, or a function inside it, may look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)


def package(module: str | None) -> str:
    """The top level of a module's name."""
    return (module or "").partition(".")[0]


def is_user_module(name: str | None, home: str) -> bool:
    """Whether a module is user code: neither installed nor part of Python, or ``home`` itself."""
    root = package(name)
    if root in (home, _OURS) or name == "__main__":
        return True
    if root in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return file is None or not ("site-packages" in file or "dist-packages" in file)


def home(fun: Any) -> str:
    """The package where a callable was defined, seen through partials and wrappers of ours."""
    name = package(getattr(fun, "__module__", None) or type(fun).__module__)
    inside: list[Any] = []
    if isinstance(fun, functools.partial):
        inside = [fun.func]
    elif name == _OURS and isinstance(fun, types.FunctionType):
        inside = [cell.cell_contents for cell in fun.__closure__ or ()]
    return next((home(item) for item in inside if callable(item)), name)


def key_of(fun: Any) -> Hashable:
    """A key that is equal for functions that compute the same; raises :class:`NoKey`."""
    return _Keys(home(fun)).key(fun, 0)


class Memory:
    """What was computed for a key, the latest ``size`` of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[Hashable, Any] = OrderedDict()

    def get(
        self,
        key: Callable[[], Hashable],
        compute: Callable[[], Any],
        keep: Callable[[Any], bool] = lambda value: True,
    ) -> Any:
        """The value for ``key()``, computed if it is new; without a key, computed each time.

        ``keep`` says whether a value may be remembered.
        """
        try:
            name = key()
            found = self._known.get(name, self)
        except (NoKey, TypeError):  # TypeError: something in the key cannot be hashed
            return compute()
        if found is not self:
            self._known.move_to_end(name)
            return found
        value = compute()
        if keep(value):
            self._known[name] = value
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return value


def key_of_arguments(leaves: list[Any]) -> Hashable:
    """Numbers and arrays by their type, all else (whole numbers too: they may steer) by value."""
    keys = _Keys("")
    described: list[Hashable] = []
    for leaf in leaves:
        if isinstance(leaf, jax.core.Tracer):
            raise NoKey
        if isinstance(leaf, float):
            described.append(float)
        elif isinstance(leaf, np.ndarray | np.generic | jax.Array) and leaf.dtype.kind in "fc":
            described.append((type(leaf), leaf.dtype, leaf.shape))
        else:
            described.append(keys.key(leaf, 0))
    return tuple(described)


class _Keys:
    def __init__(self, home: str) -> None:
        self._home = home
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
        if isinstance(value, np.ndarray | np.generic):
            return _array(value)
        if isinstance(value, jax.core.Tracer):
            raise NoKey
        if isinstance(value, _BY_IDENTITY):
            if isinstance(value, types.ModuleType) and self._is_user(value.__name__):
                raise NoKey  # any of its variables may be read
            return Same(value)
        if depth > _DEPTH:
            raise NoKey
        if kind in (tuple, list, dict):
            return self._container(value, depth)
        if kind is types.MethodType:
            return (kind, self.key(value.__func__, depth), self.key(value.__self__, depth + 1))
        if kind is functools.partial:
            return (kind, self.key((value.func, value.args, value.keywords), depth))
        if isinstance(value, type):
            return self._within(value, depth, self._class)
        if type(value).__module__.startswith(("jax", "numpy")) and callable(value):
            return Same(value)  # compiled functions, NumPy's own functions
        pieces = interpolators.read(value)
        if pieces is not None:
            return (Same(kind), self.key(tuple(pieces), depth))
        return self._within(value, depth, self._object)

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
        items = value.items() if isinstance(value, dict) else value
        return (type(value), tuple(self.key(item, depth + 1) for item in items))

    def _function(self, function: types.FunctionType, depth: int) -> Hashable:
        if not self._is_user(function.__module__):
            return Same(function)
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self.key(cell.cell_contents, depth + 1))
            except ValueError:  # not assigned yet
                cells.append(None)
        namespace = function.__globals__
        return (
            function.__code__,
            tuple(cells),
            tuple(
                (name, self.key(namespace[name], depth + 1))
                for name in dict.fromkeys(global_names(function.__code__))
                if name in namespace
            ),
            self.key(function.__defaults__, depth),
            self.key(function.__kwdefaults__, depth),
            self.key(function.__dict__, depth) if function.__dict__ else None,
        )

    def _class(self, cls: type, depth: int) -> Hashable:
        if not self._is_user(cls.__module__) or cls.__module__ == "builtins":
            return Same(cls)
        members = [
            (name, self.key(_unwrapped(item), depth + 1))
            for base in cls.__mro__
            if self._is_user(base.__module__) and base.__module__ != "builtins"
            for name, item in vars(base).items()
            if name not in ("__dict__", "__weakref__", "__doc__", "__module__")
            and not isinstance(item, types.GetSetDescriptorType | types.MemberDescriptorType)
        ]
        return (Same(cls), tuple(members))

    def _object(self, value: Any, depth: int) -> Hashable:
        """An object of the user's class: its class, and its attributes."""
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is not dict or not self._is_user(type(value).__module__):
            raise NoKey
        if any("__slots__" in vars(base) for base in type(value).__mro__):
            raise NoKey
        return (self.key(type(value), depth), self._container(attributes, depth))


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
