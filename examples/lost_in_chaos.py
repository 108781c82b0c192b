# %% [markdown]
# # When not to trust the error bars
#
# No solver can follow a chaotic solution for ever: at some time the error is as large as the
# solution itself. No error bar can be right after that, and `diagnose()` says so.

# %%
import matplotlib.pyplot as plt
import numpy as np

from probode import solve_ivp


def lorenz(t, y):
    return np.array([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])


settings = {"rtol": 1e-4, "atol": 1e-7, "dense_output": True}
short = solve_ivp(lorenz, (0, 10), [1.0, 1.0, 1.0], **settings)
long = solve_ivp(lorenz, (0, 33), [1.0, 1.0, 1.0], **settings)
print(short.posterior.diagnose(), "\n")
print(long.posterior.diagnose())

# %% [markdown]
# A solution with a far tighter tolerance shows what has happened: the two curves part at about
# t = 24. Until then the standard deviation follows the error over seven powers of ten.

# %%
exact = solve_ivp(lorenz, (0, 33), [1.0, 1.0, 1.0], rtol=1e-13, atol=1e-13, dense_output=True)
t = np.linspace(0, 33, 3300)
error = np.abs(long.sol(t) - exact.sol(t))[0]
figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(8.0, 5.0))
top.plot(t, exact.sol(t)[0], color="0.6", label="tolerance 1e-13")
top.plot(t, long.sol(t)[0], lw=1.0, label="tolerance 1e-4")
top.set(ylabel="x")
top.legend(ncols=2, loc="lower left")
bottom.semilogy(t[1:], long.sol.std(t)[0, 1:], label="standard deviation")
bottom.semilogy(t[1:], error[1:], color="0.3", lw=0.8, label="error")
bottom.set(xlabel="time", ylim=(1e-10, 1e3))
bottom.legend()
plt.show()
