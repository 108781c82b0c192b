"""What a posterior looks like in a console and in a notebook."""

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import jax
import numpy as np
import pytest

import probode
from probode import EK0, EK1
from probode.posterior.display import value_with_std
from probode.posterior.small_figure import small_figure

TOLERANCES = np.asarray(1e-4), np.asarray(1e-7)
SVG = "{http://www.w3.org/2000/svg}"
NUMBER = r"[-+0-9.e]+"


def solve(y0, solver=EK1(3), **options):  # noqa: B008
    control = probode.PIControl(*TOLERANCES)
    return probode.solve(lambda t, y: -y, (0.0, 2.0), y0, solver=solver, control=control, **options)


@pytest.fixture(scope="module")
def posterior():
    found = solve(np.array([1.0, 3.0]))
    return replace(found, tolerances=TOLERANCES)


@pytest.fixture(scope="module")
def many():
    return solve(np.ones((2, 4)), EK0(3), step=0.1)


@pytest.fixture(scope="module")
def batch(many):
    return jax.tree.map(lambda x: np.stack([x, x, x]), many)


def words(posterior):
    """The text of the HTML."""
    return " ".join("".join(ElementTree.fromstring(posterior._repr_html_()).itertext()).split())


# Numbers


@pytest.mark.parametrize(
    ("value", "std", "expected"),
    [
        (1.0263447698, 6.1e-8, "1.02634477 ± 6e-08"),
        (1.0263447698, 1.34e-8, "1.026344770 ± 1.3e-08"),
        (-0.12345, 0.0123, "-0.123 ± 0.012"),
        (0.12345, 0.034, "0.12 ± 0.03"),
        (0.12345, 0.0096, "0.1235 ± 0.0096"),
        (123456.0, 3210.0, "123000 ± 3000"),
        (12.3, 40.0, "10 ± 40"),
        (2.0833401497e-8, 3.2e-18, "2.0833401497e-08 ± 3e-18"),
        (6.02214076e23, 2e17, "6.022141e+23 ± 2e+17"),
        (3.1e-12, 5e-12, "3e-12 ± 5e-12"),
        (0.0, 0.003, "0 ± 0.003"),
        (1.0, 0.0, "1 ± 0"),
        (0.1, 1e-30, "0.1000000000000000 ± 1.0e-30"),
        (np.nan, 0.1, "nan ± 0.1"),
        (1.0, np.nan, "1 ± nan"),
        (1.0, np.inf, "1 ± inf"),
    ],
)
def test_values_have_the_digits_that_their_deviation_supports(value, std, expected):
    assert value_with_std(value, std) == expected


@pytest.mark.parametrize("exponent", range(-20, 20, 3))
@pytest.mark.parametrize("relative", [3e-12, 1.4e-5, 0.7, 50.0])
def test_rounding_is_small_compared_to_the_deviation(exponent, relative):
    """One digit of the deviation is kept, two if it is a one: half a unit is at most a fourth."""
    value = 1.2345678901234567 * 10.0**exponent
    std = relative * value
    shown, deviation = map(float, value_with_std(value, std).split(" ± "))
    assert abs(shown - value) <= 0.5 * std
    assert abs(deviation - std) <= 0.25 * std


# Text


def test_text_is_short(posterior):
    assert len(repr(posterior).splitlines()) == 5


def test_text_begins_with_method_and_tolerances(posterior):
    expected = "Posterior of EK1(3), dynamic diffusion, rtol 0.0001, atol 1e-07"
    assert repr(posterior).splitlines()[0] == expected


def test_text_without_tolerances_does_not_mention_them(many):
    assert repr(many).splitlines()[0] == "Posterior of EK0(3), dynamic diffusion"


def test_tolerances_per_component_are_given_as_a_range(posterior):
    known = replace(posterior, tolerances=(posterior.tolerances[0], np.array([1e-9, 1e-3])))
    assert "atol 1e-09 to 0.001" in repr(known)


def test_text_has_the_final_value(posterior):
    value = value_with_std(posterior.mean[-1, 1], posterior.std[-1, 1])
    assert value in repr(posterior)


def test_text_shows_the_first_of_many_components(many):
    assert repr(many).count("±") == 4
    assert ", ..." in repr(many)


def test_text_tells_a_filter(posterior):
    assert "filter only" not in repr(posterior)
    assert "filter only" in repr(solve(np.array([1.0, 3.0]), smooth=False))


def test_text_of_a_batch_says_so(batch):
    assert repr(batch) == "<Posterior of EK0(3), a batch of shape (3,)>"


def test_text_inside_a_trace_says_so(posterior):
    seen = []
    jax.make_jaxpr(lambda p: seen.append(repr(p)))(posterior)
    assert seen == ["<Posterior of EK1(3), traced>"]


def test_text_of_a_posterior_of_other_things_says_so(posterior):
    axes = jax.tree.map(lambda leaf: 0, posterior)
    assert repr(axes) == "<Posterior of EK1(3), without values>"


def test_member_of_a_batch_is_shown_like_any_other(batch, many):
    assert repr(jax.tree.map(lambda x: x[0], batch)) == repr(many)


# HTML


class Balance(HTMLParser):
    """Notes tags that are opened and not closed, in the order of HTML."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.mark.parametrize("name", ["posterior", "many"])
def test_html_is_well_formed(name, request):
    parser = Balance()
    parser.feed(request.getfixturevalue(name)._repr_html_())
    assert (parser.open, parser.wrong) == ([], [])


def test_html_is_one_element_of_xml_too(posterior):
    assert ElementTree.fromstring(posterior._repr_html_()).tag == "div"


def test_html_says_how_and_how_well(posterior):
    text, stats = words(posterior), posterior.stats
    for part in [
        "EK1(3), dynamic diffusion, rtol 0.0001, atol 1e-07",
        posterior.message,
        f"{stats.steps} steps ({stats.rejected} rejected)",
        f"{stats.f_evaluations} evaluations of f, {stats.jacobian_evaluations} of its Jacobian",
        f"log evidence {posterior.log_evidence:.6g}",
    ]:
        assert part in text


def test_html_has_all_final_values(posterior):
    text = words(posterior)
    for value, std in zip(posterior.mean[-1], posterior.std[-1], strict=True):
        assert value_with_std(value, std) in text


def test_html_names_components_as_tables_and_figures_do(many):
    assert "y2,2" in words(many)


def test_html_counts_the_components_that_it_leaves_out(many):
    assert "and 2 more" in words(many)


def test_html_marks_a_failure():
    failed = solve(np.array([1.0, 3.0]), max_steps=2)
    assert "✗ The maximal number of steps" in words(failed)


def test_html_leaves_the_colour_of_text_to_the_page(posterior):
    """Only the mark, which is not needed to understand anything, has a colour."""
    assert posterior._repr_html_().count("color:") == 1
    assert "✓" in re.search(r'color: #\w+">(.)<', posterior._repr_html_()).group(1)


def test_html_is_self_contained(posterior):
    html = posterior._repr_html_()
    addresses = set(re.findall(r"https?://[^\"\s]+", html))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|style)|url\(|\shref|\ssrc", html)


def test_html_escapes_what_it_shows(posterior):
    class Odd(EK1):
        @property
        def name(self):
            return "<script>&"

    odd = replace(posterior, stats=posterior.stats)
    object.__setattr__(odd, "solver", Odd(3))
    assert "&lt;script&gt;&amp;" in odd._repr_html_()


def test_html_has_curves_of_value_and_deviation(posterior):
    assert posterior._repr_html_().count("<svg") == 1 + 2 * 2  # and a figure of both


def test_curves_stay_inside_their_box(posterior):
    paths = re.findall(r'd="([^"]+)"', posterior._repr_html_())
    for path in paths:
        numbers = np.array(re.findall(NUMBER, re.sub("[MLC]", " ", path)), float).reshape(-1, 2)
        assert np.all((numbers >= 0.0) & (numbers <= [120.0, 22.0]))


def test_curve_of_the_solution_falls_as_the_solution_does(posterior):
    path = re.findall(r'd="([^"]+)"', posterior._repr_html_())[0]
    numbers = np.array(re.findall(NUMBER, re.sub("[MLC]", " ", path)), float).reshape(-1, 2)
    assert np.all(np.diff(numbers[:, 0]) >= 0.0)
    assert np.all(np.diff(numbers[:, 1]) >= 0.0)


def test_single_time_is_shown_without_curves():
    html = solve(np.array([1.0, 3.0]), save_at=2.0)._repr_html_()
    assert "<svg" not in html
    assert "t = 2" in html


def test_number_has_no_index():
    table = ElementTree.fromstring(solve(1.0)._repr_html_()).find("table")
    assert table.findall("tr")[1].find("td").text == "y"


@pytest.mark.parametrize("which", ["batch", "traced"])
def test_notebooks_show_the_text_of_what_is_not_one_solve(posterior, batch, which):
    seen = []
    if which == "batch":
        seen.append(batch._repr_html_())
    else:
        jax.make_jaxpr(lambda p: seen.append(p._repr_html_()))(posterior)
    assert seen == [None]


def test_importing_the_library_does_not_import_what_draws_and_exports():
    code = "import probode, sys; print({'matplotlib', 'pandas', 'xarray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# A small figure


def svg(posterior):
    """The figure of a posterior, as elements."""
    return ElementTree.fromstring(small_figure([posterior], ["a", "b"][: posterior.shape[0]]))


def points(element):
    return np.array([pair.split(",") for pair in element.get("points").split()], float)


def test_small_figure_has_a_line_and_a_band_for_each_component(posterior):
    drawn = svg(posterior)
    lines = [points(one) for one in drawn.iter(SVG + "polyline")]
    assert len(lines) == len(list(drawn.iter(SVG + "polygon"))) == 2
    # The larger one fills the figure: downwards in the solution is downwards on the page.
    assert np.all(np.diff(lines[1][:, 1]) >= 0.0) and lines[1][0, 1] == 6.0
    assert [one.text for one in drawn.iter(SVG + "text")][:2] == ["a", "b"]


def test_small_figure_stays_inside_its_box_whatever_the_bars(posterior):
    loose = probode.solve(lambda t, y: -y, (0.0, 2.0), np.ones(2), solver=EK0(1), step=1.0)
    assert float(np.max(loose.std)) > 0.1
    wide = svg(loose)
    for one in (*wide.iter(SVG + "polyline"), *wide.iter(SVG + "polygon")):
        assert points(one).min() >= 0.0 and points(one)[:, 1].max() <= 130.0


def test_small_figure_of_a_solution_that_left_all_bounds():
    result = probode.solve_ivp(lambda t, y: y**2, (0.0, 2.0), [1.0])
    texts = [one.text for one in svg(result.posterior).iter(SVG + "text")]
    assert float(np.max(result.y)) > 1e10 and float(texts[1]) < 1e3


def test_many_components_have_no_figure(many):
    assert small_figure([many], ["a"] * 8) == ""


# The summary


def test_summary_has_the_extremes_and_the_final_value(posterior):
    found = posterior.summary()
    assert found.names == ("y1", "y2") and found.success
    assert np.array_equal(found.value, posterior.mean[-1])
    assert np.array_equal(found.largest, [1.0, 3.0])
    at = [np.flatnonzero(posterior.t == t)[0] for t in found.largest_std_at]
    assert np.array_equal(found.largest_std, [posterior.std[i, k] for k, i in enumerate(at)])
    assert found.trusted is None and "not calibrated" in found.verdict


def test_summary_is_a_table_with_a_row_for_each_component(posterior, many):
    lines = str(posterior.summary()).splitlines()
    assert lines[0].split() == [
        "final",
        "value",
        "smallest",
        "largest",
        "largest",
        "std",
        "at",
        "t",
    ]
    assert [line.split()[0] for line in lines[1:3]] == ["y1", "y2"]
    assert value_with_std(posterior.mean[-1, 0], posterior.std[-1, 0]) in lines[1]
    assert [line.split()[0] for line in str(many.summary()).splitlines()[1:3]] == ["y1,1", "y1,2"]


def test_summary_of_an_equation_of_second_order_has_velocities():
    spring = probode.SecondOrder(lambda t, y, v: -y)
    found = probode.solve(spring, (0.0, 1.0), (np.ones(1), np.zeros(1)), solver=EK0(3)).summary()
    assert found.names == ("y1", "dy1")
    assert np.allclose(found.value, [np.cos(1.0), -np.sin(1.0)], atol=1e-3)


def test_summary_of_a_solution_with_jumps_counts_all_pieces():
    doses = probode.doses([1.0], 1.0)
    result = probode.solve_ivp(lambda t, y: -y, (0.0, 2.0), [1.0], doses=doses)
    found = result.posterior.summary()
    assert found.largest[0] == pytest.approx(1.0 + np.exp(-1.0), rel=1e-3)
    assert "2 pieces" in found.cost and found.trusted
