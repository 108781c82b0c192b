"""The transport for implicit equations ``F(t, y, y') = 0``: Newton's method, as for EK1.

The error ``e = P - y`` of the interpolant satisfies ``F(t, P - e, P' - e') = 0``. With stages
``E`` of Radau IIA and their slopes ``V = (h a)⁻¹ (E - e_n)``::

    F(t_i, P_i - E_i, P'_i - V_i) = 0

of which ``A = ∂F/∂y'`` and ``B = ∂F/∂y`` in mid-step give the linearisation, with the defects
``δ_i = F(t_i, P_i, P'_i)``::

    (A (h a)⁻¹ + B) (E - e_n) = δ - B e_n

``A`` may be singular: of ``e_n`` only ``A e_n`` is used, and the last stage, which is the end of
the step, fulfils the algebraic equations, so that algebraic components have their own error.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Array

from probode.global_error.inverse import Complex, combined, shifted_inverse
from probode.global_error.newton import Linear, Newton
from probode.global_error.transport import Arithmetic, Curve, curve
from probode.model.consistent import split


@dataclass(frozen=True)
class ImplicitNewton(Newton):
    """As :class:`Newton`; what is evaluated is ``F`` of ``y`` and ``y'``, side by side."""

    def prepare(self, problem: Arithmetic, t: Array, h: Array, left: Array, right: Array) -> Linear:
        """All of a step that does not depend on ``e_n``: the affine map from that to the stages."""
        xp, m = problem.xp, self.collocation.middle
        path = curve(xp, self.collocation, self.k, t, h, left, right)
        both = xp.concatenate([path.value, path.slope], axis=-1)
        f = problem.at_stages(path.t, both)
        solve, by_value, by_slope = self._matrices(
            problem, path.t[..., m], h, both[..., m, :], f[..., m, :]
        )
        values, columns, rows = self.collocation.spectrum
        # (λ/h A + B)⁻¹ (-B) = λ/h (λ/h A + B)⁻¹ A - 1
        weights = columns * (values * rows.sum(axis=1))
        moved = combined(weights, solve) @ by_slope[..., None, :, :] / h[..., None, None, None]
        response = moved - xp.eye(f.shape[-1])
        return Linear(path, f, -by_value, self.apply(solve, f), response, solve)

    def evaluate(self, problem: Arithmetic, path: Curve, e: Array, stages: Array) -> Array:
        """``F(t_i, P_i - E_i, P'_i - V_i)``."""
        moved = path.value - stages, path.slope - self.slopes(path, e, stages)
        return problem.at_stages(path.t, problem.xp.concatenate(moved, axis=-1))

    def beyond(self, step: Linear, plain: Array, f: Array) -> Array:
        """The value of ``F`` is what is left."""
        return f

    def rest(self, path: Curve, e: Array, stages: Array, f: Array) -> Array:
        """The value of ``F`` is what is left."""
        return f

    def linearize(
        self, problem: Arithmetic, path: Curve, e: Array, stages: Array, f: Array
    ) -> Complex | Any:
        """``(λ_k/h A + B)⁻¹`` around ``P - E`` in mid-step."""
        m, slopes = self.collocation.middle, self.slopes(path, e, stages)
        moved = path.value[m] - stages[m], path.slope[m] - slopes[m]
        both = problem.xp.concatenate(moved, axis=-1)
        return self._matrices(problem, path.t[m], path.h, both, f[m])[0]

    def _matrices(
        self, problem: Arithmetic, t: Array, h: Array, both: Array, f: Array
    ) -> tuple[Complex | Any, Array, Array]:
        by_value, by_slope = split(problem.jacobian_at(t, both, f))
        shifts = self.collocation.spectrum[0]
        return shifted_inverse(problem.xp, shifts, h, -by_value, by_slope), by_value, by_slope
