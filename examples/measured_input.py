# %% [markdown]
# # A forcing that was measured
#
# A room is heated by a power that a meter recorded every quarter of an hour. The record has a kink
# at each of these times. The solver knows them from the input, and ends a step at each.

# %%
import matplotlib.pyplot as plt
import numpy as np

import probode
from probode import solve_ivp

rng = np.random.default_rng(3)
hours = np.arange(0.0, 24.25, 0.25)
record = 0.6 * (1 + np.sign(np.sin(2 * np.pi * hours / 3.0))) * (1 + 0.1 * rng.normal(size=97))
outside = 5.0 + 4.0 * np.sin(2 * np.pi * (hours - 9.0) / 24.0)
heating = probode.inputs.linear(hours, record)  # kilowatts
weather = probode.inputs.cubic(hours, outside)  # smooth: a spline


def house(t, y, heating, weather):
    room, wall = y
    return [
        (heating(t) - 0.25 * (room - wall)) / 0.3,
        (0.25 * (room - wall) - 0.05 * (wall - weather(t))) / 4.0,
    ]


result = solve_ivp(
    house, (0, 24), [18.0, 14.0], args=(heating, weather), rtol=1e-6, dense_output=True
)
print(result.message)
print(f"room after a day: {result.y[0, -1]:.5f} ± {result.y_std[0, -1]:.1e} °C")

# %%
t = np.linspace(0, 24, 1200)
figure, (top, bottom) = plt.subplots(
    2, 1, sharex=True, figsize=(8.0, 4.6), height_ratios=[1.0, 2.0]
)
top.fill_between(hours, record, color="C1", alpha=0.5, lw=0)
top.set(ylabel="heating, kW")
bottom.plot(t, result.sol(t).T, label=["room", "wall"])
bottom.plot(hours, outside, color="0.5", ls="--", label="outside")
bottom.set(xlabel="hour", ylabel="°C", xticks=range(0, 25, 3))
bottom.legend(ncols=3)
plt.show()
