# %% [markdown]
# # A stiff oscillator
#
# Van der Pol's equation with a stiffness of ten thousand. `EK1` is made for such problems. `EK0`
# is not: it stops at a limit, and returns what it has.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt

import probode


def van_der_pol(t, y, mu):
    return jnp.array([y[1], mu * ((1 - y[0] ** 2) * y[1] - y[0])])


control = probode.PIControl(rtol=1e-4, atol=1e-6)
implicit = probode.solve(
    van_der_pol, (0, 2), [2.0, 0.0], args=(1e4,), solver=probode.EK1(order=5), control=control
).calibrate()
print(implicit)

explicit = probode.solve(
    van_der_pol,
    (0, 2),
    [2.0, 0.0],
    args=(1e4,),
    solver=probode.EK0(order=3),
    control=control,
    max_steps=5000,
)
print()
print(f"EK0 stopped at t = {explicit.t[-1]:.2g} with status {explicit.status.name}")
print(explicit.message)

# %% [markdown]
# Between its jumps the solution hardly moves; in a jump it changes within a ten-thousandth of the
# time. The steps follow, and so do the error bars: in a jump an error in time is a large error in
# the value.

# %%
figure = implicit.plot(names=["position", "velocity"])
plt.show()
