"""Events: when does a ball hit the ground, and how sure is that?"""

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

result = solve_ivp(ball, (0, np.inf), [1.5, 20.0], events=[ground, apex], rtol=1e-6)
print(result.message)
print(f"highest at t = {result.t_events[1][0]:.6f} +- {result.t_events_std[1][0]:.1e} s")
print(f"   height  {result.y_events[1][0][0]:.6f} m")
print(f"ground at  t = {result.t_events[0][0]:.6f} +- {result.t_events_std[0][0]:.1e} s")
