# %% [markdown]
# # When does the ball hit the ground?
#
# And how sure is that? Events have error bars in time.

# %%
import matplotlib.pyplot as plt
import numpy as np

from probode import solve_ivp


def ball(t, y):
    velocity = y[1]
    return [velocity, -9.81 - 0.05 * velocity * np.abs(velocity)]


def ground(t, y):
    return y[0]


def apex(t, y):
    return y[1]


ground.terminal = True
ground.direction = -1

result = solve_ivp(
    ball, (0, np.inf), [1.5, 20.0], events=[ground, apex], rtol=1e-6, dense_output=True
)
print(result.message)
print(f"highest at t = {result.t_events[1][0]:.6f} ± {result.t_events_std[1][0]:.1e} s")
print(f"   height  {result.y_events[1][0][0]:.6f} m")
print(f"ground at  t = {result.t_events[0][0]:.6f} ± {result.t_events_std[0][0]:.1e} s")

# %% [markdown]
# At the highest point the velocity passes through zero quickly, so its time is known well. The
# same with looser tolerances: the bars of the times grow with the error, and hold it.

# %%
tolerances = np.geomspace(1e-2, 1e-9, 15)
exact = solve_ivp(ball, (0, 10), [1.5, 20.0], events=ground, rtol=1e-12, atol=1e-12)
errors, bars = [], []
for rtol in tolerances:
    one = solve_ivp(ball, (0, 10), [1.5, 20.0], events=ground, rtol=rtol, atol=rtol)
    errors.append(abs(one.t_events[0][0] - exact.t_events[0][0]))
    bars.append(one.t_events_std[0][0])

figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.4))
t = np.linspace(0, result.t[-1], 200)
left.plot(t, result.sol(t)[0])
left.plot(result.t_events[0], 0.0, "o", color="C1", label="ground")
left.plot(result.t_events[1], result.y_events[1][:, 0], "o", color="C2", label="highest")
left.set(xlabel="seconds", ylabel="height, m")
left.legend()
right.loglog(tolerances, bars, "o-", ms=4, label="standard deviation")
right.loglog(tolerances, errors, "x", color="0.3", label="error")
right.set(xlabel="rtol = atol", title="time of the impact, s")
right.legend()
plt.show()
