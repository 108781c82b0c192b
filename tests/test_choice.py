"""Choosing a method and an order; EK0's stability."""

import logging

import numpy as np
import pytest

from probode import EK0, EK1, problems, solve, solve_ivp
from probode.ivp import choice
from probode.ivp import method as ivp_method


def norm_after(solver, z, steps):
    """|y| after many constant steps of EK0 on y' = -y with h = z; its gain settles."""
    end = steps * z
    posterior = solve(lambda t, y: -y, (0.0, end), 1.0, solver=solver, step=z, smooth=False)
    return abs(float(posterior.mean[-1]))


LIMITED = [EK0(q, "fixed") for q in (1, 2, 3, 4, 5)]
LIMITED += [EK0(q, "fixed", evaluations=2) for q in (1, 2, 3, 5, 8)]


@pytest.mark.parametrize("solver", LIMITED, ids=lambda solver: solver.name)
def test_ek0_is_stable_below_its_limit(solver):
    z = 0.95 * choice.stability_limit(solver.order, solver.evaluations)
    assert norm_after(solver, z, 2000) < 2.0 * np.exp(-2000 * z) + 1e-3


@pytest.mark.parametrize("solver", LIMITED, ids=lambda solver: solver.name)
def test_ek0_is_unstable_above_its_limit(solver):
    z = 1.1 * choice.stability_limit(solver.order, solver.evaluations)
    assert not norm_after(solver, z, 2000) <= 1.0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
@pytest.mark.parametrize("seed", range(5))
def test_spectral_radius_of_a_symmetric_matrix(scale, seed):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    matrix = scale * basis @ np.diag([-5.0, -1.0, 0.5, 0.1, -0.2, 1.0]) @ basis.T
    rate = choice.spectral_radius(lambda t, y: matrix @ y, 0.0, rng.standard_normal(6))
    np.testing.assert_allclose(rate, 5.0 * scale, rtol=0.05)


def test_spectral_radius_of_a_rotation():
    field = lambda t, y: 7.0 * np.array([y[1], -y[0]])  # noqa: E731
    np.testing.assert_allclose(choice.spectral_radius(field, 0.0, np.ones(2)), 7.0, rtol=1e-3)


def test_spectral_radius_where_nothing_moves():
    assert choice.spectral_radius(lambda t, y: np.zeros(3), 0.0, np.zeros(3)) == 0.0


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["forward", "backward"])
def test_the_slope_of_a_rotation_changes_with_its_frequency(sign):
    def rotation(t, y):
        return 7.0 * np.array([y[1], -y[0]])

    pace = choice.pace(rotation, 0.0, np.array([2.0, 1.0]), sign * 3.0)
    np.testing.assert_allclose(pace, [21.0, 21.0], rtol=1e-3)


def test_a_solution_may_be_slower_than_its_problem():
    """y = sin t, to which everything else returns a thousand times faster."""

    def field(t, y):
        return np.cos(t) - 1e3 * (y - np.sin(t))

    pace = choice.pace(field, 1.0, np.array([np.sin(1.0)]), 10.0)
    np.testing.assert_allclose(pace.times, 1e4, rtol=1e-3)
    np.testing.assert_allclose(pace.changes, 10.0 * np.tan(1.0), rtol=0.01)


@pytest.mark.parametrize(
    ("field", "length"),
    [(lambda t, y: np.zeros(2), 1.0), (lambda t, y: y / t, 1.0), (lambda t, y: -y, 0.0)],
    ids=["at rest", "not finite", "no end"],
)
def test_a_start_that_says_nothing_is_taken_for_typical(field, length):
    with np.errstate(all="ignore"):
        assert choice.pace(field, 0.0, np.ones(2), length).changes == choice.Pace(0.0).changes


RULES = {
    "EK1": lambda rtol: choice.order_of_ek1(rtol, False),
    "EK0": lambda rtol: choice.order_of_ek0(rtol, 0.0, 20.0),
    "EK0, slow": lambda rtol: choice.order_of_ek0(rtol, 100.0, 1.0),
}


@pytest.mark.parametrize("name", RULES)
def test_tighter_tolerances_take_no_lower_order(name):
    orders = [RULES[name](10.0**-k) for k in range(1, 13)]
    assert orders == sorted(orders) and len(set(orders)) > 2


def test_faster_problems_take_a_lower_order_of_ek0():
    assert choice.order_of_ek0(1e-6, 1e4, 20.0) < choice.order_of_ek0(1e-6, 10.0, 20.0)


def test_slower_solutions_take_a_lower_order_of_ek0():
    assert choice.order_of_ek0(1e-6, 100.0, 4.0) < choice.order_of_ek0(1e-6, 100.0, 40.0)


def chosen(name, **options):
    problem = problems.get(name)
    result = solve_ivp(
        problem.vector_field, problem.t_span, problem.y0, args=problem.args, **options
    )
    assert result.success
    return result.posterior.solver


AUTO = {"method": "auto", "order": "auto", "calibration": "model"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("lotka-volterra", EK1), ("hires", EK1), ("pleiades", EK0), ("neural", EK0)],
)
def test_auto_takes_the_method_that_pays(name, kind):
    assert isinstance(chosen(name, **AUTO), kind)


def test_stiff_problems_take_a_higher_order():
    stiff, mild = chosen("van-der-pol", **AUTO), chosen("lotka-volterra", **AUTO)
    assert mild.order < stiff.order <= 6


def test_a_given_order_is_kept():
    assert chosen("lotka-volterra", **{**AUTO, "order": 3}) == EK1(3, error="correction")


def test_ek0_chosen_by_us_evaluates_twice():
    assert chosen("pleiades", **AUTO).evaluations == 2


def test_a_given_number_of_evaluations_is_kept():
    assert chosen("pleiades", **AUTO, evaluations=1).evaluations == 1


def test_a_given_method_is_kept():
    assert isinstance(chosen("lotka-volterra", **{**AUTO, "method": "EK0"}), EK0)


def turns_stiff(t, y):
    """Eight components that relax slowly, and after t = 1 a million times faster."""
    rate = np.where(t < 1.0, 1.0, 1e6)
    return -rate * (y - np.cos(t))


def test_a_larger_problem_that_turns_stiff_is_handed_to_ek1():
    result = solve_ivp(turns_stiff, (0.0, 2.0), np.zeros(8), **AUTO, rtol=1e-4)
    assert result.success and isinstance(result.posterior.solver, EK1)
    np.testing.assert_allclose(result.y[:, -1], np.cos(2.0), atol=1e-3)


def test_a_bound_on_the_steps_holds_for_the_first_candidate_too():
    result = solve_ivp(turns_stiff, (0.0, 2.0), np.zeros(8), **AUTO, max_num_steps=30)
    assert not result.success and int(result.posterior.stats.steps) == 30


def test_multivariate_diffusions_are_left_to_ek0():
    assert isinstance(chosen("lotka-volterra", **AUTO, diffusion="dynamic-mv"), EK0)


def heat(t, u):
    padded = np.concatenate([np.zeros(1), u, np.zeros(1)])
    return 400.0 * (padded[2:] - 2.0 * u + padded[:-2])


def test_the_user_of_ek0_is_told_of_its_stability(caplog):
    with caplog.at_level(logging.WARNING, "probode"):
        solve_ivp(heat, (0.0, 0.1), np.ones(20), "EK0", order=4, calibration="model")
    assert "limited by stability" in caplog.text


def test_a_function_is_looked_at_once():
    calls = []

    def rotation(t, y):
        calls.append(t)
        return np.array([y[1], -y[0]])

    def evaluations():
        calls.clear()
        solve_ivp(rotation, (0.0, 20.0), [1.0, 0.0], "EK0", order=2, rtol=1e-7, calibration="model")
        return len(calls)

    first, second, third = (evaluations() for _ in range(3))
    assert third == second < first


def test_and_not_told_where_the_tolerance_decides(caplog):
    def oscillator(t, y):
        return np.array([y[1], -y[0]])

    with caplog.at_level(logging.WARNING, "probode"):
        result = solve_ivp(
            oscillator, (0.0, 20.0), [1.0, 0.0], "EK0", order=2, rtol=1e-7, calibration="model"
        )
    assert len(result.t) > 500 and "limited by stability" not in caplog.text


@pytest.mark.parametrize("option", [{"order": "best"}, {"method": "automatic"}])
def test_other_words_are_refused_with_what_is_known(option):
    with pytest.raises(ValueError, match="auto"):
        solve_ivp(lambda t, y: -y, (0, 1), [1.0], **option)


@pytest.mark.parametrize(
    ("solver", "d", "said"),
    [(EK1(5), 100, True), (EK1(5), 20, False), (EK1(1), 100, False), (EK0(5), 10**5, False)],
)
def test_what_a_dense_covariance_costs_is_said_before(caplog, monkeypatch, solver, d, said):
    monkeypatch.setattr("probode.base.said._cases", {})
    ivp_method.say_if_costly(solver, solver.method(d))
    assert ("a step takes about" in caplog.text) == said
