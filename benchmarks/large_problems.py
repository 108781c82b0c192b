"""Large stiff problems: discretised equations and a reaction network, of any size.

Each is written once, ``f(xp, t, y)`` with ``xp`` NumPy (for SciPy and SUNDIALS) or JAX's (for ours
and diffrax), and says where its Jacobian has entries. ``get(name, size, **parameters)`` makes the
one whose number of unknowns is nearest to ``size``.

The parameters of ``HELD_OUT`` are for judging error bars: no constant of a solver is to be chosen
with them, nor with those sizes. Those of ``RESERVE`` are for a last look after all constants are
fixed, should somebody have chosen one after a look at the others.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp


@dataclass(frozen=True, eq=False)
class Problem:
    """``y' = f(t, y)`` or ``M y' = f(t, y)``, from ``t = 0`` to ``end``."""

    name: str
    end: float
    y0: np.ndarray
    f: Callable[..., Any]
    """``f(xp, t, y)``."""
    pattern: Callable[[], Any]
    """To a sparse matrix with entries where the Jacobian may have them."""
    bands: tuple[int, int] | None = None
    """Diagonals below and above, where they are few."""
    unit: float = 1.0
    """Of ``y``: absolute tolerances are ``rtol`` times this, and errors are measured with it."""
    mass: Callable[[], Any] | None = None
    exact: Callable[[float], np.ndarray] | None = None
    """The solution of the discretised equation, if there is a closed form."""
    preconditioner: Callable[..., Any] | None = None
    """``(xp, c, b) -> u``, near the solution of ``(I - c J) u = b``: for Krylov methods."""
    words: str = ""
    space: int = 1
    """Dimensions: of three, an LU takes memory like ``d^(4/3)``."""
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def d(self) -> int:
        """Number of unknowns."""
        return self.y0.size

    @property
    def in_jax(self) -> Callable[[Any, Any], Any]:
        """``f(t, y)`` with JAX; one and the same function, which is compiled once."""
        if "jax" not in self.cache:
            import jax
            import jax.numpy as jnp

            # Compiled: else it would be traced in each solve, as it cannot be known again.
            self.cache["jax"] = jax.jit(lambda t, y: self.f(jnp, t, y))
        return self.cache["jax"]

    @property
    def in_numpy(self) -> Callable[[Any, Any], Any]:
        """``f(t, y)`` with NumPy."""
        return self.cache.setdefault("numpy", lambda t, y: self.f(np, t, y))

    @property
    def sparsity(self) -> sp.csc_array:
        """The pattern, with ones."""
        if "pattern" not in self.cache:
            found = sp.csc_array(self.pattern(), dtype=float)
            found.sum_duplicates()
            found.eliminate_zeros()  # products store some
            found.sort_indices()
            found.data[:] = 1.0
            found.indices = found.indices.astype(np.int32)  # as SUNDIALS wants them
            found.indptr = found.indptr.astype(np.int32)
            self.cache["pattern"] = found
        return self.cache["pattern"]


# ------------------------------------------------------------------ grids


def _ring(n: int, *offsets: int) -> sp.csr_array:
    """Entries at these diagonals, and where they go on around."""
    i = np.arange(n)
    rows, columns = np.tile(i, len(offsets)), np.concatenate([(i + k) % n for k in offsets])
    return sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n, n))


def _line(n: int, *offsets: int) -> sp.csr_array:
    """Entries at these diagonals."""
    return sp.csr_array(sp.diags_array([np.ones(n - abs(k)) for k in offsets], offsets=offsets))


def _plane(line: sp.csr_array) -> sp.csr_array:
    """Neighbours in two directions."""
    one = sp.eye_array(line.shape[0])
    return sp.csr_array(sp.kron(line, one) + sp.kron(one, line))


def _species(grid: Any, k: int) -> sp.csr_array:
    """``k`` unknowns at each point, one after the other: all meet there, each diffuses alone."""
    points = sp.eye_array(grid.shape[0])
    return sp.csr_array(sp.kron(grid, sp.eye_array(k)) + sp.kron(points, np.ones((k, k))))


def _between(xp: Any, u: Any, left: Any, right: Any) -> Any:
    """With a value before and after."""
    return xp.concatenate([xp.reshape(xp.asarray(left, dtype=u.dtype), (1,)), u,
                           xp.reshape(xp.asarray(right, dtype=u.dtype), (1,))])  # fmt: skip


def _second(xp: Any, u: Any, left: Any, right: Any) -> Any:
    """Second differences, with values before and after."""
    padded = _between(xp, u, left, right)
    return padded[2:] - 2.0 * u + padded[:-2]


def _no_flux(xp: Any, u: Any) -> Any:
    """Second differences, with nothing flowing out at the ends."""
    return _second(xp, u, u[0], u[-1])


def _around(xp: Any, u: Any, axes: tuple[int, ...]) -> Any:
    """Second differences along some axes, each of them a ring."""
    total = -2.0 * len(axes) * u
    for axis in axes:
        total = total + xp.roll(u, 1, axis) + xp.roll(u, -1, axis)
    return total


# ------------------------------------------------------------------ reaction and diffusion


def brusselator_1d(
    size: int, alpha: float = 0.02, a: float = 1.0, b: float = 3.0, end: float = 10.0
) -> Problem:
    """Hairer & Wanner's: two species on a line, values at the ends are given; bands of 2 and 2."""
    n = max(size // 2, 3)
    k = alpha * (n + 1) ** 2
    x = np.arange(1, n + 1) / (n + 1)

    def f(xp: Any, t: Any, y: Any) -> Any:
        u, v = y[0::2], y[1::2]
        w = u * u * v
        du = a + w - (b + 1.0) * u + k * _second(xp, u, a, a)
        dv = b * u - w + k * _second(xp, v, b / a, b / a)
        return xp.stack([du, dv], axis=1).reshape(-1)

    y0 = np.stack([a + np.sin(2 * np.pi * x), np.full(n, b / a)], axis=1).reshape(-1)
    return Problem(
        *("brusselator-1d", end, y0, f),
        lambda: _species(_line(n, -1, 0, 1), 2),
        (2, 2),
        words="two species on a line, relaxation oscillations",
    )


def brusselator_2d(size: int, alpha: float = 0.1, b: float = 3.4, end: float = 1.5) -> Problem:
    """Hairer & Wanner's, periodic, with the source in a disc from the start on."""
    n = max(round(np.sqrt(size / 2)), 4)
    k, x = alpha * n**2, np.arange(n) / n
    across, down = np.meshgrid(x, x, indexing="ij")
    source = np.where((across - 0.3) ** 2 + (down - 0.6) ** 2 <= 0.01, 5.0, 0.0)

    def f(xp: Any, t: Any, y: Any) -> Any:
        grid = y.reshape(n, n, 2)
        u, v = grid[:, :, 0], grid[:, :, 1]
        w = u * u * v
        du = 1.0 + w - (b + 1.0) * u + k * _around(xp, u, (0, 1)) + source
        dv = b * u - w + k * _around(xp, v, (0, 1))
        return xp.stack([du, dv], axis=2).reshape(-1)

    def near(xp: Any, c: Any, right: Any) -> Any:
        return _solve_diffusion(xp, right.reshape(n, n, 2), c, (k, k), (0.0, 0.0), (0, 1))

    start = np.stack([22 * down * (1 - down) ** 1.5, 27 * across * (1 - across) ** 1.5], axis=2)
    return Problem(
        *("brusselator-2d", end, start.reshape(-1), f),
        lambda: _species(_plane(_ring(n, -1, 0, 1)), 2),
        preconditioner=near,
        words="two species on a torus",
    )


def gray_scott_3d(
    size: int, feed: float = 0.04, kill: float = 0.06, spread: float = 0.01, end: float = 60.0
) -> Problem:
    """Gray and Scott's reaction in a cube with periodic sides: for Krylov methods.

    An LU of a three-dimensional grid takes memory like ``d^(4/3)``.
    """
    n = max(round((size / 2) ** (1 / 3)), 4)
    ku, kv, x = spread * n**2, 0.5 * spread * n**2, np.arange(n) / n

    def f(xp: Any, t: Any, y: Any) -> Any:
        grid = y.reshape(n, n, n, 2)
        u, v = grid[..., 0], grid[..., 1]
        w = u * v * v
        du = ku * _around(xp, u, (0, 1, 2)) - w + feed * (1.0 - u)
        dv = kv * _around(xp, v, (0, 1, 2)) + w - (feed + kill) * v
        return xp.stack([du, dv], axis=3).reshape(-1)

    def near(xp: Any, c: Any, right: Any) -> Any:
        decay = (feed, feed + kill)
        return _solve_diffusion(xp, right.reshape(n, n, n, 2), c, (ku, kv), decay, (0, 1, 2))

    def pattern() -> sp.csr_array:
        line, one = _ring(n, -1, 0, 1), sp.eye_array(n)
        cube = sp.kron(_plane(line), one) + sp.kron(sp.kron(one, one), line)
        return _species(sp.csr_array(cube), 2)

    a, b, c = np.meshgrid(x, x, x, indexing="ij")
    bump = np.exp(-30 * ((a - 0.5) ** 2 + (b - 0.45) ** 2 + (c - 0.55) ** 2))
    start = np.stack([1.0 - 0.5 * bump, 0.25 * bump * (1 + 0.3 * np.cos(2 * np.pi * a))], axis=3)
    return Problem(
        *("gray-scott-3d", end, start.reshape(-1), f, pattern),
        preconditioner=near,
        words="two species in a periodic cube",
        space=3,
    )


def _solve_diffusion(
    xp: Any, right: Any, c: Any, spread: Any, decay: Any, axes: tuple[int, ...]
) -> Any:
    """``(1 + c decay - c spread Δ) u = right`` on a ring, torus or cube, by Fourier transforms."""
    n = right.shape[0]
    wave = 2.0 - 2.0 * np.cos(2 * np.pi * np.arange(n) / n)
    half = wave[: n // 2 + 1]
    parts = [wave] * (len(axes) - 1) + [half]
    total: Any = 0.0
    for axis, part in enumerate(parts):
        shape = [1] * len(axes)
        shape[axis] = len(part)
        total = total + part.reshape(shape)
    shape = right.shape[: len(axes)]
    solved = [
        xp.fft.irfftn(
            xp.fft.rfftn(right[..., i]) / (1.0 + c * (decay[i] + spread[i] * total)), s=shape,
            **({"axes": axes} if xp is np else {}),
        )
        for i in range(right.shape[-1])
    ]  # fmt: skip
    return xp.stack(solved, axis=len(axes)).reshape(-1)


def gray_scott_1d(
    size: int, feed: float = 0.035, kill: float = 0.06, end: float = 200.0
) -> Problem:
    """On a line without flux at the ends; pulses that split."""
    n = max(size // 2, 3)
    k, x = 2e-5 * n**2, (np.arange(n) + 0.5) / n

    def f(xp: Any, t: Any, y: Any) -> Any:
        u, v = y[0::2], y[1::2]
        w = u * v * v
        du = k * _no_flux(xp, u) - w + feed * (1.0 - u)
        dv = 0.5 * k * _no_flux(xp, v) + w - (feed + kill) * v
        return xp.stack([du, dv], axis=1).reshape(-1)

    bump = np.exp(-200 * (x - 0.4) ** 2)
    y0 = np.stack([1.0 - 0.5 * bump, 0.3 * bump], axis=1).reshape(-1)
    pattern = lambda: _species(_line(n, -1, 0, 1), 2)  # noqa: E731
    return Problem("gray-scott-1d", end, y0, f, pattern, (2, 2), words="pulses that split")


def fitzhugh_nagumo(size: int, slow: float = 0.02, end: float = 60.0) -> Problem:
    """A nerve on which a pulse travels, fast in front and slow behind."""
    n = max(size // 2, 3)
    length = 40.0
    k, x = (n / length) ** 2, length * (np.arange(n) + 0.5) / n

    def f(xp: Any, t: Any, y: Any) -> Any:
        u, v = y[0::2], y[1::2]
        du = k * _no_flux(xp, u) + u * (1.0 - u) * (u - 0.1) - v
        dv = slow * (u - 0.5 * v)
        return xp.stack([du, dv], axis=1).reshape(-1)

    y0 = np.stack([np.exp(-((x / 4) ** 2)), np.zeros(n)], axis=1).reshape(-1)
    pattern = lambda: _species(_line(n, -1, 0, 1), 2)  # noqa: E731
    return Problem("fitzhugh-nagumo", end, y0, f, pattern, (2, 2), words="a travelling pulse")


def fisher(size: int, spread: float = 2e-4, rate: float = 4.0, end: float = 4.0) -> Problem:
    """Fisher's equation: a front that moves at a constant speed."""
    n = max(size, 5)
    k, x = spread * n**2, (np.arange(n) + 0.5) / n

    def f(xp: Any, t: Any, y: Any) -> Any:
        return k * _no_flux(xp, y) + rate * y * (1.0 - y)

    y0 = np.exp(-80 * x**2)
    pattern = lambda: _line(n, -1, 0, 1)  # noqa: E731
    return Problem("fisher", end, y0, f, pattern, (1, 1), words="a front of constant speed")


def allen_cahn_2d(size: int, width: float = 0.03, end: float = 10.0) -> Problem:
    """Two phases on a square without flux: interfaces form, then move slowly."""
    n = max(round(np.sqrt(size)), 4)
    k, x = width**2 * n**2, (np.arange(n) + 0.5) / n
    a, b = np.meshgrid(x, x, indexing="ij")

    def f(xp: Any, t: Any, y: Any) -> Any:
        u = y.reshape(n, n)
        rows = xp.concatenate([u[:1], u, u[-1:]], axis=0)
        columns = xp.concatenate([u[:, :1], u, u[:, -1:]], axis=1)
        spread = rows[2:] + rows[:-2] + columns[:, 2:] + columns[:, :-2] - 4.0 * u
        return (k * spread + u - u**3).reshape(-1)

    y0 = 0.6 * np.cos(3 * np.pi * a) * np.cos(2 * np.pi * b) + 0.3 * np.cos(np.pi * a * (1 + b))
    pattern = lambda: _plane(_line(n, -1, 0, 1))  # noqa: E731
    return Problem("allen-cahn-2d", end, y0.reshape(-1), f, pattern, words="two phases on a square")


def cahn_hilliard(size: int, width: float = 0.04, end: float = 0.2) -> Problem:
    """Phases that separate on a line: fourth derivatives, so stiffness like ``d^4``."""
    n = max(size, 8)
    k, x = float(n**2), (np.arange(n) + 0.5) / n

    def f(xp: Any, t: Any, y: Any) -> Any:
        potential = y**3 - y - (width**2 * k) * _no_flux(xp, y)
        return k * _no_flux(xp, potential)

    y0 = 0.3 * np.cos(2 * np.pi * x) + 0.2 * np.cos(5 * np.pi * x) + 0.05
    pattern = lambda: _line(n, -2, -1, 0, 1, 2)  # noqa: E731
    return Problem("cahn-hilliard", end, y0, f, pattern, (2, 2), words="phases that separate")


def kuramoto_sivashinsky(size: int, length: float = 22.0, end: float = 15.0) -> Problem:
    """``u_t + u u_x + u_xx + u_xxxx = 0`` on a ring: long waves grow, short ones are damped."""
    n = max(size, 16)
    dx = length / n
    x = dx * np.arange(n)

    def f(xp: Any, t: Any, y: Any) -> Any:
        ahead, behind = xp.roll(y, -1), xp.roll(y, 1)
        second = (ahead - 2.0 * y + behind) / dx**2
        fourth = (xp.roll(second, -1) - 2.0 * second + xp.roll(second, 1)) / dx**2
        return -(ahead**2 - behind**2) / (4.0 * dx) - second - fourth

    y0 = np.cos(2 * np.pi * x / length) * (1.0 + np.sin(2 * np.pi * x / length))
    pattern = lambda: _ring(n, -2, -1, 0, 1, 2)  # noqa: E731
    return Problem("kuramoto-sivashinsky", end, y0, f, pattern, words="growing and damped waves")


def porous_medium(size: int, end: float = 0.1) -> Problem:
    """``u_t = (u²)_xx / 2`` between walls: the diffusion itself depends on the solution."""
    n = max(size, 5)
    x = (np.arange(n) + 0.5) / n

    def f(xp: Any, t: Any, y: Any) -> Any:
        return (0.5 * n**2) * _no_flux(xp, y**2)

    y0 = 0.1 + np.exp(-50 * (x - 0.35) ** 2)
    pattern = lambda: _line(n, -1, 0, 1)  # noqa: E731
    return Problem("porous-medium", end, y0, f, pattern, (1, 1), words="nonlinear diffusion")


# ------------------------------------------------------------------ transport


def burgers(size: int, viscosity: float = 5e-3, end: float = 1.0) -> Problem:
    """Waves that steepen, with as much viscosity as resolves them from 200 points on."""
    n = max(size, 5)
    dx = 1.0 / (n + 1)
    x = dx * np.arange(1, n + 1)

    def f(xp: Any, t: Any, y: Any) -> Any:
        u = _between(xp, y, 0.0, 0.0)
        steepen = (u[2:] ** 2 - u[:-2] ** 2) / (4.0 * dx)
        return (viscosity / dx**2) * (u[2:] - 2.0 * y + u[:-2]) - steepen

    y0 = np.sin(2 * np.pi * x) + 0.5 * np.sin(np.pi * x)
    pattern = lambda: _line(n, -1, 0, 1)  # noqa: E731
    return Problem("burgers", end, y0, f, pattern, (1, 1), words="waves that steepen")


def advection(size: int, spread: float = 1e-4, end: float = 1.5) -> Problem:
    """What flows in at the left end moves to the right: transport with little diffusion.

    Differences of third order against the stream; what flows in changes in time.
    """
    n = max(size, 8)
    dx = 1.0 / n
    x = dx * (np.arange(n) + 1)
    speed = 1.0 + 0.5 * np.sin(2 * np.pi * x)

    def f(xp: Any, t: Any, y: Any) -> Any:
        enters = xp.sin(3.0 * t) ** 2 * xp.ones(1)
        u = xp.concatenate([2.0 * enters - y[:1], enters, y, 2.0 * y[-1:] - y[-2:-1]])
        slope = (u[:-3] - 6.0 * u[1:-2] + 3.0 * u[2:-1] + 2.0 * u[3:]) / (6.0 * dx)
        return (spread / dx**2) * (u[3:] - 2.0 * y + u[1:-2]) - speed * slope

    pattern = lambda: _line(n, -2, -1, 0, 1)  # noqa: E731
    return Problem("advection", end, np.zeros(n), f, pattern, (2, 1), words="mostly transport")


# ------------------------------------------------------------------ heat, with closed forms


def heat(size: int, end: float = 0.1) -> Problem:
    """``u_t = u_xx`` with cold ends; the exact solution is that of the differences."""
    n = max(size, 3)
    k = float((n + 1) ** 2)
    x = np.arange(1, n + 1) / (n + 1)
    modes, sizes = np.array([1, 2, 5, 9]), np.array([1.0, 0.7, 0.5, 0.3])

    def f(xp: Any, t: Any, y: Any) -> Any:
        return k * _second(xp, y, 0.0, 0.0)

    def exact(t: float) -> np.ndarray:
        rates = 4.0 * k * np.sin(0.5 * np.pi * modes / (n + 1)) ** 2
        weights = sizes * np.exp(-rates * t)
        return np.sum([w * np.sin(m * np.pi * x) for m, w in zip(modes, weights, strict=True)], 0)

    return Problem(
        *("heat", end, exact(0.0), f, lambda: _line(n, -1, 0, 1), (1, 1)),
        exact=exact,
        words="heat with cold ends",
    )


def finite_elements(size: int, end: float = 0.5) -> Problem:
    """Heat on a square by bilinear elements, ``M y' = -K y + F(t)``, with a source that oscillates.

    On a square grid ``M`` and ``K`` are products of those on a line, so sines are eigenvectors.
    """
    n = max(round(np.sqrt(size)), 3)
    h = 1.0 / (n + 1)
    x = np.arange(1, n + 1) * h
    frequency, pairs, sizes = 20.0, [(1, 1), (2, 1), (3, 4)], [1.0, 0.8, 0.5]
    driven = np.outer(np.sin(np.pi * x), np.sin(2 * np.pi * x))

    def weigh(xp: Any, u: Any, axis: int) -> Any:
        before, after = _shifted(xp, u, axis)
        return (h / 6.0) * (4.0 * u + before + after)

    def stiffness(xp: Any, u: Any, axis: int) -> Any:
        before, after = _shifted(xp, u, axis)
        return (2.0 * u - before - after) / h

    def f(xp: Any, t: Any, y: Any) -> Any:
        u = y.reshape(n, n)
        flow = stiffness(xp, weigh(xp, u, 0), 1) + weigh(xp, stiffness(xp, u, 0), 1)
        return (xp.cos(frequency * t) * load - flow).reshape(-1)

    load = weigh(np, weigh(np, driven, 0), 1)

    def rate(pair: tuple[int, int]) -> float:
        found = 0.0
        for mode in pair:
            angle = mode * np.pi * h
            found += 6.0 / h**2 * (2 - 2 * np.cos(angle)) / (4 + 2 * np.cos(angle))
        return found

    def exact(t: float) -> np.ndarray:
        total = np.zeros((n, n))
        for (a, b), size in zip(pairs, sizes, strict=True):
            shape = np.outer(np.sin(a * np.pi * x), np.sin(b * np.pi * x))
            total += size * np.exp(-rate((a, b)) * t) * shape
        r, w = rate((1, 2)), frequency
        answer = (r * np.cos(w * t) + w * np.sin(w * t) - r * np.exp(-r * t)) / (r * r + w * w)
        return (total + answer * driven).reshape(-1)

    def mass() -> sp.csc_array:
        line = sp.diags_array(
            [np.full(n - 1, h / 6), np.full(n, 4 * h / 6), np.full(n - 1, h / 6)],
            offsets=[-1, 0, 1],
        )
        return sp.csc_array(sp.kron(line, line))

    def pattern() -> sp.csr_array:
        line = _line(n, -1, 0, 1)
        return sp.csr_array(sp.kron(line, line))

    return Problem(
        *("finite-elements", end, exact(0.0), f, pattern),
        mass=mass,
        exact=exact,
        words="heat by finite elements, with a mass matrix",
    )


def _shifted(xp: Any, u: Any, axis: int) -> tuple[Any, Any]:
    """Neighbours before and after, zero outside."""
    if axis == 0:
        none = xp.zeros_like(u[:1])
        return xp.concatenate([none, u[:-1]], axis=0), xp.concatenate([u[1:], none], axis=0)
    none = xp.zeros_like(u[:, :1])
    return xp.concatenate([none, u[:, :-1]], axis=1), xp.concatenate([u[:, 1:], none], axis=1)


# ------------------------------------------------------------------ a reaction network


def network(size: int, seed: int = 7, end: float = 0.1) -> Problem:
    """Reactions of mass action between more than a hundred species, with rates over ten decades.

    A chain of reversible changes ``A_i <-> A_(i+1)`` and twice as many reversible reactions
    ``A_i + A_j <-> A_k + A_l`` among random ones. Both keep the number of molecules.
    """
    d = max(size, 12)
    random = np.random.default_rng(seed)
    chain = np.stack([np.arange(d - 1), np.arange(1, d)])
    drawn = np.array([random.choice(d, 4, replace=False) for _ in range(2 * d)]).T
    none = d  # a species that is always one
    filler = np.full(2 * (d - 1), none)
    first = np.concatenate([chain[0], chain[1], drawn[0], drawn[2]])
    second = np.concatenate([filler, drawn[1], drawn[3]])
    to_one = np.concatenate([chain[1], chain[0], drawn[2], drawn[0]])
    to_two = np.concatenate([filler, drawn[3], drawn[1]])
    slow = 10.0 ** random.uniform(-4.0, 4.0, d - 1)
    fast = 10.0 ** random.uniform(-4.0, 6.0, 2 * d)
    rates = np.concatenate(
        [slow, slow * 10.0 ** random.uniform(-1, 1, d - 1), fast,
         fast * 10.0 ** random.uniform(-1, 1, 2 * d)]
    )  # fmt: skip

    def f(xp: Any, t: Any, y: Any) -> Any:
        known = xp.concatenate([y, xp.ones(1)])
        flow = rates * known[first] * known[second]
        if xp is np:
            gained = np.bincount(to_one, flow, d + 1) + np.bincount(to_two, flow, d + 1)
            lost = np.bincount(first, flow, d + 1) + np.bincount(second, flow, d + 1)
            return (gained - lost)[:d]
        total = xp.zeros(d + 1)
        total = total.at[to_one].add(flow).at[to_two].add(flow)
        return total.at[first].add(-flow).at[second].add(-flow)[:d]

    def pattern() -> sp.csr_array:
        rows = np.concatenate([np.tile(x, 2) for x in (first, second, to_one, to_two)])
        columns = np.tile(np.concatenate([first, second]), 4)
        inside = (rows < d) & (columns < d)
        entries = (np.ones(inside.sum()), (rows[inside], columns[inside]))
        return sp.csr_array(entries, shape=(d, d)) + sp.eye_array(d)

    y0 = np.zeros(d)
    y0[:: max(d // 10, 1)] = 1.0
    return Problem(
        *("network", end, y0, f, pattern),
        unit=0.01,
        words="reactions of mass action, rates over ten decades",
    )


# ------------------------------------------------------------------ by name

MAKERS: dict[str, Callable[..., Problem]] = {
    "brusselator-1d": brusselator_1d,
    "brusselator-2d": brusselator_2d,
    "burgers": burgers,
    "heat": heat,
    "allen-cahn-2d": allen_cahn_2d,
    "cahn-hilliard": cahn_hilliard,
    "advection": advection,
    "gray-scott-3d": gray_scott_3d,
    "finite-elements": finite_elements,
    "network": network,
    "gray-scott-1d": gray_scott_1d,
    "fitzhugh-nagumo": fitzhugh_nagumo,
    "fisher": fisher,
    "porous-medium": porous_medium,
    "kuramoto-sivashinsky": kuramoto_sivashinsky,
}

HELD_OUT: dict[str, tuple[str, int, dict[str, float]]] = {
    "brusselator-1d": ("brusselator-1d", 300, {"alpha": 0.005, "b": 3.4, "end": 12.0}),
    "brusselator-2d": ("brusselator-2d", 392, {"alpha": 0.02, "b": 3.0, "end": 4.0}),
    "burgers": ("burgers", 300, {"viscosity": 6e-3, "end": 1.5}),
    "heat": ("heat", 250, {}),
    "allen-cahn-2d": ("allen-cahn-2d", 256, {"width": 0.06}),
    "cahn-hilliard": ("cahn-hilliard", 150, {}),
    "advection": ("advection", 240, {}),
    "gray-scott-3d": ("gray-scott-3d", 432, {}),
    "finite-elements": ("finite-elements", 225, {}),
    "network": ("network", 120, {"end": 100.0}),
    "network-2": ("network", 160, {"seed": 11, "end": 10.0}),
    "gray-scott-1d": ("gray-scott-1d", 240, {}),
    "fitzhugh-nagumo": ("fitzhugh-nagumo", 300, {}),
    "fisher": ("fisher", 200, {}),
    "porous-medium": ("porous-medium", 200, {}),
    "kuramoto-sivashinsky": ("kuramoto-sivashinsky", 96, {}),
}

RESERVE: dict[str, tuple[str, int, dict[str, float]]] = {
    "brusselator-1d": ("brusselator-1d", 260, {"alpha": 0.01, "b": 3.8, "end": 8.0}),
    "brusselator-2d": ("brusselator-2d", 288, {"alpha": 0.05, "b": 3.7, "end": 3.0}),
    "burgers": ("burgers", 260, {"viscosity": 1e-2, "end": 0.8}),
    "heat": ("heat", 180, {"end": 0.05}),
    "allen-cahn-2d": ("allen-cahn-2d", 324, {"width": 0.05, "end": 6.0}),
    "cahn-hilliard": ("cahn-hilliard", 120, {"width": 0.05, "end": 0.1}),
    "advection": ("advection", 180, {"spread": 1e-3, "end": 1.0}),
    "gray-scott-3d": ("gray-scott-3d", 686, {"feed": 0.03, "kill": 0.055}),
    "finite-elements": ("finite-elements", 196, {"end": 0.3}),
    "network": ("network", 140, {"seed": 23, "end": 1.0}),
    "network-2": ("network", 110, {"seed": 31, "end": 0.01}),
    "gray-scott-1d": ("gray-scott-1d", 200, {"feed": 0.025, "kill": 0.055, "end": 150.0}),
    "fitzhugh-nagumo": ("fitzhugh-nagumo", 240, {"slow": 0.05, "end": 40.0}),
    "fisher": ("fisher", 160, {"spread": 5e-4, "rate": 3.0, "end": 3.0}),
    "porous-medium": ("porous-medium", 160, {"end": 0.05}),
    "kuramoto-sivashinsky": ("kuramoto-sivashinsky", 80, {"length": 18.0, "end": 10.0}),
}


def names() -> list[str]:
    """All problems."""
    return list(MAKERS)


@lru_cache(maxsize=64)
def get(name: str, size: int) -> Problem:
    """A problem by its name, of about ``size`` unknowns."""
    if name not in MAKERS:
        raise ValueError(f"a problem must be one of {', '.join(MAKERS)}, got {name!r}.")
    return MAKERS[name](size)


@lru_cache(maxsize=128)
def held_out(name: str, reserve: bool = False) -> Problem:
    """A problem by which error bars are judged."""
    maker, size, parameters = (RESERVE if reserve else HELD_OUT)[name]
    return MAKERS[maker](size, **parameters)
