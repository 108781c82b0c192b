"""The paper's experiments: measures against closed forms, rules, cache, report, the whole run."""

import csv
import dataclasses
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import probode
from experiments import (
    claims_solutions,
    claims_work,
    measure,
    pipeline,
    reference,
    settings,
    work,
)
from experiments.cache import Cache, Configuration
from experiments.claims import Verdict, across_problems
from probode import EK0, EK1, problems
from probode.base.precision import double_precision
from probode.cli import main

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
CLAIMS = {claim.key: claim for claim in pipeline.CLAIMS}
TINY = settings.Extent("tiny", (2,), (0, 1), (0, 1), 2000, 2000, 1e-6, 1)


@pytest.mark.parametrize("name", reference.FIELDS)
def test_plain_right_hand_sides_are_the_problems(name):
    problem = problems.get(name)
    y = problem.y0 + 0.3
    with double_precision():
        expected = problem.vector_field(jnp.array(0.1), jnp.array(y), *problem.args)
    np.testing.assert_allclose(reference.FIELDS[name](0.1, y), expected, rtol=1e-14)


def test_plain_jacobian_is_that_of_the_stiff_problem():
    y, step = np.array([1.3, -0.4]), 1e-6
    columns = [
        (np.array(reference.van_der_pol(0, y + e)) - reference.van_der_pol(0, y - e)) / (2 * step)
        for e in step * np.eye(2)
    ]
    expected = np.transpose(columns)
    # Central differences of a cubic: an error of step² times the third derivative, and rounding.
    np.testing.assert_allclose(reference.van_der_pol_jacobian(0, y), expected, rtol=1e-7, atol=1e-3)


@pytest.mark.parametrize("name", ["lotka-volterra", "logistic"])
def test_reference_is_as_good_as_it_says(name):
    found = reference.reference(name)
    assert found.level < 1e-12
    assert np.abs(found.y[-1] - problems.get(name).reference_end).max() <= found.level


@pytest.fixture(scope="module")
def posterior():
    return measure.run(problems.get("lotka-volterra"), EK1(2), 1e-4, 1e-2)


T = np.linspace(0.5, 10, 7)


def test_chi_squared_is_the_quadratic_form_of_the_covariance(posterior):
    at = posterior(T)
    error = 1e-3 * np.random.default_rng(0).normal(size=(7, 2))
    expected = np.mean([e @ np.linalg.solve(c, e) for e, c in zip(error, at.cov, strict=True)])
    found, singular = measure.chi_squared(at, error)
    # Inverting the covariance loses digits to its condition number, around 1e4 here.
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert singular == 0


@pytest.mark.parametrize("diffusion", ["fixed-mv", "dynamic-mv"])
def test_chi_squared_of_independent_components_sums_squares(diffusion):
    at = measure.run(problems.get("lotka-volterra"), EK0(2, diffusion), 1e-4, 1e-2)(T)
    error = np.full((7, 2), 1e-3)
    expected = np.mean(((error / at.std) ** 2).sum(1))
    np.testing.assert_allclose(measure.chi_squared(at, error)[0], expected, rtol=1e-12)


def test_chi_squared_of_samples_has_the_dimension_as_its_mean(posterior):
    at = posterior(np.full(1000, T[1]))
    draws = np.asarray(posterior.sample(1000, t=T[1:2]))[:, 0] - at.mean
    # The mean of 1000 chi-squared variables with two degrees of freedom: std 2 / sqrt(1000).
    assert abs(measure.chi_squared(at, draws)[0] - 2.0) < 5 * 2 / math.sqrt(1000)


def test_singular_covariances_are_counted_not_judged(posterior):
    found, singular = measure.chi_squared(posterior(np.array([0.0, 1.0])), np.full((2, 2), 1e-3))
    assert singular == 1
    assert np.isfinite(found)


@pytest.mark.parametrize("d", [1, 2])
def test_interval_holds_99_percent_for_the_dimension(d):
    low, high = measure.chi_squared_interval(d)
    assert stats.chi2.cdf(high, d) - stats.chi2.cdf(low, d) == pytest.approx(0.99)


def test_filter_view_is_the_filter():
    problem = problems.get("lotka-volterra")
    smoother = measure.run(problem, EK1(2), 1e-4, 1e-2)
    direct = measure.run(problem, EK1(2), 1e-4, 1e-2, smooth=False)
    np.testing.assert_array_equal(measure.filtered(smoother)(T).mean, direct(T).mean)


def test_interrupted_solves_are_no_results(posterior):

    code = np.asarray(probode.Status.INTERRUPTED.value)
    with pytest.raises(KeyboardInterrupt):
        measure.ending(dataclasses.replace(posterior, status_code=code))


# Rules, on figures made up so that each verdict is reached.

START = {"published": 23700.0, "printed": 30000.0}
HOURS = {"steps": 6.3e8, "microseconds": 1.0, "ratio": 1.0, "seconds": 1.0}
STOPPED = {"y0": [2, 0], "status": "MAX_STEPS", "t_reached": 1e-3, "steps": 9, "message": "why"}
SECONDS = {"smoother_microseconds": 1, "filter_seconds": 1, "filter_microseconds": 1}
PATTERN = {"pattern_low": 0.4, "pattern_high": 0.9, "sample_chi2": [0.4, 7.0]}
FHN, LV = "fitzhugh-nagumo", "lotka-volterra"
YES, PART, NO = Verdict.CONFIRMED, Verdict.DIFFERS, Verdict.NOT_CONFIRMED


def bands(one, two, three):
    names = ("EKS0 dynamic", "EKS0 dynamic-mv", "EKS1 dynamic")
    return {n: {"structure": [x, x]} for n, x in zip(names, (one, two, three), strict=True)}


def both(value, other=None):
    return {FHN: value, LV: value if other is None else other}


@pytest.mark.parametrize(
    ("key", "figures", "verdict"),
    [
        ("band", {"share": 1e-4}, YES),
        ("band", {"share": 0.1}, NO),
        ("pattern", {**PATTERN, "pattern": 0.8, "chi2": 2.0}, YES),
        ("pattern", {**PATTERN, "pattern": 0.8, "chi2": 0.01}, PART),
        ("pattern", {**PATTERN, "pattern": 0.8, "chi2": 100.0}, PART),
        ("pattern", {**PATTERN, "pattern": 0.1, "chi2": 2.0}, NO),
        ("iterations", {"published": 1.0, "printed": 23824.0}, YES),
        ("iterations", START, PART),
        ("iterations", {"published": 1.0, "printed": 1.0}, NO),
        ("steps", {"smallest_step": [1e-9, 2e-9], "largest_step": [1e-2, 1.1e-2]}, YES),
        ("steps", {"smallest_step": [1e-7, 2e-9], "largest_step": [1e-2, 1.1e-2]}, NO),
        ("seconds", {**SECONDS, "smoother_seconds": 1.0}, YES),
        ("seconds", {**SECONDS, "smoother_seconds": 0.1}, PART),
        ("seconds", {**SECONDS, "smoother_seconds": 9.0}, NO),
        ("hours", {**HOURS, "hours": 7.5}, YES),
        ("hours", {**HOURS, "hours": 2.0}, PART),
        ("hours", {**HOURS, "hours": 7.5, "steps": 1e8}, NO),
        ("explicit", {"runs": [{**STOPPED, "success": False}]}, YES),
        ("explicit", {"runs": [{**STOPPED, "success": False, "message": ""}]}, PART),
        ("explicit", {"runs": [{**STOPPED, "success": True}]}, NO),
        ("shared-band", {"EKS0 dynamic": {"band_difference": 0.0}}, YES),
        ("shared-band", {"EKS0 dynamic": {"band_difference": 0.1}}, NO),
        ("separate-bands", {"EKS0 dynamic-mv": {"band_ratio": 9.0}}, YES),
        ("separate-bands", {"EKS0 dynamic-mv": {"band_ratio": 2.0}}, PART),
        ("separate-bands", {"EKS0 dynamic-mv": {"band_ratio": 1.0}}, NO),
        ("only-ek1", bands(0.6, 0.6, 0.9), YES),
        ("only-ek1", bands(0.6, 0.85, 0.9), PART),
        ("only-ek1", bands(0.6, 0.6, 0.5), NO),
        ("better-calibrated", both(0.7), YES),
        ("better-calibrated", both(0.7, 0.1), PART),
        ("better-calibrated", both(0.2), NO),
        ("varies-less", both({"share": 0.9, "dynamic": 1.0, "fixed": 2.0}), YES),
        ("varies-less", both({"share": 0.1, "dynamic": 3.0, "fixed": 2.0}), NO),
        ("multivariate", both(1.2), YES),
        ("multivariate", both(9.0, 1.2), PART),
        ("multivariate", both(9.0), NO),
        ("underconfident", both({"EK1": 0.9, "EK0": 0.5}), YES),
        ("underconfident", both({"EK1": 0.6, "EK0": 0.7}), NO),
        ("decent", both({"dynamic": 0.8, "fixed": 0.2}), YES),
        ("decent", both({"dynamic": 0.4, "fixed": 0.2}), PART),
        ("decent", both({"dynamic": 0.4, "fixed": 0.6}), NO),
        ("rates", both({"EKS1": [6.8, 0.2], "DP5": [5.8, 0.1]}), YES),
        ("rates", both({"EKS1": [6.8, 0.2], "DP5": None}), PART),
        ("rates", both({"EKS1": [6.2, 0.1], "DP5": [4.0, 0.1]}), PART),
        ("rates", both({"EKS1": [9.0, 0.1], "DP5": [4.0, 0.1]}), NO),
        ("loose", both({"EKF0": 2.0, "EKS1": 1.0}), YES),
        ("loose", both({"EKF0": 1.1, "EKS1": 1.0}), NO),
        ("fewest", both({"share": 0.9, "factor": {"DP5": 2.0}}), YES),
        ("fewest", both({"share": 0.1, "factor": {"DP5": 0.5}}), NO),
        ("classic", both({"share": 0.9, "factor": {"DP5": 2.0}}), YES),
        ("classic", both({"share": 0.9, "factor": {"DP5": 0.5}}), NO),
        ("alike", both(1.1), YES),
        ("alike", both(5.0), NO),
    ],
)
def test_rules_follow_the_figures(key, figures, verdict):
    finding = CLAIMS[key].rule(figures)
    assert finding.verdict is verdict
    assert finding.measured
    assert finding.reason


def test_claims_are_told_apart_by_their_keys():
    assert len(CLAIMS) == len(pipeline.CLAIMS) >= 20


def test_statement_for_one_problem_is_checked_on_all():
    verdict, reason = across_problems({"a": True, "b": True, "c": True, "d": False}, "a")
    assert verdict is Verdict.CONFIRMED
    assert "2 of 3 others (not on d)" in reason


def test_fitted_rate_of_a_power_law_with_a_stability_limit():
    evaluations = np.r_[300.0, 301.0, 302.0, 10 ** np.linspace(2.6, 3.6, 6)]
    error = np.r_[1e-4, 1e-5, 1e-6, 1e10 * evaluations[3:] ** -6.0]
    points = np.log10(np.c_[evaluations, error])
    assert claims_work.fitted_line(points).rate == pytest.approx(6.0)


def test_evaluations_at_an_error_between_two_points():
    points = np.array([[2.0, -2.0], [3.0, -8.0]])
    found = claims_work.evaluations_at(points, np.array([-5.0, -9.0]))
    assert found[0] == pytest.approx(2.5)
    assert np.isnan(found[1])


# The cache.


def test_cache_recomputes_only_what_is_missing(tmp_path):
    computed = []

    def compute(configuration):
        computed.append(configuration["n"])
        return {"n": configuration["n"], "nan": math.nan}

    first = [Configuration.of("calibration", n=n) for n in range(3)]
    for configuration in first:
        Cache(tmp_path).get(configuration, compute)
    # A damaged file is what a full disk leaves behind.
    Cache(tmp_path).path(first[1]).write_text('{"settings": ')
    values = [
        Cache(tmp_path).get(Configuration.of("calibration", n=n), compute)["n"] for n in range(4)
    ]
    assert values == [0, 1, 2, 3]
    assert computed == [0, 1, 2, 1, 3]
    assert not list(tmp_path.glob("*.part"))


def test_cache_tells_settings_and_experiments_apart(tmp_path):
    cache = Cache(tmp_path)
    paths = {
        cache.path(Configuration.of(name, rtol=rtol))
        for name in ("calibration", "structure")
        for rtol in (1e-3, 1e-4)
    }
    assert len(paths) == 4


# The whole run, on very little.


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Two experiments: one solve, and 24 of which some fail."""
    patch = pytest.MonkeyPatch()
    patch.setattr("experiments.calibration.METHODS", (("EK0", "dynamic"), ("EK1", "dynamic")))
    patch.setattr("experiments.calibration.PROBLEMS", (FHN,))
    patch.setattr("experiments.figures_comparisons.METHODS", (("EK0", "dynamic"),))
    figures = [f for f in pipeline.FIGURES if f.key in ("lotka-volterra", f"calibration-{FHN}")]
    patch.setattr(pipeline, "FIGURES", figures)
    folder = tmp_path_factory.mktemp("paper")
    only = ["lotka-volterra", "calibration"]
    options = {"extent": TINY, "only": only, "processes": 1}
    found = pipeline.run(folder, **options)
    calls = []
    original = work.compute
    patch.setattr(work, "compute", lambda *given: calls.append(given) or original(*given))
    pipeline.run(folder, **options)
    patch.undo()
    return found, folder, calls


@pytest.mark.slow
def test_second_run_computes_nothing(outcome):
    assert outcome[2] == []


@pytest.mark.slow
def test_run_writes_figures_tables_and_findings(outcome):
    found, folder, _ = outcome
    for ending in ("png", "pdf"):
        assert (folder / "figures" / f"lotka-volterra.{ending}").stat().st_size > 10_000
    rows = list(csv.DictReader((folder / "data" / f"calibration-{FHN}.csv").open()))
    assert len(rows) == 2 * 2 * 2
    assert {row["status"] for row in rows} == {"SUCCESS"}
    claims = list(csv.DictReader((folder / "data" / "claims.csv").open()))
    assert [row["claim"] for row in claims] == [claim.key for claim, _ in found.findings]


class Sources(HTMLParser):
    """Everything that a page would load."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.images = 0

    def handle_starttag(self, tag, attrs):
        self.images += tag == "img"
        loads = {"src", "srcset", "data", "poster"} | ({"href"} if tag == "link" else set())
        self.found += [value for name, value in attrs if name in loads]


@pytest.mark.slow
def test_report_loads_nothing_from_elsewhere(outcome):
    text = outcome[0].report.read_text(encoding="utf-8")
    page = Sources()
    page.feed(text)
    assert page.images == 2
    assert all(source.startswith("data:") for source in page.found)
    assert not re.search(r"https?://|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text


@pytest.mark.slow
def test_report_shows_every_verdict(outcome):
    found = outcome[0]
    text = found.report.read_text(encoding="utf-8")
    assert text.count("<tr><td>") == len(found.findings) > 0


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_report_opens_in_a_browser(outcome, tmp_path):
    """All images have a size, and nothing is written to the console."""
    script = """<script>addEventListener("load", () => {
      const sizes = [...document.images].map((image) => image.naturalWidth);
      document.body.dataset.sizes = JSON.stringify(sizes); });</script>"""
    page = tmp_path / "report.html"
    text = outcome[0].report.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", f"{script}</body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"]
    flags += ["--virtual-time-budget=10000", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *flags, page.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    sizes = json.loads(re.search(r'data-sizes="(\[[^"]*\])"', done.stdout)[1])
    assert len(sizes) == 2
    assert min(sizes) > 0
    assert "CONSOLE" not in done.stderr


# Failing runs, and the stiff problem's explicit one.


def test_failed_runs_stay_in_the_table():
    failed = {"problem": FHN, "success": False, "status": "MAX_STEPS", "views": {}}
    rows = pipeline._MODULES["calibration"].rows([failed])
    assert [row["view"] for row in rows] == ["filter", "smoother"]
    assert all(math.isnan(row["error"]) and not row["judged"] for row in rows)


def test_explicit_solver_stops_within_its_budget(tmp_path):
    module = pipeline._MODULES["van-der-pol"]
    values = module.compute(
        Configuration.of(
            "van-der-pol",
            kind="explicit",
            y0=[2.0, 0.0],
            order=3,
            atol=1e-6,
            rtol=1e-3,
            max_steps=500,
        ),
        Cache(tmp_path),
    )
    assert (values["success"], values["status"], values["steps"]) == (False, "MAX_STEPS", 500)
    assert "stiff" in values["message"]
    finding = claims_solutions._explicit_rule({"runs": [{"y0": [2, 0], **values}]})
    assert finding.verdict is Verdict.CONFIRMED


def test_tolerances_are_the_papers():
    assert settings.calibration_tolerances(FHN, 0) == (1e-4, 1e-1)
    assert settings.calibration_tolerances(LV, 9) == (1e-14, 1e-11)
    assert settings.comparison_tolerances(10) == (1e-17, 1e-12)


def test_unknown_experiment_is_named(capsys, tmp_path):
    assert main(["paper", "--only", "van-der-pole", "--out", str(tmp_path)]) == 2
    assert "Did you mean 'van-der-pol'?" in capsys.readouterr().err
