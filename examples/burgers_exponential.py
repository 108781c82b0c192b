# %% [markdown]
# # Burgers' equation with long steps
#
# An exponential integrator as a prior: it follows the linear part of the equation, the diffusion,
# exactly, however stiff that is. The steps have to resolve only the rest.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import probode

N, D = 100, 0.05
x = np.linspace(0, 1, N + 2)[1:-1]
laplacian = D * (N + 1) ** 2 * (np.eye(N, k=1) - 2 * np.eye(N) + np.eye(N, k=-1))


def burgers(t, u):
    right, left = jnp.pad(u[1:], (0, 1)), jnp.pad(u[:-1], (1, 0))
    return laplacian @ u - u * (right - left) * (N + 1) / 2


u0 = np.sin(3 * np.pi * x) ** 3 * (1 - x) ** 1.5
control = probode.PIControl(1e-8, 1e-8)
exact = probode.solve(burgers, (0, 1), u0, solver=probode.EK1(3), control=control, save_at=1.0)


def error(solver, step):
    found = probode.solve(burgers, (0, 1), u0, solver=solver, step=step, save_at=1.0).mean
    return np.sqrt(np.mean(np.square(found - exact.mean)))


steps = [0.2, 0.1, 0.05, 0.025]
solvers = {
    "EK0, prior with the Laplacian": probode.EK0(probode.IOUP(2, laplacian)),
    "EK1, prior with the Jacobian": probode.EK1(probode.IOUP(2, "jacobian")),
    "EK1, integrated Wiener process": probode.EK1(2),
}
errors = {name: [error(solver, h) for h in steps] for name, solver in solvers.items()}
for name, values in errors.items():
    print(f"{name}: " + ", ".join(f"{value:.1e}" for value in values))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.4))
left.plot(x, u0, color="0.6", label="t = 0")
left.plot(x, np.asarray(exact.mean).ravel() * 1e1, label="t = 1, times 10")
left.set(xlabel="x", title="the solution")
left.legend()
for name, values in errors.items():
    right.loglog(steps, values, "o-", ms=4, label=name)
right.set(xlabel="step", title="error at t = 1")
right.set_xticks(steps, [str(h) for h in steps])
right.minorticks_off()
right.legend(fontsize=8)
plt.show()
