# %% [markdown]
# # One changed import
#
# A script written for SciPy, with `solve_ivp` taken from `probode`. The function stays as it is:
# plain NumPy. Every value now comes with a standard deviation of the size of its error.

# %%
import matplotlib.pyplot as plt
import numpy as np

from probode import solve_ivp  # was: from scipy.integrate import solve_ivp


def lorenz(t, y, sigma, rho, beta):
    x, y, z = y
    return np.array([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])


result = solve_ivp(
    lorenz, [0, 20], [1.0, 1.0, 1.0], args=(10, 28, 8 / 3), rtol=1e-8, atol=1e-10, dense_output=True
)
print(result.message)
print(f"{len(result.t)} times, {result.nfev} evaluations, evaluated through the {result.path} path")
for name, value, std in zip("xyz", result.y[:, -1], result.y_std[:, -1], strict=True):
    print(f"{name}(20) = {value:.6f} ± {std:.1e}")

# %% [markdown]
# The Lorenz equations are chaotic: errors grow by a factor of about ten every two and a half
# units of time, and the error bars show it. `result.sol` is SciPy's dense output, and
# `result.sol.std` its standard deviation.

# %%
t = np.linspace(0, 20, 2001)
values, bars = result.sol(t), result.sol.std(t)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.4))
left.plot(values[0], values[2], lw=0.8)
left.set(xlabel="x", ylabel="z", title="the solution")
right.semilogy(t[1:], bars[:, 1:].T, lw=1.0, label=list("xyz"))
right.set(xlabel="time", title="its standard deviation")
right.legend()
plt.show()
