"""An array that looks like NumPy's and computes with JAX.

``TracedArray`` stands in for ``numpy.ndarray`` while a function is traced. What NumPy allows and
JAX does not is emulated: item assignment, in-place operators, views that share memory. Questions
whose answer would depend on traced values (``if``, ``float()``, ``while``) raise, and the refusal
is remembered, so that a ``try`` in the user's code cannot hide it. Operators and NumPy's methods
are attached in ``operators``.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.jax_inside import is_tracer
from probode.programs.tracing import views
from probode.programs.tracing.branches import decide
from probode.programs.tracing.storage import Cell, Storage
from probode.programs.tracing.views import Index
from probode.programs.tracing.watching import watch

_SELECT = "select with numpy.select, numpy.where or numpy.interp"
_AN_ARRAY = "make a list that is indexed by it an array of NumPy"
_CALL = "a function that is not known here"
TABULATE = "write it with NumPy, or tabulate it in advance and use an interpolator of SciPy"


class TracedArray(Storage):
    """A stand-in for ``numpy.ndarray``."""

    __slots__ = ()
    __array_priority__ = 1000

    def __iter__(self) -> Iterator[Any]:
        if not self._shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self._shape[0]))

    # Items --------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            raise IndexError("only integers, slices, masks and arrays are valid indices")
        entries = _entries(key)
        if not views.is_basic(entries):
            for entry in entries:
                if isinstance(entry, jax.Array) and entry.dtype == bool:
                    raise watch.refuse(
                        "how many entries a mask selects is not known while tracing",
                        entry,
                        "write numpy.where(mask, x, 0)",
                    )
            if not any(isinstance(entry, jax.Array) for entry in entries):
                return wrap(self.value[entries])
            # An index beyond the ends is an error in NumPy: NaN, where steps are rejected.
            value = jnp.asarray(self.value)
            outside = jnp.nan if value.dtype.kind in "fc" else None
            return wrap(value.at[entries].get(mode="fill", fill_value=outside))
        shape = views.view_shape(self._shape, entries)
        if shape or len(entries) != self.ndim or None in entries or Ellipsis in entries:
            return self._look(Index(entries), shape) if shape or self._shape else self
        return self._element(entries)

    def _element(self, key: tuple[int, ...]) -> Any:
        cells = self._assigned()
        cell = None if cells is None else cells[key]
        if cell is not None:
            return wrap(cell.value)
        if not isinstance(self._root._raw, np.ndarray) and key not in self._elements:
            stored = self._stored()
            value = watch.once(("item", stored, key), lambda: stored[key])
            if self._base is not None:
                return TracedArray(value)
            self._elements[key] = value
        return wrap(self._elements[key]) if key in self._elements else self._stored()[key]

    def __setitem__(self, key: Any, item: Any) -> None:
        entries = _entries(key)
        part = self._cast(unwrap(item, as_array=True))
        if not self._shape:
            raise watch.refuse("item assignment to a number", self._root._raw)
        if isinstance(item, TracedArray) and item._base is self and _is_index(item, entries):
            return  # dy[1:3] += x has written through the view already
        if not views.is_basic(entries):
            self._set_places(entries, part)
            return
        shape = views.view_shape(self._shape, entries)
        if shape or len(entries) != self.ndim or Ellipsis in entries:
            if self.known and not isinstance(part, jax.Array):
                self._stored()[entries] = part
            else:
                part = _drop_leading_ones(part, len(shape))
                self._replace(views.write_slices(self.value, entries, part))
            return
        root = self._root
        if self.known and not isinstance(part, jax.Array):
            self._stored()[entries] = part
            return
        if root._cells is None:
            root._cells = np.full(root._shape, None, object)
        cells = self._assigned()
        assert cells is not None
        cells[entries] = Cell(part.reshape(()) if part.ndim else part)

    def _set_places(self, key: tuple[Any, ...], part: Any) -> None:
        if any(isinstance(entry, jax.Array) for entry in key):
            self._replace(views.write_traced_places(self.value, key, part))
        elif self.known and not isinstance(part, jax.Array):
            self._stored()[key] = part
        else:
            self._replace(views.write_known_places(self.value, key, part))

    # Questions that need the value ----------------------------------------------------------------

    def _known_value(self, what: str, instead: str = "") -> np.ndarray:
        value = self.value
        if is_tracer(value) or not isinstance(value, np.ndarray):
            raise watch.refuse(f"{what} needs a number that is known while tracing", value, instead)
        return value

    def __hash__(self) -> int:
        return hash(self._known_value("the key of a dictionary or a set", _SELECT)[()])

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError("The truth value of an array with several elements is ambiguous.")
        value = self.value
        return bool(value) if isinstance(value, np.ndarray) else decide(value)

    def __float__(self) -> float:
        return float(self._known_value("a conversion to float"))

    def __int__(self) -> int:
        return int(self._known_value("a conversion to int"))

    def __complex__(self) -> complex:
        return complex(self._known_value("a conversion to complex", "write x + 1j * y"))

    def __index__(self) -> int:
        return self._known_value("an index or a length", _AN_ARRAY).__index__()

    def __contains__(self, item: Any) -> bool:
        equal: Any = self == item
        return bool(equal.any())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._known_value(_CALL, TABULATE), dtype=dtype)

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.value)

    def item(self, *args: Any) -> Any:
        """A Python scalar, if the value is known."""
        return self._known_value("item()", "write x[0]").item(*args)

    def tolist(self) -> Any:
        """Nested lists."""
        return [x.tolist() if isinstance(x, TracedArray) and x.ndim else x for x in self]

    def __repr__(self) -> str:
        return f"<traced array of shape {self._shape}>"

    def __str__(self) -> str:
        return str(self._known_value("a text"))

    def __format__(self, spec: str) -> str:
        return format(self._known_value("a text")[()], spec)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Traced arrays have no attribute {name!r}.")


def _entries(key: Any) -> tuple[Any, ...]:
    """An index as a tuple of plain values."""
    entries = key if isinstance(key, tuple) else (key,)
    return views.normalise(
        tuple(unwrap(entry, as_array=isinstance(entry, list)) for entry in entries)
    )


def _is_index(array: TracedArray, key: tuple[Any, ...]) -> bool:
    return isinstance(array._view, Index) and array._view.same(key)


def _drop_leading_ones(part: Any, ndim: int) -> Any:
    """NumPy ignores leading axes of length one on assignment."""
    while part.ndim > ndim and part.shape[0] == 1:
        part = part[0]
    return part


def wrap(value: Any) -> Any:
    """Results as the user's code expects them: arrays stand in, scalars that are known stay."""
    if isinstance(value, np.ndarray):
        return TracedArray(value.copy())
    if isinstance(value, jax.Array):
        return TracedArray(value)
    if type(value) in (list, tuple):
        return type(value)(wrap(item) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(wrap(item) for item in value))
    return value


def unwrap(value: Any, *, as_array: bool = False) -> Any:
    """The values inside, to compute with; ``as_array`` turns lists into arrays."""
    if isinstance(value, TracedArray):
        return value.value
    if isinstance(value, list | tuple):
        if as_array:
            return join(value)
        items = [unwrap(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, slice):
        return slice(unwrap(value.start), unwrap(value.stop), unwrap(value.step))
    if type(value) is dict:
        return {key: unwrap(item) for key, item in value.items()}
    return value


def join(items: Any) -> Any:
    """``numpy.array`` of nested sequences with traced entries."""
    values = [unwrap(item, as_array=True) for item in items]
    if not any(isinstance(value, jax.Array) for value in values):
        return np.asarray(values)
    return jnp.stack([jnp.asarray(value) for value in values])


def is_traced(value: Any) -> bool:
    """Whether anything in ``value`` is not known yet."""
    if isinstance(value, TracedArray):
        return not value.known
    if isinstance(value, list | tuple):
        return any(is_traced(item) for item in value)
    if type(value) is dict:
        return any(is_traced(item) for item in value.values())
    return isinstance(value, jax.Array)
