"""``Fit``: what data say about parameters, and what can be done with it."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from probode.inference.at_data import Seen, seen
from probode.inference.objective import Objective
from probode.inference.optimise import Optimum, hessian
from probode.inference.prediction import Prediction, posterior_at, predict
from probode.inference.space import Space
from probode.inference.stated import problem_at
from probode.inference.uncertainty import Spread, spread
from probode.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from probode.inference.profile import Profile

_NEARLY_ONE = 0.999
_LARGE_SHARE = 0.1


class Fit:
    """Estimates of parameters, with standard errors; made by :func:`probode.fit`.

    ``print(fit)`` shows a report. Standard errors come from the curvature of the log likelihood
    (and log prior) at its maximum: central differences of exact gradients, on the scale without
    bounds, carried over to the parameters to first order (delta method).

    Examples
    --------
    >>> import numpy as np, probode
    >>> t = np.array([0.0, 1.0, 2.0, 3.0])
    >>> u = np.array([2.02, 0.73, 0.28, 0.09])
    >>> def decay(t, y, p):
    ...     return -p.rate * y
    >>> found = probode.fit(decay, (t, u), {"rate": 0.5}, y0=2.0, noise=0.02)
    >>> found.standard_errors["rate"] < 0.05
    True
    """

    estimates: dict[str, Any]
    """Values by name: numbers, or arrays. Those that are fixed too."""
    success: bool
    """Whether a maximum was reached."""
    message: str
    """How the search has ended."""
    log_likelihood: float
    log_prior: float
    """Log density of the priors at the estimates; zero without any."""
    starts: list[dict[str, Any]]
    """Of each start: ``start``, ``estimates``, ``value`` (with the log prior), ``success``,
    ``message``."""

    def __init__(
        self, objective: Objective, best: Optimum, tried: list[Optimum], subjects: list[str]
    ) -> None:
        self.objective, self._best, self._subjects = objective, best, subjects
        self.success, self.message = best.success, best.message
        self.iterations, self.evaluations = best.iterations, objective.evaluations
        self.log_likelihood = best.look.log_likelihood
        self.log_prior = best.look.log_prior
        self.estimates = self._named(best.z)
        self.starts = [
            {
                "start": self._named(one.start),
                "estimates": self._named(one.z),
                "value": one.look.value,
                "success": one.success,
                "message": one.message,
            }
            for one in tried
        ]
        self._hessian = hessian(objective, best.z)

    @property
    def space(self) -> Space:
        """The parameters with their bounds and priors."""
        return self.objective.space

    @property
    def z(self) -> np.ndarray:
        """The estimates on the scale without bounds."""
        return self._best.z

    @property
    def names(self) -> list[str]:
        """Names of all numbers that were fitted: rows of :attr:`covariance`."""
        return self.space.names

    def _named(self, z: np.ndarray) -> dict[str, Any]:
        values = self.space.settled(z)
        return {name: float(x) if np.ndim(x) == 0 else np.array(x) for name, x in values.items()}

    @cached_property
    def _spread(self) -> Spread:
        return spread(self.objective, self.z, self._hessian)

    @property
    def covariance(self) -> np.ndarray:
        """Of all fitted numbers, in the order of :attr:`names`.

        Infinite variances: the data say nothing about these. ``nan``: those at a bound, which has
        no curvature to tell from; all others are as if these were held there.
        """
        inner, _, lost = self._spread
        slopes = self.space.slopes(self.z)
        found = inner * np.outer(slopes, slopes)
        found[np.ix_(lost, lost)] = np.nan
        found[lost, lost] = np.inf
        held = self.space.at_bound(self.z) != 0
        found[held, :] = found[:, held] = np.nan
        return found

    @property
    def standard_errors(self) -> dict[str, Any]:
        """Of the fitted parameters, by name, in the shapes of the estimates."""
        flat = np.sqrt(np.diagonal(self.covariance))
        found = {p.name: flat[part].reshape(p.start.shape) for p, part in self.space}
        return {name: float(x) if x.ndim == 0 else x for name, x in found.items()}

    @property
    def correlations(self) -> np.ndarray:
        """Correlations of all fitted numbers, in the order of :attr:`names`."""
        covariance = self.covariance
        size = np.sqrt(np.diagonal(covariance))
        with np.errstate(all="ignore"):
            found = covariance / np.outer(size, size)
        np.fill_diagonal(found, 1.0)
        return found

    @property
    def n_data(self) -> int:
        """Number of measured values; a value with its flag is one.

        A ``log_density`` that is one number for all columns of a datum counts for as many values as
        there are components of the solution on which it depends, at most one for each column.
        """
        return int(sum(np.sum(~np.isnan(one.u)) for one in self._seen))

    @property
    def aic(self) -> float:
        """Akaike's criterion ``2 k - 2 log p(data)`` with ``k`` fitted numbers."""
        return 2.0 * self.space.size - 2.0 * self.log_likelihood

    @property
    def bic(self) -> float:
        """The criterion of Schwarz, ``k log n - 2 log p(data)``."""
        return float(self.space.size * np.log(self.n_data) - 2.0 * self.log_likelihood)

    @cached_property
    def _posteriors(self) -> list[Posterior]:
        count = len(self.objective.statement.data)
        return [posterior_at(self.objective, self.z, s) for s in range(count)]

    @property
    def posterior(self) -> Any:
        """The solution at the estimates, a :class:`Posterior`; of several data sets a list."""
        return self._posteriors if self._subjects else self._posteriors[0]

    @cached_property
    def _seen(self) -> list[Seen]:
        return [seen(self.objective, self.z, s, one) for s, one in enumerate(self._posteriors)]

    @property
    def residuals(self) -> Any:
        """Measured minus expected values, ``(K, m)``; for several data sets a list.

        Columns that are no values, such as the flags of censored ones, are left out.
        """
        found = [one.residuals for one in self._seen]
        return found if self._subjects else found[0]

    @property
    def solver_share(self) -> float:
        """How much of the variance of the data is the solver's: mean of ``s² / (s² + σ²)``."""
        shares = np.concatenate([one.share.ravel() for one in self._seen])
        known = shares[~np.isnan(shares)]
        return float(np.mean(known)) if known.size else np.nan

    @cached_property
    def warnings(self) -> list[str]:
        """What to think about before the estimates are used."""
        found = [] if self.success else [f"the search has not converged: {self.message}"]
        bounded = self._at_bounds()
        found += [f"{name} is at its {side} bound" for name, side in bounded.items()]
        pairs = list(zip(self.names, self._spread.lost, strict=True))
        unknown = [name for name, one in pairs if one and name not in bounded]
        if unknown:
            found.append(
                f"not identified by these data: {', '.join(unknown)}. Fix some of them, add a "
                "prior, or measure something else"
            )
        if self._hessian is None:
            found.append(
                "near the estimates there are parameters without a solution: standard errors are "
                "from first derivatives"
            )
        correlations = self.correlations
        for i, j in zip(*np.nonzero(np.triu(np.abs(correlations) > _NEARLY_ONE, 1)), strict=True):
            found.append(
                f"{self.names[i]} and {self.names[j]} are hardly told apart by these data "
                f"(correlation {correlations[i, j]:.4f})"
            )
        share = self.solver_share
        if share > _LARGE_SHARE:
            found.append(
                f"the solver's error is {share:.0%} of the variance at the data: use a smaller "
                "tolerance, control=PIControl(rtol, atol)"
            )
        return found

    def _at_bounds(self) -> dict[str, str]:
        sides = self.space.at_bound(self.z)
        pairs = zip(self.names, sides, strict=True)
        return {name: "lower" if side < 0 else "upper" for name, side in pairs if side}

    def predict(self, t: Any, *, samples: int = 0, observe: Any = None, seed: int = 0) -> Any:
        """The solution at any times, with the uncertainty of the parameters and of the solver.

        Parameters
        ----------
        t
            A time or several, at or after ``t0``.
        samples
            How many joint samples to draw as well: parameters (Gaussian on the scale without
            bounds), the solution with each of them, and the solver's error.
        observe
            Predict ``observe(t, y, p)``, ``observe(t, y)`` or ``observe(y)`` instead of ``y``, with
            ``p`` the parameters; ``fit.observe`` is what was measured. The uncertainty of ``p``
            counts there too.
        seed
            Of the samples.

        Returns
        -------
        Prediction
            With ``t``, ``mean``, ``std``, its parts ``parameter_std`` and ``solver_std``, and
            ``samples``; of several data sets a list. The variance is ``J Σ Jᵀ`` (delta method,
            ``Σ`` the covariance of the parameters) plus the solver's; infinite where the prediction
            depends on what the data do not determine.
        """
        found: list[Prediction] = [
            predict(self.objective, self.z, self._spread, s, one, t, observe, samples, seed)
            for s, one in enumerate(self._posteriors)
        ]
        return found if self._subjects else found[0]

    @property
    def observe(self) -> Any:
        """What was measured, as a function of the time and the solution at the estimates."""
        return self.observed(0)

    def observed(self, s: int) -> Any:
        """The same of one of several data sets."""
        values = self.space.values(self.z, np)
        found = problem_at(self.objective.statement, values, s)["data"].observe
        return found if found is not None else (lambda y: y)

    def profile(self, name: str, points: int | Any = 15, *, level: float = 0.95) -> "Profile":
        """The profile likelihood of a parameter: the others are fitted again for each value.

        Parameters
        ----------
        name
            A parameter, or one number of an array: ``"b[0]"``.
        points
            How many values, over as far as the interval goes; or the values themselves.
        level
            Of the interval, where the log likelihood is less than half a quantile of χ² below its
            maximum.

        Returns
        -------
        Profile
            With ``values``, ``log_likelihoods``, ``interval``, and ``plot()``.
        """
        from probode.inference.profile import profile

        return profile(self, name, points, level)

    def plot(self, *, names: Any = None, title: str | None = None) -> "Figure":
        """Data with error bars, the solution with a band of 95 %, and residuals below."""
        from probode.inference.figures import figure

        return figure(self, names, title)

    def sample(
        self,
        draws: int = 1000,
        *,
        warmup: int = 1000,
        chains: int = 4,
        seed: int = 0,
        progress: bool | str = True,
    ) -> Any:
        """Draw from the posterior of the parameters by NUTS; needs ``pip install probode[infer]``.

        Parameters without a prior have a flat one between their bounds.

        Parameters
        ----------
        draws, warmup, chains
            How many draws of each chain are kept, how many are made before to adapt step size and
            metric (all chains together), and how many chains.
        seed
            Of the sampler.
        progress
            A bar on a terminal; ``"always"`` everywhere; ``False`` for none.

        Returns
        -------
        arviz.InferenceData
            ``posterior`` (the parameters as they were named), ``sample_stats`` (``diverging``,
            ``acceptance_rate``, ``total_log_likelihood``, ``log_prior``, ``lp``: the density on the
            scale without bounds, ...), and with ``"fenrir"`` and ``"plain"`` ``log_likelihood``
            time by time, for ``arviz.loo``. Ctrl-C ends the sampling with the draws made so far.
        """
        from probode.inference.sampling import sample

        return sample(self, draws, warmup, chains, seed, progress)

    def __repr__(self) -> str:
        """A report."""
        from probode.inference.report import text

        return text(self)

    def _repr_html_(self) -> str:
        from probode.inference.report import html

        return html(self)
