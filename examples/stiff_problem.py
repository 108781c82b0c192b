"""A stiff problem: EK1 is made for it, EK0 gives up cleanly."""

import jax.numpy as jnp

import probode


def van_der_pol(t, y, mu):
    return jnp.array([y[1], mu * ((1 - y[0] ** 2) * y[1] - y[0])])


implicit = probode.solve(
    van_der_pol,
    (0, 2),
    [2.0, 0.0],
    args=(1e4,),
    solver=probode.EK1(order=3),
    control=probode.PIControl(rtol=1e-4, atol=1e-6),
)
print(implicit)

explicit = probode.solve(
    van_der_pol,
    (0, 2),
    [2.0, 0.0],
    args=(1e4,),
    solver=probode.EK0(order=3),
    control=probode.PIControl(rtol=1e-4, atol=1e-6),
    max_steps=5000,
)
print()
print(f"EK0 stopped at t = {explicit.t[-1]:.2g} with status {explicit.status.name}")
print(explicit.message)
