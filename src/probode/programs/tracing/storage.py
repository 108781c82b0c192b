"""Where a traced array keeps its entries: a value, elements assigned since, or a view."""

from itertools import pairwise
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from probode.programs.tracing.views import Reshape, Transpose, Value, View
from probode.programs.tracing.watching import watch


class Cell:
    """One element that was assigned; a box that NumPy does not look into."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Storage:
    """An array with views.

    It owns a value (NumPy's while every entry is known, JAX's otherwise) and the elements that were
    assigned one by one since; or it is a view, an operation on another array.
    """

    __slots__ = ("_base", "_cells", "_elements", "_raw", "_seen", "_shape", "_view")

    def __init__(self, value: Value) -> None:
        self._raw: Value = value
        self._cells: np.ndarray | None = None
        self._elements: dict[tuple[int, ...], Any] = {}
        self._base: Self | None = None
        self._view: View | None = None
        self._shape: tuple[int, ...] = value.shape
        self._seen: tuple[Any, Any] = (None, None)

    # The value ----------------------------------------------------------------------------------

    @property
    def _root(self) -> Self:
        array = self
        while array._base is not None:
            array = array._base
        return array

    def _look(self, view: View, shape: tuple[int, ...]) -> Self:
        array = type(self).__new__(type(self))
        array._base, array._view, array._shape = self, view, shape
        array._cells, array._elements, array._seen = None, {}, (None, None)
        return array

    def _stored(self) -> Value:
        """The value without the elements assigned since."""
        if self._base is None or self._view is None:
            return self._raw
        base = self._base._stored()
        if isinstance(base, np.ndarray):
            part: Value = self._view.read(base)
            return part
        if self._seen[0] is not base:
            view = self._view
            self._seen = (base, watch.once((*view.name, base), lambda: view.read(base)))
        return self._seen[1]

    def _assigned(self) -> np.ndarray | None:
        """The cells of this array: a true NumPy view of those of the array that it looks into."""
        if self._base is None or self._view is None:
            return self._cells
        cells = self._base._assigned()
        return None if cells is None else self._view.read(cells)

    @property
    def value(self) -> Value:
        """The whole value."""
        root = self._root
        if root._cells is not None:
            root._replace(_merge(root._raw, root._cells))
        return self._stored()

    def _replace(self, value: Value) -> None:
        if self._base is None or self._view is None:
            self._raw, self._cells, self._elements = value, None, {}
        else:
            self._base._replace(self._view.write(self._base.value, value))

    @property
    def known(self) -> bool:
        """Whether every entry is known: nothing traced has come in yet."""
        root = self._root
        return isinstance(root._raw, np.ndarray) and root._cells is None

    def assign(self, value: Any) -> None:
        """Overwrite all entries."""
        value = self._cast(value)
        if self.known and isinstance(value, np.ndarray | np.generic):
            self._stored()[...] = value
        else:
            self._replace(jnp.broadcast_to(value, self._shape))

    def _cast(self, value: Any) -> Any:
        """``value`` with the type of this array, as NumPy converts on assignment."""
        if not isinstance(value, jax.Array):
            return np.asarray(value).astype(self.dtype)
        if value.dtype == self.dtype:
            return value
        if jnp.iscomplexobj(value) and self.dtype.kind != "c":
            raise TypeError("Complex numbers do not go into a real array.")
        return value.astype(self.dtype)

    # Attributes ---------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self._shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        raise watch.refuse("assigning to the shape", self._root._raw, "write y.reshape")

    @property
    def dtype(self) -> np.dtype:
        """Type of the entries."""
        return np.dtype(self._root._raw.dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self._shape, dtype=int))

    @property
    def T(self) -> Self:
        """The transpose, a view."""
        return self.transpose()

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of unsized object")
        return self._shape[0]

    # Views --------------------------------------------------------------------------------------

    def _layout(self) -> np.ndarray:
        """A NumPy array with the memory layout that this array would have."""
        if self._base is None or self._view is None:
            return np.empty(self._shape, bool)
        layout: np.ndarray = self._view.read(self._base._layout())
        return layout

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Self:
        """A view where NumPy makes one, a copy otherwise."""
        target = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if order not in ("C", "A", "K"):
            value = self.value
            module: Any = np if isinstance(value, np.ndarray) else jnp
            return type(self)(module.reshape(value, target, order=order).copy())
        layout = self._layout()
        result = layout.reshape(target)
        if np.may_share_memory(layout, result) and not copy:
            return self._look(Reshape(result.shape), result.shape)
        return type(self)(self.value.reshape(result.shape))

    def ravel(self, order: str = "C") -> Self:
        """One axis; a view where NumPy makes one."""
        return self.reshape(-1, order=order)

    def transpose(self, *axes: Any) -> Self:
        """A view with the axes in another order."""
        if len(axes) == 1 and not isinstance(axes[0], int):
            axes = axes[0] or ()
        order = tuple(int(axis) % self.ndim for axis in axes) or tuple(range(self.ndim))[::-1]
        shape = np.broadcast_to(np.False_, self._shape).transpose(order).shape
        return self._look(Transpose(order), shape)

    def copy(self, order: str = "C") -> Self:
        """An array of its own."""
        value = self.value
        return type(self)(value.copy() if isinstance(value, np.ndarray) else value)

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()


def _merge(stored: Value, cells: np.ndarray) -> jax.Array:
    """One array of a stored value and the elements assigned since: runs of both, in turn."""
    flat, boxes = stored.reshape(-1), cells.reshape(-1)
    assigned = np.array([box is not None for box in boxes])
    edges = [0, *(np.flatnonzero(np.diff(assigned)) + 1).tolist(), assigned.size]
    pieces = []
    for start, end in pairwise(edges):
        if assigned[start]:
            pieces.append(jnp.stack([box.value for box in boxes[start:end]]))
        else:
            pieces.append(jnp.asarray(flat[start:end]))
    whole = pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)
    return whole.reshape(stored.shape)
