"""Written with functions of NumPy, SciPy and ``math``."""

import functools
import math
from math import cos, exp, sin

import numpy as np
import numpy as numerical
import scipy.interpolate
import scipy.sparse
import scipy.special
from numpy import sqrt, tanh
from numpy.linalg import norm
from scipy.special import expit

from snippets.registry import snippet


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


SPLINE = scipy.interpolate.CubicSpline(TIMES, LOADS)


@snippet("numpy", [0.7, 0.2])
def spline_of_time(t, y):
    return np.array([SPLINE(t) - y[0] * SPLINE(t, 1), y[1] + SPLINE(y[0])])


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
