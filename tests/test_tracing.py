"""Right-hand sides as scientists write them, and what becomes of them.

Each snippet names the way in which it should become traceable (or ``None``: it stays Python).
Values are compared with the snippet itself, Jacobians with central differences of it.
"""

import functools
import math
import sys
import types
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from math import cos, exp, sin
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy as numerical
import pytest
import scipy.interpolate
import scipy.sparse
import scipy.special
from jax.experimental.jet import jet
from numpy import sqrt, tanh
from numpy.linalg import norm
from scipy.special import expit

from probode.precision import double_precision
from probode.problem import bind
from probode.program import trace
from probode.tracing import _in_order, arrays, make_traceable
from probode.tracing.evaluate import Evaluator


class Snippet(NamedTuple):
    name: str
    fun: Callable[..., Any]
    y0: Any
    path: str | None
    args: tuple[Any, ...]
    t_span: tuple[float, float]


SNIPPETS: list[Snippet] = []


def snippet(
    path: str | None, y0: Any, args: tuple[Any, ...] = (), t_span: Any = (0.0, 2.0), name: str = ""
) -> Callable[..., Any]:
    def register(fun: Callable[..., Any]) -> Callable[..., Any]:
        SNIPPETS.append(Snippet(name or fun.__name__, fun, y0, path, args, t_span))
        return fun

    return register


# As it is: arithmetic only, or written for JAX ---------------------------------------------------


@snippet("jax", [0.5])
def decay(t, y):
    return -0.5 * y


@snippet("jax", [10.0, 5.0], (1.5, 1.0, 3.0, 1.0))
def lotka_volterra_unpacking(t, z, a, b, c, d):
    x, y = z
    return [a * x - b * x * y, -c * y + d * x * y]


@snippet("jax", [1.0, 1.0, 1.0])
def lorenz_list(t, state, sigma=10.0, rho=28.0, beta=8 / 3):
    x, y, z = state
    return [sigma * (y - x), x * (rho - z) - y, x * y - beta * z]


@snippet("jax", [1.0, 0.0, 0.0])
def robertson_tuple(t, y):
    return (
        -0.04 * y[0] + 1e4 * y[1] * y[2],
        0.04 * y[0] - 1e4 * y[1] * y[2] - 3e7 * y[1] ** 2,
        3e7 * y[1] ** 2,
    )


@snippet("jax", [0.99, 0.0, 0.01, 0.0], ({"beta": 0.9, "sigma": 0.2, "gamma": 0.1},))
def seir_dict_argument(t, y, p):
    S, E, I, _ = y  # noqa: E741
    infection = p["beta"] * S * I
    return [-infection, infection - p["sigma"] * E, p["sigma"] * E - p["gamma"] * I, p["gamma"] * I]


@snippet("jax", [1.0, 0.5], ([0.3, 0.7],))
def list_argument_unpacked(t, y, k):
    k1, k2 = k
    return [-k1 * y[0], k1 * y[0] - k2 * y[1]]


@snippet("jax", [1.0, 2.0])
def written_for_jax(t, y):
    return jnp.array([y[1], (1 - y[0] ** 2) * y[1] - y[0] + jnp.sin(t)])


@snippet("jax", [1.0, 2.0])
@jax.jit
def compiled_by_jax(t, y):
    return -jnp.flip(y) * t


COUPLING = np.array([[-1.0, 0.3, 0.0], [0.2, -2.0, 0.1], [0.0, 0.4, -0.5]])


@snippet("jax", [1.0, 2.0, 3.0])
def global_matrix_product(t, y):
    return COUPLING @ y


snippet("jax", [1.0, 2.0], name="lambda_")(lambda t, y: [y[1], -y[0]])


@snippet("jax", [1.0, 2.0], ({"loss": 0.3, "gain": 1.5},))
def dictionary_in_given_order(t, y, p):
    loss, gain = p.values()
    return [gain * y[1] - loss * y[0], -y[1]]


# NumPy ------------------------------------------------------------------------------------------


@snippet("numpy", [2.0, 0.0], (5.0,))
def van_der_pol_array(t, y, mu):
    return np.array([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])


@snippet("numpy", [1.0, 0.0], (0.2, 9.81, 1.0))
def pendulum_math(t, y, damping, g, length):
    theta, omega = y
    return [omega, -damping * omega - g / length * math.sin(theta)]


@snippet("numpy", [1.0, 0.3])
def driven_from_math_import(t, y):
    return [y[1], -sin(y[0]) + 0.3 * cos(2 * t) * exp(-t)]


@snippet("numpy", [1.0, 0.3])
def names_from_numpy(t, y):
    return numerical.array([tanh(y[1]), -sqrt(1 + y[0] ** 2) * norm(y)])


@snippet("numpy", [1.0, 0, 0, 0, 0, 0, 0, 0.0057])
def hires_zeros_and_items(t, y):
    dy = np.zeros(8)
    dy[0] = -1.71 * y[0] + 0.43 * y[1] + 8.32 * y[2] + 0.0007
    dy[1] = 1.71 * y[0] - 8.75 * y[1]
    dy[2] = -10.03 * y[2] + 0.43 * y[3] + 0.035 * y[4]
    dy[3] = 8.32 * y[1] + 1.71 * y[2] - 1.12 * y[3]
    dy[4] = -1.745 * y[4] + 0.43 * y[5] + 0.43 * y[6]
    dy[5] = -280.0 * y[5] * y[7] + 0.69 * y[3] + 1.71 * y[4] - 0.43 * y[5] + 0.69 * y[6]
    dy[6] = 280.0 * y[5] * y[7] - 1.81 * y[6]
    dy[7] = -280.0 * y[5] * y[7] + 1.81 * y[6]
    return dy


@snippet("numpy", [0.9, 0.1, 0.0], (0.5, 0.2))
def sir_empty_like(t, y, beta, gamma):
    dydt = np.empty_like(y)
    dydt[0] = -beta * y[0] * y[1]
    dydt[1] = beta * y[0] * y[1] - gamma * y[1]
    dydt[2] = gamma * y[1]
    return dydt


@snippet("numpy", [1.0, 2.0, 3.0])
def accumulated_rates(t, y):
    dy = np.zeros(len(y))
    for source, target, rate in [(0, 1, 0.3), (1, 2, 0.5), (2, 0, 0.1)]:
        flux = rate * y[source]
        dy[source] -= flux
        dy[target] += flux
    return dy


@snippet("numpy", np.sin(np.linspace(0, 3, 20)) + 1.5, (0.1,))
def heat_with_boundaries(t, u, kappa):
    du = np.zeros_like(u)
    du[1:-1] = kappa * (u[2:] - 2 * u[1:-1] + u[:-2])
    du[0] = 0.0
    du[-1] = kappa * (u[-2] - u[-1])
    return du


@snippet("numpy", np.concatenate([np.linspace(0.9, 1, 12), np.linspace(0.2, 0.1, 12)]))
def gray_scott_roll(t, y):
    n = y.size // 2
    u, v = y[:n], y[n:]
    lap_u = np.roll(u, 1) - 2 * u + np.roll(u, -1)
    lap_v = np.roll(v, 1) - 2 * v + np.roll(v, -1)
    reaction = u * v**2
    return np.concatenate([2e-1 * lap_u - reaction + 0.04 * (1 - u), lap_v + reaction - 0.1 * v])


@snippet("numpy", np.linspace(0.2, 1.2, 16))
def brusselator_interleaved_views(t, y):
    u, v = y[::2], y[1::2]
    dydt = np.empty_like(y)
    dudt, dvdt = dydt[::2], dydt[1::2]
    dudt[0] = 1 + u[0] ** 2 * v[0] - 4 * u[0]
    dudt[1:-1] = 1 + u[1:-1] ** 2 * v[1:-1] - 4 * u[1:-1] + np.diff(u, 2)
    dudt[-1] = 1 + u[-1] ** 2 * v[-1] - 4 * u[-1]
    dvdt[:] = 3 * u - u**2 * v
    dvdt[1:-1] += np.diff(v, n=2)
    return dydt


@snippet("numpy", np.linspace(0.0, 1.0, 25).reshape(-1))
def laplacian_two_dimensional(t, y):
    n = int(np.sqrt(len(y)))
    u = y.reshape(n, n)
    du = np.zeros((n, n))
    du[1:-1, 1:-1] = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    du[0, :] = u[1, :] - u[0, :]
    du[:, -1] = np.sin(u[:, -1])
    return du.ravel()


@snippet("numpy", np.linspace(0.1, 0.9, 10))
def periodic_gradient(t, u):
    return -u * np.gradient(u, 0.1) + 0.01 * (np.roll(u, -1) + np.roll(u, 1) - 2 * u)


@snippet(
    "numpy", [0.5, -0.2, 0.1, 1.0, 0.3, -0.4, -0.6, 0.2, 0.8, 0, 1, 0, 0.5, 0, -0.3, 0, 0, 0.1]
)
def n_body_loops(t, w):
    masses = [1.0, 2.0, 0.5]
    r = w[:9].reshape(3, 3)
    v = w[9:].reshape(3, 3)
    a = np.zeros_like(r)
    for i in range(3):
        for j in range(3):
            if i != j:
                d = r[j] - r[i]
                a[i] += masses[j] * d / np.linalg.norm(d) ** 3
    return np.hstack((v.ravel(), a.flatten()))


@snippet("numpy", [0.994, 0.0, 0.0, -2.0015851063790825])
def arenstorf_scalars(t, y):
    mu = 0.012277471
    x1, x2, v1, v2 = y
    d1 = ((x1 + mu) ** 2 + x2**2) ** 1.5
    d2 = ((x1 - (1 - mu)) ** 2 + x2**2) ** 1.5
    out = np.zeros(4)
    out[:2] = v1, v2
    out[2] = x1 + 2 * v2 - (1 - mu) * (x1 + mu) / d1 - mu * (x1 - (1 - mu)) / d2
    out[3] = x2 - 2 * v1 - (1 - mu) * x2 / d1 - mu * x2 / d2
    return out


@snippet("numpy", [1.0, 0.1, 0.2, 2.0], (np.array([[0.0, 1.0], [-2.0, -0.3]]), np.eye(2)))
def riccati_matrix(t, p, A, Q):
    P = p.reshape((2, 2))
    dP = A.dot(P) + P.dot(A.T) - np.dot(P, P) + Q
    return dP.ravel()


@snippet("numpy", np.linspace(0, 5, 6), (1.2,))
def kuramoto_vectorised(t, theta, K):
    omega = np.linspace(-1, 1, theta.size)
    return omega + K / theta.size * np.sum(np.sin(theta - theta[:, np.newaxis]), axis=1)


@snippet("numpy", np.linspace(0, 5, 6))
def kuramoto_outer(t, theta):
    return np.sin(np.subtract.outer(theta, theta)).mean(axis=0)


@snippet("numpy", np.linspace(-1, 1, 8) + 8.0)
def lorenz_96_index_loop(t, x):
    n = len(x)
    d = np.zeros(n)
    for i in range(n):
        d[i] = (x[(i + 1) % n] - x[i - 2]) * x[i - 1] - x[i] + 8.0
    return d


@snippet("numpy", [0.2, 1.3, 0.4, 1.0], (np.array([0, 1, 2]), np.array([1, 2, 3])))
def network_index_arrays(t, x, source, target):
    flux = 0.3 * (x[target] - x[source])
    dx = np.zeros(x.shape)
    np.add.at(dx, source, flux)
    np.subtract.at(dx, target, flux)
    return dx


@snippet("numpy", [1.0, 2.0, 3.0, 4.0])
def fancy_index_and_known_mask(t, y):
    inner = np.array([False, True, True, False])
    dy = -1.0 * y
    dy[inner] = y[[3, 0]] * 2
    dy[[0, 3]] += np.exp(-t)
    return dy


@snippet("numpy", [1.0, -2.0, 3.0])
def mask_assignment(t, y):
    dy = np.cos(y)
    dy[y < 0] = 0.0
    return dy


@snippet("numpy", [0.5, 1.0])
def where_clip_maximum(t, y):
    rate = np.where(y[0] > 0.2, y[0] ** 2, 0.0)
    return np.array([np.clip(y[1], 0, 0.7) - rate, np.maximum(0, y[0]) - np.minimum(y[1], 2.0)])


@snippet("numpy", [0.5, 0.2])
def cases_by_select_and_piecewise(t, y):
    growth = np.select([y < 0.1, y < 0.4], [0.0, y**2], default=np.sin(y))
    return growth + np.piecewise(y, [y > 0.3], [lambda x: np.exp(x), 0.5])


@snippet("numpy", [0.5, 0.2])
def complex_inside(t, y):
    z = y[0] + 1j * y[1]
    w = z * (1 - abs(z) ** 2) + np.exp(1j * z)
    return np.array([w.real, w.imag])


@snippet("numpy", [0.5, 0.2, 0.1])
def generators_and_reductions(t, y):
    pulls = np.array([sum(np.sin(y[j] - y[i]) for j in range(3)) for i in range(3)])
    return pulls + functools.reduce(lambda a, b: a * b, y) + math.fsum(y) + np.polyval([1, 2], y)


@snippet("numpy", [0.5, 1.0])
def switched_by_heaviside(t, y):
    return np.array([np.heaviside(t - 1, 0.5) - y[0], np.sign(y[0]) * np.abs(y[1])])


TIMES, LOADS = np.linspace(0, 2, 9), np.cos(np.linspace(0, 2, 9))


@snippet("numpy", [0.5, 1.0])
def interpolated_forcing(t, y):
    return np.array([y[1], -y[0] + np.interp(t, TIMES, LOADS)])


@snippet("numpy", [1.0, 1.0, 1.0])
def in_place_on_y(t, y):
    y *= 2.0
    y[0] = 0.0
    y += np.sin(t)
    return y


@snippet("numpy", [0.1, 0.2, 0.3])
def stacked_columns(t, y):
    a = np.column_stack((y, y**2))
    b = np.vstack([y, np.ones(3)])
    return (a @ b).sum(axis=1) / np.append(y[:2], 1.0).sum()


@snippet("numpy", [0.1, 0.2, 0.3])
def euler_rigid_body_cross(t, w):
    inertia = np.diag([1.0, 2.0, 3.0])
    return np.linalg.solve(inertia, -np.cross(w, inertia @ w))


@snippet("numpy", [1.0, 0.0, 0.0, 0.0], ((0.1, 0.2, 0.3),))
def quaternion_tuple_argument(t, q, omega):
    p, r, s = omega
    matrix = 0.5 * np.array([[0, -p, -r, -s], [p, 0, s, -r], [r, -s, 0, p], [s, r, -p, 0]])
    return np.einsum("ij,j->i", matrix, q)


@snippet("numpy", [0.3, 0.4])
def ragged_powers(t, y):
    return np.array([np.power(y[0], 1.7), y[1] ** 3 / (1 + y[1] ** 2)]) - np.log1p(y) * np.exp(-y)


@snippet("numpy", [0.3, 0.4, 0.5])
def sums_and_products(t, y):
    total = np.sum(y) + sum(y) + y.prod() + np.cumsum(y)[-1]
    return total - y.mean() * y + y.max() - np.array([y.min(), y.std(), np.dot(y, y)])


@snippet("numpy", [0.3, 0.4, 0.5, 0.6])
def split_and_join(t, y):
    position, velocity = np.split(y, 2)
    return np.r_[velocity, -position * np.hypot(position[0], position[1])]


@snippet("numpy", [0.3, 0.4, 0.5, 0.6])
def matrix_view_written_through(t, y):
    out = np.zeros(4)
    table = out.reshape(2, 2)
    table[0] = y[:2]
    table.T[1] += y[2:] ** 2
    table[1, 0] -= y[0]
    return out


@snippet("numpy", [0.3, 0.4])
def ufunc_with_out(t, y):
    out = np.zeros_like(y)
    np.multiply(y, 2.0, out=out)
    np.divide(1.0, y, out=out, where=y > 0.35)
    return out


@snippet("numpy", [0.3, 0.4, 0.5])
def numpy_inside(t, y):
    import numpy as np_local
    from numpy import sin as sine

    return np_local.array([sine(y[0]), np_local.cos(y[1]), y[2]])


@snippet("numpy", [3.0, 0.4])
def logistic_with_scipy(t, y):
    return np.array([expit(y[0]), scipy.special.erf(y[1])]) - y


LAPLACIAN = scipy.sparse.diags([np.ones(9), -2 * np.ones(10), np.ones(9)], [-1, 0, 1], format="csr")


@snippet("numpy", np.linspace(0, 1, 10) ** 2, (0.7,))
def sparse_matrix(t, u, D):
    return D * LAPLACIAN.dot(u) + (D * LAPLACIAN) @ u + u * (1 - u)


@snippet("numpy", [1.0, 0.0], (3, True))
def integers_steer(t, y, n, damped):
    dy = np.zeros(2)
    for k in range(1, n + 1):
        dy += np.array([y[1], -y[0]]) / k
    if damped:
        dy -= 0.1 * y
    return dy


@snippet("numpy", [1.0, 0.5], (lambda t: np.sin(3 * t), 2))
def function_argument(t, y, control, power):
    return np.array([control(t) - y[0] ** power, y[0] - y[1]])


@snippet("numpy", [0.7, 0.2])
def keyword_defaults(t, y, *, gain=np.array([1.0, 2.0])):  # noqa: B008
    return gain * np.tanh(y)


def saturation(x, half=0.5):
    return x / (half + x)


def uptake(x, depth=2):
    return saturation(x) * math.exp(-x) if depth == 0 else uptake(x, depth - 1)


@snippet("numpy", [0.7, 0.2])
def helpers_in_the_module(t, y):
    return np.array([uptake(y[0]) - y[1], saturation(y[1])])


RATES = {"growth": 0.4, "loss": np.array([0.1, 0.2])}


@snippet("numpy", [0.7, 0.2])
def global_parameters(t, y):
    return RATES["growth"] * np.sqrt(y) - RATES["loss"] * y


def make_closure() -> Callable[..., Any]:
    matrix = np.array([[0.0, 1.0], [-1.0, -0.1]])
    forcing = np.array([0.0, 1.0])
    buffer = np.empty(2)

    def helper(t):
        return forcing * np.cos(t)

    def closure(t, y):
        buffer[:] = matrix.dot(y)
        buffer[1] += helper(t)[1]
        return buffer

    return closure


snippet("numpy", [0.7, 0.2], name="closure_over_arrays_and_buffer")(make_closure())


class Model:
    def __init__(self):
        self.k = np.array([1.0, 2.0])

    def rate(self, y):
        return self.k * np.sin(y)


class Extended(Model):
    def rate(self, y):
        return super().rate(y) + np.array([y[1], y[0]])

    def __call__(self, t, y):
        return self.rate(y)


snippet("numpy", [0.1, 0.2], name="inherited_method")(Extended())


class Oscillator:
    stiffness = np.array([[2.0, -1.0], [-1.0, 2.0]])

    def __init__(self, damping):
        self.damping = damping
        self.load = np.array([0.0, 1.0])

    def force(self, x):
        return -self.stiffness.dot(x) + self.load

    @property
    def friction(self):
        return np.exp(-self.damping)

    @staticmethod
    def split(y):
        return np.split(y, 2)

    def rhs(self, t, y):
        x, v = self.split(y)
        dy = np.zeros(4)
        dy[:2] = v
        dy[2:] = self.force(x) - self.friction * v
        return dy

    __call__ = rhs


snippet("numpy", [0.1, 0.2, 0.3, 0.4], name="bound_method")(Oscillator(0.3).rhs)
snippet("numpy", [0.1, 0.2, 0.3, 0.4], name="callable_object")(Oscillator(0.3))


@dataclass(frozen=True)
class Parameters:
    k: float = 0.3
    weights: np.ndarray = field(default_factory=lambda: np.array([1.0, 2.0]))

    def rate(self, y):
        return self.k * np.dot(self.weights, y)


@snippet("numpy", [0.7, 0.2], (Parameters(),))
def dataclass_argument(t, y, p):
    return np.array([-p.rate(y), p.weights.dot(y) ** 2])


Constants = namedtuple("Constants", "a b")


@snippet("numpy", [0.7, 0.2], (Constants(1.5, 2.5),))
def named_tuple_argument(t, y, c):
    return np.array([c.a * y[1], -c.b * math.sqrt(y[0])])


def general(k, t, y, omega):
    return np.stack([y[1], -k * np.sin(omega * y[0])])


snippet("numpy", [0.7, 0.2], (1.3,), name="partial")(functools.partial(general, 2.0))


def logged(fun):
    @functools.wraps(fun)
    def wrapper(*args, **kwargs):
        return np.asarray(fun(*args, **kwargs))

    return wrapper


@snippet("numpy", [0.7, 0.2])
@logged
def decorated(t, y):
    return [math.tan(y[1]), -math.atan2(y[0], y[1])]


@snippet("numpy", [0.7, 0.2], t_span=(2.0, 0.0))
def backwards_in_time(t, y):
    return np.flip(y) * np.cos(t)


@snippet("numpy", [0.5, 0.25, 0.125, 0.0625])
def spectral_derivative(t, u):
    k = np.fft.fftfreq(u.size, 1 / u.size)
    return np.real(np.fft.ifft(-(k**2) * np.fft.fft(u)))


@snippet("numpy", np.arange(6.0).reshape(2, 3) / 7 + 0.1)
def state_with_two_axes(t, y):
    dy = np.empty((2, 3))
    dy[0] = y[1]
    dy[1] = -np.sin(y[0])
    return dy


@snippet("numpy", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
def columns_first(t, y):
    m = np.sin(y.reshape(2, 3, order="F"))
    return m.ravel(order="F") + m.flatten("F") * m.T.ravel()


class Tank:
    area = np.array([[1.0, 0.2], [0.1, 2.0]])

    @classmethod
    def outflow(cls, t, y):
        return -cls.area.dot(np.sqrt(y))


snippet("numpy", [0.7, 0.2], name="class_method")(Tank.outflow)


@snippet("numpy", [0.1, 0.2, 0.3, 0.4])
def complex_state_in_real_form(t, y):
    def schroedinger(t, z):
        dz = np.zeros(2, dtype=complex)
        dz[0] = -1j * (z[1] + np.abs(z[0]) ** 2 * z[0])
        dz[1] = -1j * np.conj(z[0])
        return dz

    dz = schroedinger(t, y[:2] + 1j * y[2:])
    return np.concatenate([np.real(dz), np.imag(dz)])


@snippet("numpy", [0.1, 0.2])
def one_column_of_a_vectorised_function(t, y):
    def columns(t, y):
        return np.vstack([np.sin(y[1]), -y[0]])

    return np.reshape(columns(t, y[:, None]), (2,))


@snippet("numpy", [0.4, 0.2], (np.int64(2), np.bool_(True)))
def integers_of_numpy(t, y, n, damped):
    dy = np.zeros(n)
    dy[:] = np.sin(y)
    return dy - y if damped else dy


# Entry by entry ---------------------------------------------------------------------------------


@np.vectorize
def hill(x):
    return x**2 / (1 + x**2)


@snippet("scalars", [0.7, 0.2])
def vectorised_helper(t, y):
    return hill(y) - math.exp(-t) * y


michaelis = np.frompyfunc(lambda x, k: x / (k + x), 2, 1)


@snippet("scalars", [0.7, 0.2, 0.5])
def function_of_objects(t, y):
    dy = np.zeros(3)
    dy[:2] = michaelis(y[:2], 0.4)
    dy[2] = np.sin(y).sum()
    return dy


def installed_helper() -> Any:
    """A function of another package, which keeps its own ``numpy``."""
    module = types.ModuleType("installed_rates")
    module.__file__ = "site-packages/installed_rates.py"
    sys.modules["installed_rates"] = module
    exec(
        "import numpy as np\n"
        "def rates(y):\n"
        "    return np.array([np.exp(-y[0]) * y[1], np.sqrt(y[0])])\n",
        vars(module),
    )
    return module.rates


rates_elsewhere = installed_helper()


@snippet("scalars", [0.7, 0.2])
def helper_of_another_package(t, y):
    return rates_elsewhere(y) - y


installed = types.FunctionType(
    compile("lambda t, y: rates(y)", "installed_rates.py", "eval").co_consts[0],
    vars(sys.modules["installed_rates"]),
)
snippet("numpy", [0.7, 0.2], name="function_of_another_package")(installed)


# Stays Python -----------------------------------------------------------------------------------


@snippet(None, [0.7, 0.2])
def branch_on_state(t, y):
    if y[0] > 0:
        return [-y[0], y[1]]
    return [0.0, y[1]]


@snippet(None, [0.7, 0.2])
def branch_on_time(t, y):
    dose = 1.0 if t > 1 else 0.0
    return np.array([dose - y[0], y[0] - y[1]])


@snippet(None, [0.7, 0.2])
def builtin_max(t, y):
    return [max(0, y[0]), min(y[1], 1.0)]


@snippet(None, [0.7, 0.2])
def float_of_component(t, y):
    return [float(y[0]), y[1]]


@snippet(None, [0.7, 0.2])
def integer_of_time(t, y):
    return np.array([TIMES[int(t)], y[1]])


@snippet(None, [0.7, 0.2])
def while_loop(t, y):
    x = y[0]
    while x > 1e-3:
        x = x / 2
    return np.array([x, y[1]])


@snippet(None, [0.7, 0.2])
def try_and_except(t, y):
    try:
        return [math.sqrt(y[0]), y[1]]
    except ValueError:
        return [0.0, y[1]]


@snippet(None, [0.7, 0.2])
def swallowed_refusal(t, y):
    try:
        return np.array([1.0, 0.0]) if y[0] > 0 else np.array([0.0, 1.0])
    except Exception:
        return -np.sin(y)


@snippet(None, [0.7, 0.2])
def mask_selects(t, y):
    return y - np.sum(y[y > 0.5])


@snippet(None, [0.7, 0.2])
def any_in_condition(t, y):
    return -y if np.any(y > 0) else np.zeros(2)


@snippet(None, [0.7, 0.2])
def chained_comparison(t, y):
    return np.array([1.0 if 0 < y[0] < 1 else 0.0, y[1]])


@snippet(None, [0.7, 0.2])
def noise(t, y):
    return np.sin(y) + np.random.normal(size=2)  # noqa: NPY002


@snippet(None, [0.7, 0.2])
def noise_without_arrays(t, y):
    return [y[0] + np.random.rand(), y[1]]  # noqa: NPY002


@snippet(None, [0.7, 0.2])
def isinstance_of_floats(t, y):
    return [2.0 * y[0], y[1]] if isinstance(y[0], float) else [y[0], y[1]]


@snippet(None, [0.7, 0.2])
def special_function_without_derivative(t, y):
    return scipy.special.jv(1.5, y)


@snippet(None, [0.7, 0.2])
def text_as_key(t, y):
    table = {"0.70": 1.0}
    return [table.get(f"{y[0]:.2f}", 0.0), y[1]]


@snippet(None, [0.7, 0.2])
def set_membership(t, y):
    return np.array([1.0 if y[0] in (0.7, 0.8) else 0.0, y[1]])


SPLINE = scipy.interpolate.CubicSpline(TIMES, LOADS)


@snippet(None, [0.7, 0.2])
def spline_of_time(t, y):
    return np.array([SPLINE(t), y[1]])


@snippet(None, [0.7, 0.2])
def long_python_loop(t, y):
    x = y[0]
    for _ in range(20_000):
        x = x + 1e-6 * y[1]
    return np.array([x, y[1]])


# What is claimed --------------------------------------------------------------------------------


def ids(snippets: list[Snippet]) -> list[str]:
    return [s.name for s in snippets]


def traceable(s: Snippet) -> Any:
    return make_traceable(s.fun, s.t_span, np.array(s.y0, float), s.args)


def original(s: Snippet, t: float, y: np.ndarray) -> np.ndarray:
    return np.array(s.fun(t, y.copy(), *s.args), float)


TRACED = [s for s in SNIPPETS if s.path is not None]
STAYS = [s for s in SNIPPETS if s.path is None]


@pytest.mark.parametrize("s", STAYS, ids=ids(STAYS))
def test_what_depends_on_values_is_not_traced(s: Snippet) -> None:
    assert traceable(s) is None


@pytest.mark.parametrize("s", TRACED, ids=ids(TRACED))
def test_snippet_is_traced_with_its_values_and_jacobian(s: Snippet) -> None:
    """Central differences with step 1e-6 are good to about 1e-9 relative to the scale of f."""
    found = traceable(s)
    assert found is not None
    assert found.path == s.path
    y0 = np.array(s.y0, float)
    t, y = sum(s.t_span) / 2 + 0.1, 1.01 * y0 + 0.003
    known = tuple(s.args)  # parameters as they are: only t and y are traced here

    def both(t, y):
        def value(y):
            return found.function(t, y, *known)

        return value(y), jax.jacfwd(value)(y)

    with double_precision():
        value, jacobian = jax.jit(both)(t, y)
        expected = original(s, t, y)
        differences = np.empty(y.shape + y.shape)
        for i in np.ndindex(y.shape):
            h = np.zeros(y.shape)
            h[i] = 1e-6
            differences[(..., *i)] = (original(s, t, y + h) - original(s, t, y - h)) / 2e-6
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-13)
    scale = max(1.0, float(np.abs(differences).max()))
    np.testing.assert_allclose(jacobian, differences, atol=1e-7 * scale, rtol=1e-6)


WITH_ARGUMENTS = [s for s in TRACED if s.args]


@pytest.mark.parametrize("s", WITH_ARGUMENTS, ids=ids(WITH_ARGUMENTS))
def test_numbers_among_the_arguments_are_data(s: Snippet) -> None:
    """The program that the solvers bind gives the values for other numbers, put in later."""
    y0 = np.array(s.y0, float)
    found = traceable(s)
    with double_precision():
        field = bind(found.function, jnp.zeros(()), jnp.asarray(y0), s.args, None, diagonal=False)
        others = [x if x.dtype.kind in "biu" else 1.1 * x for x in field.args]
        value = jax.jit(lambda t, y, x: field.program(field.constants, t, y, *x))(
            0.5, y0.reshape(-1), others
        )

    def changed(leaf: Any) -> Any:
        is_real = isinstance(leaf, float) or getattr(leaf, "dtype", None) == np.float64
        return 1.1 * leaf if is_real else leaf

    expected = s.fun(0.5, y0.copy(), *_in_order(s.args, jax.tree.map(changed, s.args)))
    np.testing.assert_allclose(value, np.ravel(expected), rtol=1e-11)


@pytest.mark.parametrize(
    "name",
    [
        "hires_zeros_and_items",
        "heat_with_boundaries",
        "brusselator_interleaved_views",
        "laplacian_two_dimensional",
        "n_body_loops",
        "interpolated_forcing",
        "sparse_matrix",
        "fancy_index_and_known_mask",
        "mask_assignment",
    ],
)
def test_item_assignment_leaves_taylor_mode_possible(name: str) -> None:
    """Assignments become slices and selections, for which Taylor mode has rules (not: scatters)."""
    (s,) = [s for s in SNIPPETS if s.name == name]
    found, y0 = traceable(s), np.array(s.y0, float) + 0.01
    with double_precision():
        direction, zero = np.ones_like(y0), np.zeros_like(y0)
        _, (first, _) = jax.jit(
            lambda y: jet(
                lambda t, y: found.function(t, y, *s.args),
                (0.3, y),
                ([0.0, 0.0], [direction, zero]),
            )
        )(y0)
    h = 1e-6
    difference = (original(s, 0.3, y0 + h) - original(s, 0.3, y0 - h)) / (2 * h)
    np.testing.assert_allclose(first, difference, rtol=1e-5, atol=1e-5)


def test_vmap_gives_what_single_calls_give() -> None:
    found = make_traceable(pendulum_math, (0, 1), [1.0, 0.0], (0.2, 9.81, 1.0))
    assert found is not None
    ys = np.array([[1.0, 0.0], [0.3, -0.2], [2.0, 1.0]])
    with double_precision():
        rows = jax.jit(jax.vmap(lambda y: found.function(0.0, y, 0.2, 9.81, 1.0)))(ys)
    np.testing.assert_allclose(rows, [pendulum_math(0.0, y, 0.2, 9.81, 1.0) for y in ys], 1e-14)


@pytest.mark.parametrize("s", TRACED, ids=ids(TRACED))
def test_programs_run_with_numpy_as_when_compiled(s: Snippet) -> None:
    """The interpreter that checks traces computes what the compiler makes of them."""
    found, y0 = traceable(s), np.array(s.y0, float) + 0.01
    with double_precision():
        program = jax.make_jaxpr(lambda t, y: found.function(t, y, *s.args))(0.7, y0)
        compiled = jax.jit(lambda t, y: jax.core.eval_jaxpr(program.jaxpr, program.consts, t, y))
        value = Evaluator(program)(np.float64(0.7), y0)
        np.testing.assert_allclose(value, compiled(0.7, y0)[0], rtol=1e-12, atol=1e-13)


# Care for what is the user's --------------------------------------------------------------------


def test_in_place_changes_of_y_do_not_reach_the_caller() -> None:
    y0 = np.array([1.0, 2.0, 3.0])
    found = make_traceable(in_place_on_y, (0, 1), y0, ())
    assert found is not None
    with double_precision():
        found.function(0.0, y0)
    np.testing.assert_array_equal(y0, [1.0, 2.0, 3.0])


def test_arrays_among_the_arguments_are_not_changed() -> None:
    def fun(t, y, k):
        k[0] = 7.0
        return k * np.sin(y)

    k = np.array([1.0, 2.0])
    found = make_traceable(fun, (0, 1), [1.0, 2.0], (k,))
    assert found is not None
    np.testing.assert_array_equal(k, [1.0, 2.0])


def test_a_function_that_keeps_records_stays_python_and_records_stay_clean() -> None:
    records: list[Any] = []

    def fun(t, y):
        records.append(t)
        return -y

    assert make_traceable(fun, (0, 1), [1.0], ()) is None
    assert records == []


def test_a_function_that_counts_stays_python_and_the_count_stays() -> None:
    count = 0

    def fun(t, y):
        nonlocal count
        count += 1
        return -np.sin(y)

    assert make_traceable(fun, (0, 1), [1.0], ()) is None
    assert count == 0


def test_an_object_that_counts_stays_python_and_the_count_stays() -> None:
    class Model:
        calls = 0

        def __call__(self, t, y):
            self.calls += 1
            return -np.sin(y)

    model = Model()
    assert make_traceable(model, (0, 1), [1.0], ()) is None
    assert model.calls == 0


def test_a_function_that_prints_stays_python_and_prints_nothing_yet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fun(t, y):
        print(t)
        return -y

    assert make_traceable(fun, (0, 1), [1.0], ()) is None
    assert capsys.readouterr().out == ""


def test_random_numbers_are_not_used_up() -> None:
    generator = np.random.default_rng(3)

    def fun(t, y):
        return generator.normal() - y + np.random.rand()  # noqa: NPY002

    np.random.seed(5)  # noqa: NPY002
    expected = fun(0.0, 0.0)
    generator = np.random.default_rng(3)
    np.random.seed(5)  # noqa: NPY002
    assert make_traceable(fun, (0, 1), [0.0], ()) is None
    assert fun(0.0, 0.0) == expected


def test_originals_are_left_as_they_are() -> None:
    """Copies see stand-ins, the originals do not."""
    model = Oscillator(0.3)
    assert make_traceable(model.rhs, (0, 1), [0.1, 0.2, 0.3, 0.4], ()) is not None
    assert type(model) is Oscillator
    assert type(model.load) is np.ndarray
    assert type(RATES["loss"]) is np.ndarray
    assert isinstance(np.zeros(3), np.ndarray)
    assert type(saturation(np.ones(2))) is np.ndarray


def test_parameters_changed_later_are_seen() -> None:
    """Globals are read when the function is traced, not when it was made traceable."""
    model = Oscillator(0.3)
    y = np.array([0.1, 0.2, 0.3, 0.4])
    found = make_traceable(model, (0, 1), y, ())
    assert found is not None
    model.damping = 2.0
    with double_precision():
        np.testing.assert_allclose(found.function(0.0, y), model(0.0, y), rtol=1e-14)


def test_an_exception_at_the_start_comes_through() -> None:
    def fun(t, y):
        raise KeyError("no such rate")

    with pytest.raises(KeyError, match="no such rate"):
        make_traceable(fun, (0, 1), [1.0], ())


def test_a_bad_index_comes_through() -> None:
    with pytest.raises(IndexError):
        make_traceable(lambda t, y: [y[0], y[5]], (0, 1), [1.0, 2.0], ())


def test_an_exception_elsewhere_does_not_matter() -> None:
    def fun(t, y):
        return [math.log(y[0])]

    found = make_traceable(fun, (0, 1), [1.0], ())
    assert found is not None
    assert found.path == "numpy"


def test_warnings_away_from_the_start_are_not_shown(recwarn: pytest.WarningsRecorder) -> None:
    assert make_traceable(lambda t, y: np.log(y), (0, 1), [1.0], ()) is not None
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_a_wrong_shape_is_passed_on() -> None:
    found = make_traceable(lambda t, y: np.array([y[0], y[1], 0.0]), (0, 1), [1.0, 2.0], ())
    assert found is not None
    with double_precision():
        assert found.function(0.0, np.array([1.0, 2.0])).shape == (3,)


@pytest.mark.parametrize("result", [None, "text", [[1.0], [1.0, 2.0]], 1j])
def test_what_is_no_array_of_real_numbers_is_left_to_the_caller(result: Any) -> None:
    assert make_traceable(lambda t, y: result, (0, 1), [1.0, 2.0], ()) is None


def test_complex_states_are_left_to_the_caller() -> None:
    assert make_traceable(lambda t, y: 1j * y, (0, 1), [1.0 + 1j], ()) is None


def test_terms_that_cancel_are_not_a_difference() -> None:
    """Sums in another order differ by more than 1e-9 of a result that almost vanishes."""
    weights = np.array([1e12, -1e12, 1.0, 1e-3] * 5)

    def fun(t, y):
        return np.array([np.sum(weights * y), np.dot(weights, y)])

    with double_precision():
        found = make_traceable(lambda t, y: fun(t, np.repeat(y, 10)), (0, 1), [1.0, 1.0], ())
    assert found is not None


def test_more_components_than_can_be_unrolled_stay_python() -> None:
    assert make_traceable(vectorised_helper, (0, 1), np.ones(65), ()) is None


def test_integers_are_data_where_they_can_be() -> None:
    """An integer that only enters arithmetic does not become part of the program."""

    def fun(t, y, n):
        return n * np.sin(y)

    found = make_traceable(fun, (0, 1), [1.0], (3,))
    assert found is not None
    with double_precision():
        program = [trace(found.function, 0.0, np.ones(1), n)[0] for n in (3, 4)]
    assert program[0] == program[1]


# The stand-in for arrays ------------------------------------------------------------------------


def emulated(fun: Callable[[Any], Any], *shape: int) -> tuple[Any, Any]:
    """``fun`` of an array, traced and with NumPy."""
    x = np.arange(1.0, 1.0 + math.prod(shape)).reshape(shape)

    def traced(x):
        return arrays.unwrap(fun(arrays.TracedArray(x)), as_array=True)

    with double_precision():
        return jax.jit(traced)(x), fun(x.copy())


def chained_views(x):
    x[1:][::2].T[0] = 7.0
    x[::-1, ::2][1] += 1.0
    return x


def copy_of_transpose(x):
    x.T.ravel()[0] = 100.0
    return x


def flattened_view(x):
    x.ravel()[::3] = -1.0
    return x


def element_then_slice(x):
    x[0, 0] = 5.0
    x[:, 1] = x[0, 0]
    x[-1, -1] *= 3.0
    return x * 2


def repeated_places(x):
    x[[0, 0, 1]] = x[[2, 1, 0]]
    return x


def leading_ones_and_newaxis(x):
    x[0] = x[1][None]
    x[..., -1] = 3.0
    return x[:, None, ::-1]


def alias_of_an_element(x):
    a = x[0, 0]
    a += 10.0
    b = x[1]
    b -= a
    return x + a


def integers_truncate(x):
    whole = np.zeros_like(x, dtype=int)
    whole[0] = x[0] * 1.7
    return whole.astype(float)


def reversed_write(x):
    x[::-2] = x[: (x.shape[0] + 1) // 2] * 10
    return x


def axes_and_iteration(x):
    rows = [row.sum() for row in x]
    (first, *_), second = x[0], x.swapaxes(0, 1)[1]
    return np.squeeze(np.expand_dims(second, 0)) * first + np.stack(rows).sum() + x.size + x.ndim


EMULATED = [
    chained_views,
    copy_of_transpose,
    flattened_view,
    element_then_slice,
    repeated_places,
    leading_ones_and_newaxis,
    alias_of_an_element,
    integers_truncate,
    reversed_write,
    axes_and_iteration,
]


@pytest.mark.parametrize("fun", EMULATED, ids=[fun.__name__ for fun in EMULATED])
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
def test_views_and_assignment_work_as_in_numpy(
    fun: Callable[[Any], Any], shape: tuple[int, int]
) -> None:
    traced, expected = emulated(fun, *shape)
    np.testing.assert_allclose(traced, expected, rtol=1e-14)


@pytest.mark.parametrize("question", [bool, float, int, complex, str, math.sin, np.asarray, hash])
def test_questions_about_values_are_refused(question: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, jax.errors.ConcretizationTypeError)):
        jax.make_jaxpr(lambda x: [question(arrays.TracedArray(x)[0]), x][1])(np.ones(2))
