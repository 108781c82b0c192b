"""What the two-pole filter solves, from what users give: evaluations, Jacobians, linear algebra."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.compile import compiled, turn
from probode.base.later import sparse
from probode.engines.native.library import available
from probode.engines.two_pole.krylov import Krylov
from probode.engines.two_pole.linear import Direct
from probode.engines.two_pole.machine import evaluation_in_xla, loop_in_python, loop_in_xla
from probode.engines.two_pole.sparse_lu import Singular, Sparse
from probode.engines.two_pole.step import System
from probode.programs.colouring import read_pattern
from probode.programs.field import Field
from probode.programs.jacobian_check import WatchedJacobian
from probode.programs.memory import Memory
from probode.programs.pattern_check import check_field, check_function
from probode.programs.sparse_jacobian import (
    GivenJacobian,
    TracedJacobian,
    differenced,
    traced_jacobian,
)

_LARGEST_FULL = 4000
"""Components up to which a Jacobian without a pattern is written out."""
_FEW_COLOURS = 100
"""Products with the Jacobian that its diagonal is worth, unasked."""
_FEW_IN_NUMPY = 20_000
"""Components up to which a call of NumPy's takes no longer than handing arrays to XLA and back."""


class Asked(NamedTuple):
    """What users say of a Jacobian and of how to solve with it."""

    jac: Any = None
    """``(t, y) -> J`` of flat states, or a constant matrix."""
    sparsity: Any = None
    lband: int | None = None
    uband: int | None = None
    mass: Any = None
    """A constant matrix (sparse, full, or its diagonal)."""
    function: Callable[[float, np.ndarray], np.ndarray] | None = None
    """The function itself, if it is NumPy's, of which the field is a trace."""
    linear: str = "auto"
    preconditioner: Callable[..., Any] | str | None = None
    """``None``: Jacobi's, where the pattern is known."""

    @property
    def says_where(self) -> bool:
        """Whether it is known where entries are."""
        return any(x is not None for x in (self.sparsity, self.lband, self.uband))


def system_of(field: Any, t0: float, y0: np.ndarray, order: int, asked: Asked) -> System:
    """The system of a traced field, or of one (with ``function``) that only Python evaluates."""
    d, traced = y0.size, isinstance(field, Field)
    if asked.function is not None and d <= _FEW_IN_NUMPY:
        f = asked.function
    else:
        f = _evaluation(field) if traced else field.function
    mass = None if asked.mass is None else _sparse_mass(asked.mass, d)
    invert = None if mass is None else _inverse(mass)
    weigh = None if mass is None else mass.__matmul__
    compiled = traced and asked.function is not f and available()
    loop = loop_in_xla(field) if compiled else loop_in_python(f, d)
    rest = (order, weigh, invert, d, mass, loop)
    if asked.linear == "krylov":
        if not traced:
            raise TypeError(
                "linear='krylov' needs products J v, by JAX: `fun` cannot be traced. Give "
                "`jac_sparsity`, or write it with operations that JAX knows."
            )
        given = asked.preconditioner
        if callable(given):
            _check_preconditioner(given, t0, y0)
        diagonal = _diagonal(field, t0, y0, asked) if given in (None, "jacobi") else None
        linear = Krylov(field, given if callable(given) else None, diagonal, mass)
        weighed = None if mass is None else linear.weighed
        sizes = (order, weighed, linear.invert(invert), d, mass, None, jnp)
        return System(linear.f, lambda t, y: (t, y), linear, *sizes)
    jacobian = _jacobian(field, f, t0, y0, asked)
    return System(f, jacobian, Direct(d, mass), *rest)


def _check_preconditioner(given: Callable[..., Any], t0: float, y0: np.ndarray) -> None:
    """Before an iteration meets what it cannot do with it."""
    found = jax.eval_shape(given, t0, y0, 1.0, y0)
    if getattr(found, "shape", None) != y0.shape:
        raise ValueError(
            f"preconditioner(t, y, c, b) must return an array of shape {y0.shape}, as b has, got "
            f"{getattr(found, 'shape', type(found).__name__)}."
        )


def _diagonal(
    field: Field, t0: float, y0: np.ndarray, asked: Asked
) -> Callable[[float, Any], np.ndarray] | None:
    """That of the Jacobian, where its pattern is known; unasked, where a few products find it."""
    own: Any = None
    if asked.says_where:
        own = _jacobian(field, _evaluation(field), t0, y0, asked._replace(jac=None))
    else:
        own = _own_jacobian(field)
    if own is None and asked.preconditioner == "jacobi":
        raise ValueError(
            "preconditioner='jacobi' needs the diagonal of the Jacobian, and by its program every "
            "component depends on most others: give `jac_sparsity`, or preconditioner='none'."
        )
    if not isinstance(own, TracedJacobian):
        return None
    few = asked.preconditioner is not None or own.coloured.count <= _FEW_COLOURS
    return own.diagonal if few else None


def _evaluation(field: Field) -> Callable[[float, np.ndarray], np.ndarray]:
    """``f(t, y)``, compiled for large arrays, with as little as possible around it."""
    if available():
        return evaluation_in_xla(field)
    call = _value()

    def f(t: float, y: np.ndarray) -> np.ndarray:
        with turn(field.calls_libraries):
            return np.asarray(call(field, t, y))

    return f


@lru_cache(maxsize=1)
def _value() -> Callable[..., Any]:
    # With all optimisations: on large arrays they are worth the compile time.
    return jax.jit(lambda field, t, y: field(t, y))


def _jacobian(
    field: Any, f: Callable[..., np.ndarray], t0: float, y0: np.ndarray, asked: Asked
) -> Callable[[float, np.ndarray], Any]:
    """The user's own; exact where the field is traced; else by differences."""
    d, given = y0.size, (asked.sparsity, asked.lband, asked.uband)
    words = "`jac_sparsity`" if asked.sparsity is not None else "`lband` and `uband`"
    if asked.jac is not None:
        bands = {"below": asked.lband, "above": asked.uband, "sparsity": asked.sparsity}
        return WatchedJacobian(f, _finite_at_first(GivenJacobian(asked.jac, d, **bands), t0, y0), 1)
    if isinstance(field, Field):
        own = _own_jacobian(field)
        pattern = read_pattern(*given, d) if asked.says_where else None
        if own is not None and (pattern is None or not (own.pattern > pattern).nnz):
            return own  # of the program itself, no wider than what was said
        if pattern is None:
            return _written_out(field, d)
        found = traced_jacobian(field, pattern)
        assert found is not None
        check_field(field, t0, y0, found(t0, y0), words)
        return found
    if not asked.says_where:
        if d > _LARGEST_FULL:
            raise ValueError(_too_large(d, "`fun` cannot be traced, so its pattern is not known"))
        sparsity = np.ones((d, d), bool)
        return differenced(field.function, d, sparsity)
    estimated = differenced(field.function, d, *given)
    check_function(field.function, t0, y0, estimated(t0, y0), words)
    return estimated


def _finite_at_first(given: GivenJacobian, t0: float, y0: np.ndarray) -> GivenJacobian:
    """The user's Jacobian; no step, however short, would help where it is not finite."""
    found = given(t0, y0).tocoo()
    wrong = np.flatnonzero(~np.isfinite(found.data))
    if len(wrong):
        i, j, value = (int(found.row[wrong[0]]), int(found.col[wrong[0]]), found.data[wrong[0]])
        raise ValueError(
            f"`jac` is {value} in row {i} and column {j} at the initial value, t = {t0:.6g}: it "
            "must be finite there."
        )
    return given


_PATTERNS = Memory(16)


def _own_jacobian(field: Field) -> TracedJacobian | None:
    """With the pattern of its program, which is found once: numbers in arrays may be part of it."""
    arrays = [np.asarray(x) for x in (*field.constants, *field.args) if np.size(x) > 1]
    contents = tuple(
        (x.shape, x.dtype.str, hashlib.blake2b(x.tobytes(), digest_size=16).digest())
        for x in arrays
    )
    found: TracedJacobian | None = _PATTERNS.get(
        (field.program, contents), lambda: traced_jacobian(field)
    )
    return found if found is None else found.of(field)


def _written_out(field: Field, d: int) -> Callable[[float, np.ndarray], Any]:
    if d > _LARGEST_FULL:
        raise ValueError(_too_large(d, "by its program every component depends on most others"))

    def full(t: float, y: np.ndarray) -> np.ndarray:
        return np.asarray(_full(field, t, y))

    return full


def _too_large(d: int, why: str) -> str:
    return (
        f"the Jacobian of {d} components would take {8e-9 * d * d:.3g} GB, since {why}. Give "
        "`jac_sparsity` (where entries are) or a sparse `jac`; or use SparseEK1(linear='krylov'), "
        "which needs products with it only."
    )


@compiled()
def _full(field: Field, t: Any, y: Any) -> Any:
    return field.jacobian(t, y)[1]


def _sparse_mass(mass: Any, d: int) -> Any:
    if callable(mass):
        raise TypeError(
            "SparseEK1 takes a constant mass matrix, got a function: use EK1, or write the "
            "equation with a constant one."
        )
    if sparse.issparse(mass):
        found = sparse.csc_array(mass)
    else:
        array = np.asarray(mass, float)
        found = sparse.csc_array(sparse.diags_array(array) if array.ndim == 1 else array)
    if found.shape != (d, d):
        raise ValueError(f"the mass matrix must have the shape {(d, d)}, got {found.shape}.")
    return found.astype(float)


def _inverse(mass: Any) -> Callable[[np.ndarray], np.ndarray]:
    try:
        none = sparse.csc_array(mass.shape)
        return Sparse(mass.shape[0], mass).factorised(none, 0.0)
    except Singular:
        raise ValueError(
            "the mass matrix is singular: a differential-algebraic equation, for which SparseEK1 "
            "is not made. Use EK1."
        ) from None
