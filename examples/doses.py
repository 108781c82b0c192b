# %% [markdown]
# # A week of doses
#
# A drug in two compartments: tablets every twelve hours, and an infusion on the third day. The
# state jumps with each dose; the error bars go on across the jumps.

# %%
import matplotlib.pyplot as plt
import numpy as np

import probode
from probode import solve_ivp


def gut_and_blood(t, y, absorption, elimination):
    gut, blood = y
    return [-absorption * gut, absorption * gut - elimination * blood]


tablets = probode.doses(0.0, 100.0, compartment=0, repeats=14, every=12.0)  # mg
infusion = probode.doses(60.0, 120.0, compartment=1, duration=6.0)
table = probode.doses(
    np.append(tablets.times, infusion.times),
    np.append(tablets.amounts, infusion.amounts),
    compartment=np.append(tablets.compartments, infusion.compartments),
    duration=np.append(tablets.durations, infusion.durations),
)
result = solve_ivp(
    gut_and_blood,
    (0, 168),
    [0.0, 0.0],
    args=(0.8, 0.12),
    doses=table,
    rtol=1e-6,
    dense_output=True,
)
print(result.message)
print(f"{len(result.posterior.pieces)} pieces, {len(result.t)} times")
print(f"in the blood after a week: {result.y[1, -1]:.4f} ± {result.y_std[1, -1]:.1e} mg")

# %% [markdown]
# The trough level, right before the next tablet, is what a physician asks for:

# %%
troughs = np.arange(12.0, 168.0, 12.0) - 1e-6
print("troughs, mg:", np.round(result.sol(troughs)[1], 2))
figure, ax = plt.subplots(figsize=(8.0, 3.6))
t = np.linspace(0, 168, 2000)
ax.plot(t, result.sol(t)[1], label="blood")
ax.plot(troughs, result.sol(troughs)[1], "o", ms=4, color="C1", label="trough")
ax.axvspan(60, 66, color="0.9", lw=0, label="infusion")
ax.set(xlabel="hours", ylabel="mg", xticks=range(0, 169, 24), ylim=(0, None))
ax.legend(ncols=3)
plt.show()
