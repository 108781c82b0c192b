"""A sweep over two parameters with error bars, and what an uncertain start adds to them."""

import argparse

import jax.numpy as jnp
import numpy as np

import probode
from probode import Normal, Sweep


def fitzhugh_nagumo(t, y, current, recovery):
    voltage, gate = y
    return jnp.array(
        [3.0 * (voltage - voltage**3 / 3 + gate + current), -(voltage - 0.7 + recovery * gate) / 3]
    )


parser = argparse.ArgumentParser()
parser.add_argument("--out", help="write the uncertainty map to this file (PNG)")
parser.add_argument("--points", type=int, default=12, help="values of each parameter")
options = parser.parse_args()

# Two named dimensions: all combinations, and the result keeps names and values.
sweep = probode.solve_ensemble(
    fitzhugh_nagumo,
    (0.0, 10.0),
    [-1.0, 1.0],
    (
        Sweep(np.linspace(-0.8, 0.0, options.points), "current"),
        Sweep(np.linspace(0.2, 1.0, options.points), "recovery"),
    ),
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

# The start is known to five digits only: how much of the variance is that, how much the solver?
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
print("part that the start is the reason of:", moments.input_fraction[:, 0].round(4))

if options.out:
    figure = sweep.plot(0, title="FitzHugh-Nagumo: voltage at t = 10 and how sure it is")
    figure.savefig(options.out, dpi=120)
