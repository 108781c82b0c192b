"""The filter in the kernels (``native/src/two_pole.hpp``): no Python between two evaluations.

It goes on by itself until something is wanted that it does not have: ``f``, a Jacobian, a sparse
factorisation. Of a traced function the loop is one program of XLA's, in which ``f`` and the
kernels take turns; of another one Python evaluates, and hands the value over.
"""

import ctypes
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.compile import turn
from probode.base.precision import double_precision
from probode.base.status import Status
from probode.engines.native.library import address, load
from probode.engines.two_pole import step
from probode.engines.two_pole.linear import Banded, Direct, Full
from probode.engines.two_pole.sparse_lu import Decomposed, Singular, Sparse
from probode.engines.two_pole.step import Counts, Standing, System
from probode.model.two_pole import HIGHEST, gains
from probode.programs.field import Field
from probode.programs.sparse_jacobian import TracedJacobian

CHUNK, JACOBIAN, FACTORS, SAVE = range(4)
"""Why it has stopped: ``Exit`` in ``kernels.hpp``."""
_ROW, _PREDICTED, _BEFORE, _ERROR, _AROUND, _LARGEST, _LOW, _HIGH = range(8)
"""Vectors that it hands out."""

_NARROW = 4
"""Diagonals on each side up to which bands with as many on both are solved in half the time."""


class Known(NamedTuple):
    """Where the filter stands, in numbers."""

    t: float
    h: float
    following: float
    order: int
    std: float
    noise: float
    exit: int
    status: Status
    failures: int
    taken: int
    """Steps of this chunk."""
    c: float
    """``γ h`` of the matrix that is wanted."""
    target: float
    """Where the step ends that is tried."""
    before: float
    """Where the last one began."""
    counts: Counts
    judged: tuple[float, float, float, float, int]
    """Of the error: see ``Judged``."""
    f: int
    """Evaluations for the error."""
    errors: int
    """Nodes, or times, whose error is known."""


class Carried(NamedTuple):
    """The error, as far as it was carried."""

    errors: list[np.ndarray]
    """At all nodes after the first, or at the times that were asked for."""
    judged: tuple[float, float, float, float, int]
    f: int
    around: list[np.ndarray]
    """At the times: roots of the mean squares around."""
    extremes: tuple[np.ndarray, ...]
    """Of all nodes: largest errors, smallest and largest values. Without times: none."""


class Scheme(NamedTuple):
    """How the error is carried: the numbers of ``ErrorTransport``, and times, if at these alone."""

    numbers: np.ndarray
    times: np.ndarray | None
    begins: np.ndarray
    """The error of the start."""


class Machine:
    """A filter in the kernels, which goes on from call to call."""

    def __init__(self, handle: int, system: System, n: int, scheme: Scheme | None) -> None:
        self._handle, self.system, self._n, self._scheme = handle, system, n, scheme
        self._jacobian: Any = None
        self._chosen: Any = None
        self._begun = 0
        """Evaluations before the first step."""
        weakref.finalize(self, _library().probode_machine_free, ctypes.c_void_p(handle))

    @staticmethod
    def start(
        system: System, control: Any, t1: float, begun: Standing, scheme: Scheme | None
    ) -> "Machine":
        """Before the first step, of which length and slope are known."""
        library, d = _library(), begun.x.shape[1]
        atol, rtol = (np.atleast_1d(np.asarray(one, float)) for one in (control.atol, control.rtol))
        bounds = float(control.min_step), float(control.max_step)
        many = [float(one.size > 1) for one in (atol, rtol)]
        where = d, system.highest, begun.t, t1, begun.following, begun.h
        numbers = np.array([*where, *bounds, *many, *step.HABITS, *_gains(system.highest)])
        x = np.ascontiguousarray(begun.x)
        given = [address(one) for one in (numbers, atol, rtol, x)]
        made = Machine(library.probode_two_pole(*given), system, system.highest + 1, scheme)
        made._begun = begun.counts.f
        if system.weights is not None:
            rows = system.weights.tocsr()
            made._call("weigh", rows.data, *map(_short, (rows.indices, rows.indptr)))
            made._sparse(Decomposed.of(system.weights), True)
        if scheme is not None:
            times = np.zeros(0) if scheme.times is None else np.asarray(scheme.times, float)
            count, watched = ctypes.c_long(len(times)), scheme.times is not None
            made._call("carry", scheme.numbers, times, count, watched, scheme.begins)
        return made

    def copy(self) -> "Machine":
        """One that goes on from here, and leaves this one where it is."""
        handle = _library().probode_machine_copy(ctypes.c_void_p(self._handle))
        other = Machine(handle, self.system, self._n, self._scheme)
        other._jacobian, other._chosen, other._begun = self._jacobian, self._chosen, self._begun
        return other

    def run(
        self, attempts: int, rows: tuple[np.ndarray, np.ndarray] | None = None, save: float = np.nan
    ) -> Known:
        """At most so many attempts; until the rows are filled, or a step has passed ``save``.

        ``rows`` are derivatives, ``(count, q+1, d)``, and numbers, ``(count, 5)``: ``t, h``, the
        noise, the standard deviation and the order. The first of them is where it stands already.
        """
        count = 0 if rows is None else len(rows[0]) - 1
        places = (None, None) if rows is None else (address(rows[0]), address(rows[1]))
        numbers = ctypes.c_long(attempts), ctypes.c_long(count), *places
        self._call("plan", *numbers, ctypes.c_double(save))
        return self._go()

    def finished(self) -> Carried:
        """The error up to here, with the nodes that were waiting for later ones."""
        self._call("finish")
        known = self._go()
        times = self._scheme is not None and self._scheme.times is not None
        errors = [self._vector(_ERROR, k) for k in range(known.errors)]
        around = [self._vector(_AROUND, k) for k in range(known.errors if times else 0)]
        extremes = [self._vector(one) for one in (_LARGEST, _LOW, _HIGH)] if times else []
        return Carried(errors, known.judged, known.f, around, tuple(extremes))

    def known(self) -> Known:
        """Where it stands."""
        found = np.empty(27)
        self._call("scalars", found)
        t, h, following, order, std, noise, why, status, failures, taken, *rest = found.tolist()
        c, target, before, *rest = rest
        made, judged, (f, errors, _) = rest[:6], rest[6:11], rest[11:]
        counts = Counts(*map(int, made))
        counts = counts._replace(f=counts.f + self._begun)
        return Known(
            *(t, h, following, int(order), std, noise, int(why), Status(int(status))),
            *(int(failures), int(taken), c, target, before, counts),
            *((*judged[:4], int(judged[4])), int(f), int(errors)),  # type: ignore[arg-type]
        )

    def row(self, room: np.ndarray | None = None) -> np.ndarray:
        """Derivatives in plain units, ``(q+1, d)``."""
        found = np.empty((self._n, self.system.size)) if room is None else room
        self._call("vector", _ROW, ctypes.c_long(0), found)
        return found

    def before(self) -> np.ndarray:
        """Value and slope before the last step, if the time to be saved was inside of it."""
        return self._vector(_BEFORE, rows=2)

    def _go(self) -> Known:
        loop = self.system.loop
        assert loop is not None
        while True:
            loop(self._handle)
            known = self.known()
            if known.exit == JACOBIAN:
                self._take_jacobian(known.target, self._vector(_PREDICTED))
            elif known.exit == FACTORS:
                self._take_factors(known.c)
            else:
                return known

    def _take_jacobian(self, t: float, y: np.ndarray) -> None:
        source, linear = self.system.jacobian, self.system.linear
        assert isinstance(linear, Direct)
        if isinstance(source, TracedJacobian) and isinstance(linear.chosen(source.pattern), Banded):
            self._chosen, matrix, colours = (
                linear.chosen(source.pattern),
                source.pattern,
                source.coloured.colours,
            )
            entries = source.products(t, y)  # straight into the band
        else:
            matrix = source(t, y)
            self._chosen, colours = linear.chosen(matrix), None
            if not isinstance(self._chosen, Banded):
                self._jacobian = matrix
                return self._call("took_jacobian")
            entries = np.asarray(matrix.data, float)
        order = None if self._chosen.order is None else _short(self._chosen.order)
        places = order, _short(matrix.indptr), _short(matrix.indices)
        widths = self._chosen.lower, self._chosen.upper
        if 0 < max(widths) <= _NARROW:
            widths = max(widths), max(widths)
        return self._call("band", *widths, *places, np.ascontiguousarray(entries), colours)

    def _take_factors(self, c: float) -> None:
        chosen = self._chosen
        try:
            if isinstance(chosen, Sparse):
                return self._take_sparse(chosen, c)
            assert isinstance(chosen, Full)
            both, exchanged = chosen.decomposed(self._jacobian, c)
        except Singular:
            return self._call("singular")
        return self._call("full_factors", np.asfortranarray(both), _short(exchanged))

    def _take_sparse(self, chosen: Sparse, c: float) -> None:
        found = chosen.by_fronts(self._jacobian, c)
        if found is not None:
            fronts, entries = found
            taken = _library().probode_machine_fronts
            if taken(ctypes.c_void_p(self._handle), fronts.handle, address(entries)):
                return
        self._sparse(chosen.decomposed(self._jacobian, c), False)

    def _sparse(self, made: Decomposed, inverse: bool) -> None:
        lu, places = made.lu, np.empty(self.system.size, np.int64)
        places[made.order] = np.arange(self.system.size)
        parts = [(one.data, _short(one.indices), _short(one.indptr)) for one in (lu.L, lu.U)]
        gone = [_short(one[places]) for one in (lu.perm_r, lu.perm_c)]
        self._call("sparse_factors", *parts[0], *parts[1], *gone, inverse)

    def _vector(self, which: int, k: int = 0, rows: int = 0) -> np.ndarray:
        found = np.empty((rows, self.system.size) if rows else self.system.size)
        self._call("vector", which, ctypes.c_long(k), found)
        return found

    def _call(self, name: str, *given: Any) -> None:
        """One of the library's functions, which take a machine first."""
        values = [address(one) if isinstance(one, np.ndarray) else one for one in given]
        getattr(_library(), f"probode_machine_{name}")(ctypes.c_void_p(self._handle), *values)


def _library() -> Any:
    library = load()
    assert library is not None
    return library


def _short(indices: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(indices, np.int32)


@lru_cache(maxsize=HIGHEST)
def _gains(highest: int) -> tuple[float, ...]:
    """Of all orders up to the highest one, as ``TwoPoleGain`` has them."""
    found: list[float] = []
    for q in range(1, highest + 1):
        gain, room = gains(q), [0.0] * (HIGHEST - q)
        found += [gain.gamma, gain.error, *gain.alpha, *room, *gain.beta, *room]
    return tuple(found)


# ------------------------------------------------------------------ who evaluates

Loop = Callable[[int], None]
"""Evaluates ``f`` for a machine, as long as it wants that."""


def loop_in_python(f: Callable[[float, np.ndarray], np.ndarray], d: int) -> Loop:
    """By Python."""

    def loop(handle: int) -> None:
        advance, machine = _library().probode_machine_advance, ctypes.c_void_p(handle)
        t, y, value = np.zeros(1), np.zeros(d), np.zeros(d)
        places = address(t), address(y)
        while advance(machine, address(value), *places):
            value = np.ascontiguousarray(f(float(t[0]), y), float)

    return loop


def loop_in_xla(field: Field) -> Loop:
    """By one program of XLA's, in which ``f`` and the kernels take turns."""

    def loop(handle: int) -> None:
        with double_precision(), turn(field.calls_libraries):
            jax.block_until_ready(_loop()(field, np.array([handle])))

    return loop


def evaluation_in_xla(field: Field) -> Callable[[float, np.ndarray], np.ndarray]:
    """``f(t, y)`` by the same program: nothing else is compiled."""
    loop = loop_in_xla(field)

    def f(t: float, y: np.ndarray) -> np.ndarray:
        library, y, value = _library(), np.ascontiguousarray(y, float), np.empty(field.d)
        given = ctypes.c_double(t), address(y), address(value), ctypes.c_long(field.d)
        handle = library.probode_evaluation(*given)
        try:
            loop(handle)
        finally:
            library.probode_machine_free(ctypes.c_void_p(handle))
        return value

    return f


@lru_cache(maxsize=1)
def _loop() -> Callable[..., Any]:
    # With all optimisations: on large arrays they are worth the compile time.
    return jax.jit(_take_turns)


def _take_turns(field: Field, machine: Any) -> Any:
    number, vector = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((), (field.d,)))
    shapes = number, vector, jax.ShapeDtypeStruct((), jnp.bool_)

    def asked(f: Any, y: Any) -> Any:
        """Where ``f`` is wanted next, and whether it is."""
        call = jax.ffi.ffi_call(
            "probode_xla_wanted", shapes, has_side_effect=True, input_output_aliases={2: 1}
        )
        return call(machine, f, y)

    def turn_by_turn(carry: Any) -> Any:
        t, y, _ = carry
        return asked(field(t, y), y)

    none = jnp.zeros(field.d)
    return jax.lax.while_loop(lambda carry: carry[2], turn_by_turn, tuple(asked(none, none)))[2]
