"""Copies of the user's functions that see stand-ins instead of NumPy.

A copy shares the code and has its own globals and closure, in which modules, arrays, helper
functions and objects are replaced in turn. The originals, and everything they refer to, stay as
they are.
"""

import builtins as python
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from probode.programs.identity import Place, is_number
from probode.programs.inputs import Input
from probode.programs.tracing.arrays import TracedArray
from probode.programs.tracing.facade import Module, stand_in
from probode.programs.user_code import (
    KEPT_MEMBERS,
    asked,
    can_be_copied,
    closure,
    global_names,
    home,
    is_user_module,
    slots_of,
)

_LARGE = 1000
"""Containers beyond this length are not looked into."""


class Rewriter:
    """Replaces values by what a traced function should see; each value once.

    Parameters
    ----------
    fun
        The user's function; the package where it was defined counts as user code.
    replace
        The stand-in for a value that is not the user's, or ``None``.
    arrays
        What replaces a NumPy array.
    numbers
        What replaces the numbers that stand in these places.
    builtins
        What replaces some of Python's own functions, by name.

    Attributes
    ----------
    replaced
        The places where a number was replaced.
    """

    def __init__(
        self,
        fun: Any,
        replace: Callable[[Any], Any | None] = stand_in,
        arrays: Callable[[np.ndarray], Any] = lambda array: TracedArray(array.copy()),
        numbers: Mapping[Place, Any] | None = None,
        builtins: Mapping[str, Any] | None = None,
    ) -> None:
        self._numbers = numbers or {}
        self.replaced: set[Place] = set()
        self._home = home(fun)
        self._replace = replace
        self._arrays = arrays
        self._done: dict[int, tuple[Any, Any]] = {}
        self._globals: dict[int, dict[str, Any]] = {}
        self._classes: dict[type, type] = {}
        self._builtins = {**vars(python), "__import__": self._import, **(builtins or {})}

    def __call__(self, value: Any) -> Any:
        """What stands for ``value``."""
        if id(value) in self._done:
            return self._done[id(value)][1]
        result = self._rewrite(value)
        self._done[id(value)] = (value, result)  # keeps ``value`` alive, and with it its id
        return result

    def _entry(self, owner: Any, slot: Any, value: Any) -> Any:
        """What stands for ``value``, the entry ``slot`` of a container, namespace or cell."""
        if self._numbers and is_number(value) and (id(owner), slot) in self._numbers:
            self.replaced.add((id(owner), slot))
            return self._numbers[id(owner), slot]
        return self(value)

    def _rewrite(self, value: Any) -> Any:
        found = self._replace(value)
        if found is not None:
            return found
        if isinstance(value, Input):  # it takes stand-ins as they are
            return value
        if type(value) is np.ndarray:
            return self._arrays(value) if value.dtype.kind in "biufc" else value
        if isinstance(value, list | tuple | dict):
            return self._container(value)
        if type(value) is types.SimpleNamespace:
            return types.SimpleNamespace(**self(vars(value)))
        if isinstance(value, types.FunctionType):
            return self._function(value) if self._is_user(value.__module__) else value
        if isinstance(value, types.MethodType):
            owner = value.__self__
            if isinstance(owner, type) and can_be_copied(owner, self._home):
                return types.MethodType(self(value.__func__), self._class(owner))
            return types.MethodType(self(value.__func__), self(owner))
        if isinstance(value, functools.partial):
            return functools.partial(self(value.func), *self(value.args), **self(value.keywords))
        if isinstance(value, types.ModuleType):
            return Module(value, self) if self._is_user(value.__name__) else value
        for attribute in ("__wrapped__", "py_func"):  # functools.cache and alike; Numba
            inner = None if isinstance(value, type) else asked(value, attribute)
            if isinstance(inner, types.FunctionType):
                return self(inner)
        return self._instance(value)

    def _is_user(self, module: str | None) -> bool:
        return is_user_module(module, self._home)

    def _container(self, value: Any) -> Any:
        if len(value) > _LARGE or type(value) not in (list, tuple, dict):
            return value
        if isinstance(value, dict):
            entries = {key: self._entry(value, key, item) for key, item in value.items()}
            changed = any(entries[key] is not item for key, item in value.items())
            return entries if changed else value
        items = [self._entry(value, i, item) for i, item in enumerate(value)]
        changed = any(new is not old for new, old in zip(items, value, strict=True))
        return type(value)(items) if changed else value

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        namespace = self._globals.get(id(function.__globals__))
        if namespace is None:
            namespace = {**function.__globals__, "__builtins__": self._builtins}
            self._globals[id(function.__globals__)] = namespace
        cells = {name: types.CellType() for name in function.__code__.co_freevars}
        copy = types.FunctionType(
            function.__code__, namespace, function.__name__, None, tuple(cells.values()) or None
        )
        copy.__dict__.update(
            (key, item) for key, item in function.__dict__.items() if key != "__wrapped__"
        )
        self._done[id(function)] = (function, copy)  # before its insides, which may refer to it
        copy.__defaults__ = self(function.__defaults__)
        copy.__kwdefaults__ = self(function.__kwdefaults__)
        for name in global_names(function.__code__):
            if name in function.__globals__:
                found = function.__globals__[name]
                namespace[name] = self._entry(function.__globals__, name, found)
        for name, original, value in closure(function):
            cells[name].cell_contents = self._entry(original, None, value)
        return copy

    def _import(self, *args: Any) -> Any:
        return self(__import__(*args))

    def _instance(self, value: Any) -> Any:
        """A copy of an object of the user's class, with its methods and attributes replaced."""
        cls = type(value)
        if (
            isinstance(value, type)
            or not can_be_copied(cls, self._home)
            or not isinstance(asked(value, "__dict__"), dict)
        ):
            return value
        copy: Any = object.__new__(self._class(cls))
        self._done[id(value)] = (value, copy)
        for name, item in slots_of(value).items():
            object.__setattr__(copy, name, self(item))
        own = value.__dict__
        copy.__dict__.update({name: self._entry(own, name, item) for name, item in own.items()})
        return copy

    def _class(self, cls: type) -> type:
        """A subclass with rewritten methods."""
        if cls in self._classes:
            return self._classes[cls]
        namespace: dict[str, Any] = {"__module__": cls.__module__}
        for base in reversed(cls.__mro__):
            if not self._is_user(base.__module__):
                continue
            for name, item in base.__dict__.items():
                if name not in KEPT_MEMBERS:
                    namespace[name] = self._member(item)
        copy = types.new_class(cls.__name__, (cls,), {}, lambda body: body.update(namespace))
        self._classes[cls] = copy
        return copy

    def _member(self, item: Any) -> Any:
        if isinstance(item, staticmethod | classmethod):
            return type(item)(self(item.__func__))
        if isinstance(item, property):
            return property(*(f and self(f) for f in (item.fget, item.fset, item.fdel)))
        if isinstance(item, types.FunctionType) or type(item) is np.ndarray:
            return self(item)
        return item
