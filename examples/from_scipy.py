"""From SciPy to probode: change one import, get error bars.

The function stays as it is: plain NumPy.
"""

import numpy as np

from probode import solve_ivp  # was: from scipy.integrate import solve_ivp


def lorenz(t, y, sigma, rho, beta):
    x, y, z = y
    return np.array([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])


result = solve_ivp(
    lorenz, [0, 5], [1.0, 1.0, 1.0], args=(10, 28, 8 / 3), rtol=1e-8, atol=1e-10, dense_output=True
)
print(result.message)
print(f"{len(result.t)} times, {result.nfev} evaluations, evaluated through the {result.path} path")
for name, value, std in zip("xyz", result.y[:, -1], result.y_std[:, -1], strict=True):
    print(f"{name}(5) = {value:.8f} +- {std:.1e}")
print("at t = 2.5:", result.sol(2.5), "+-", result.sol.std(2.5))
