"""Which functions, classes and objects are the user's, and what is in them."""

import abc
import enum
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

_OURS = __name__.partition(".")[0]


def global_names(code: types.CodeType) -> Iterator[str]:
    """Names that a function, or a function inside it, may look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)


def closure(function: types.FunctionType) -> list[tuple[str, types.CellType, Any]]:
    """Names, cells and values of what a function closes over, as far as it is assigned yet."""
    found = []
    if function.__closure__ is not None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            try:
                found.append((name, cell, cell.cell_contents))
            except ValueError:
                continue
    return found


def package(module: str | None) -> str:
    """The top level of a module's name; empty where it is not a string, as for some types."""
    return module.partition(".")[0] if isinstance(module, str) else ""


def is_ours(module: str | None) -> bool:
    """Whether a module belongs to this library."""
    return package(module) == _OURS


def is_user_module(name: str | None, home: str) -> bool:
    """Whether a module is user code: neither installed nor part of Python, or ``home`` itself."""
    root = package(name)
    if root in (home, _OURS) or name == "__main__":
        return True
    if root in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return file is None or not ("site-packages" in file or "dist-packages" in file)


def asked(value: Any, name: str) -> Any:
    """An attribute, or ``None``: objects may answer unknown names in any way."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def slots_of(value: Any) -> dict[str, Any]:
    """The attributes that an object keeps in slots."""
    found: dict[str, Any] = {}
    for base in type(value).__mro__:
        members = vars(base).items() if "__slots__" in vars(base) else ()
        for name, member in members:
            if isinstance(member, types.MemberDescriptorType):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:  # not assigned yet
                    continue
    return found


def home(fun: Any) -> str:
    """The package where a callable was defined, seen through partials and wrappers of ours."""
    name = package(getattr(fun, "__module__", None) or type(fun).__module__)
    inside: list[Any] = []
    if isinstance(fun, functools.partial):
        inside = [fun.func]
    elif name == _OURS and isinstance(fun, types.FunctionType):
        inside = [value for _, _, value in closure(fun)]
    return next((home(item) for item in inside if callable(item)), name)


KEPT_MEMBERS = frozenset(
    (
        *("__init__", "__new__", "__init_subclass__", "__del__", "__getattribute__"),
        *("__getattr__", "__setattr__", "__dict__", "__weakref__", "__slots__", "__reduce__"),
        *("__class__",),
    )
)
"""Members of a class that stay as they are in its copy."""

COPIED_MEMBERS = (types.FunctionType, staticmethod, classmethod, property)
"""Members in whose copies numbers can be replaced."""


def generated_members(cls: type) -> set[str]:
    """Members of a class that Python or ``dataclass`` has made from the others."""
    names = {"__dict__", "__weakref__", "__doc__", "__module__"}
    options = vars(cls).get("__dataclass_params__")
    if options is not None:
        names |= {"__dataclass_fields__", "__dataclass_params__"}
        names |= {f"__{name}__" for name in ("init", "repr") if getattr(options, name)}
    return names


def can_be_copied(cls: type, home: str) -> bool:
    """Whether objects of a class have copies whose methods see replacements."""
    return (
        cls.__module__ != "builtins"
        and is_user_module(cls.__module__, home)
        and type(cls) in (type, abc.ABCMeta)
        and not issubclass(cls, enum.Enum | tuple)
        and not any("__init_subclass__" in vars(base) for base in cls.__mro__[:-1])
    )
