# %% [markdown]
# # A ball that bounces
#
# An event that changes the state: when the ball touches the floor, its velocity turns and the
# solve goes on. The time of each bounce has an error bar, and errors are carried through them all.

# %%
import matplotlib.pyplot as plt
import numpy as np

from probode import solve_ivp


def ball(t, y):
    return [y[1], -9.81 - 0.1 * y[1]]


def floor(t, y):
    return y[0]


floor.direction = -1
floor.reset = lambda t, y: [0.0, -0.9 * y[1]]

result = solve_ivp(ball, (0, 6), [2.0, 0.0], events=floor, rtol=1e-4, dense_output=True)
print(result.message)
for number, (time, std) in enumerate(
    zip(result.t_events[0], result.t_events_std[0], strict=True), start=1
):
    print(f"bounce {number} at {time:.6f} ± {std:.1e} s")

# %% [markdown]
# A bounce that comes a little late puts the ball in another place ever after. The bars know that:
# an error in the velocity at one bounce is one in the time of the next.

# %%
exact = solve_ivp(ball, (0, 6), [2.0, 0.0], events=floor, rtol=1e-12, atol=1e-12)
error = np.abs(result.t_events[0] - exact.t_events[0])
t = np.linspace(0, 6, 1500)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), width_ratios=[1.5, 1.0])
left.plot(t, result.sol(t)[0])
left.plot(result.t_events[0], np.zeros_like(error), "o", ms=4, color="C1")
left.set(xlabel="seconds", ylabel="height, m")
bounces = np.arange(1, len(error) + 1)
right.semilogy(bounces, result.t_events_std[0], "o-", ms=4, label="standard deviation")
right.semilogy(bounces, error, "x", color="0.3", label="error")
right.set(xlabel="bounce", title="its time, s", xticks=bounces)
right.legend()
plt.show()
