# %% [markdown]
# # A sweep over two parameters
#
# All combinations of two parameters in one call, with error bars; then what an uncertain start
# adds to them.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import probode
from probode import Normal, Sweep


def fitzhugh_nagumo(t, y, current, recovery):
    voltage, gate = y
    return jnp.array(
        [3.0 * (voltage - voltage**3 / 3 + gate + current), -(voltage - 0.7 + recovery * gate) / 3]
    )


# Two named dimensions: all combinations, and the result keeps names and values.
sweep = probode.solve_ensemble(
    fitzhugh_nagumo,
    (0.0, 10.0),
    [-1.0, 1.0],
    (Sweep(np.linspace(-0.8, 0.0, 12), "current"), Sweep(np.linspace(0.2, 1.0, 12), "recovery")),
    save_at=10.0,
    solver=probode.EK0(3),
    rtol=1e-4,
    atol=1e-6,
    calibration="defect",
)
print(sweep)
worst = np.unravel_index(np.argmax(sweep.std[..., 0, 0]), sweep.shape)
print(
    f"least sure: {sweep.mean[worst][0, 0]:.5f} ± {sweep.std[worst][0, 0]:.1e} for "
    + ", ".join(
        f"{dim} = {sweep.coords[dim][i]:.2f}" for dim, i in zip(sweep.dims, worst, strict=True)
    )
)

# %% [markdown]
# The start is known to five digits only: how much of the variance is that, and how much is the
# solver's?

# %%
uncertain = probode.solve_ensemble(
    fitzhugh_nagumo,
    (0.0, 10.0),
    Normal([-1.0, 1.0], 1e-5**2),
    (-0.4, 0.2),
    save_at=np.linspace(2.0, 10.0, 5),
    solver=probode.EK0(3),
    rtol=1e-4,
    atol=1e-6,
    calibration="defect",
    cubature=5,
)
moments = uncertain.moments()
print("standard deviation of the voltage:", np.array2string(moments.std[:, 0], precision=2))
print("share that comes from the start:", moments.input_fraction[:, 0].round(4))

# %%
figure = sweep.plot(0, title="FitzHugh-Nagumo: voltage at t = 10 and how sure it is")
plt.show()
