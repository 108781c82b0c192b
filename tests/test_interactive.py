"""Interactive figures: what they hold is the posterior, looked at in the figure itself."""

import sys

import numpy as np
import pytest

from probode import solve_ivp
from probode.posterior.curves import BAND


def circle(t, y):
    return np.array([y[1], -y[0]])


def crossing(t, y):
    return y[0]


@pytest.fixture(scope="module")
def result():
    return solve_ivp(circle, (0.0, 6.0), [1.0, 0.0], events=crossing)


def means(drawing):
    return [trace for trace in drawing.data if trace.meta == "mean"]


def test_lines_are_means_with_their_standard_deviations_to_be_read(result):
    lines = means(result.posterior.plot_interactive(names=["x", "v"]))
    assert [line.name for line in lines] == ["x", "v"]
    for i, line in enumerate(lines):
        at = result.posterior.state(np.asarray(line.x))
        np.testing.assert_array_equal(line.y, at.mean[:, i])
        np.testing.assert_array_equal(line.customdata, at.std[:, i])
        assert "%{customdata" in line.hovertemplate


def test_bands_hold_95_percent(result):
    drawing = result.posterior.plot_interactive()
    for line in means(drawing):
        at = list(drawing.data).index(line)
        lower, upper = drawing.data[at - 2], drawing.data[at - 1]
        assert upper.fill == "tonexty" and lower.legendgroup == upper.legendgroup == line.name
        width = 2.0 * BAND * np.asarray(line.customdata)
        rounding = 4.0 * np.finfo(float).eps * np.max(np.abs(line.y))
        np.testing.assert_allclose(np.subtract(upper.y, lower.y), width, atol=rounding)


def test_errors_are_drawn_with_the_standard_deviations(result):
    def exact(t):
        return [np.cos(t), -np.sin(t)]

    drawing = result.posterior.plot_interactive(reference=exact)
    dotted = [trace for trace in drawing.data if trace.line.dash == "dot"]
    for i, (line, error) in enumerate(zip(means(drawing), dotted, strict=True)):
        true = np.abs(np.asarray(line.y) - [exact(t)[i] for t in line.x])
        np.testing.assert_array_equal(error.y, np.where(true > 0.0, true, np.nan))


def test_events_are_marked_where_the_solution_is(result):
    drawing = result.plot_interactive()
    marks = [trace for trace in drawing.data if trace.mode == "markers"]
    assert len(marks) == 2  # one for each component
    for i, mark in enumerate(marks):
        np.testing.assert_array_equal(mark.x, result.t_events[0])
        # Drawn between 500 times at least, by lines.
        np.testing.assert_allclose(mark.y, result.y_events[0][:, i], atol=(6.0 / 500) ** 2)
        assert all(text.startswith(" ± ") for text in mark.customdata)


def test_jumps_are_gaps_and_components_have_one_name_each():
    falling = solve_ivp(lambda t, y: -y, (0.0, 3.0), [1.0], jumps=[(1.0, lambda t, y: y + 1.0)])
    lines = means(falling.plot_interactive())
    assert [line.showlegend for line in lines] == [True, False]
    assert lines[0].x[-1] == lines[1].x[0] == 1.0
    assert lines[1].y[0] - lines[0].y[-1] == pytest.approx(1.0)


def test_names_are_written_for_browsers():
    fall = solve_ivp(lambda t, y, v: -y, (0, 1), [1.0, 0.0, 0.0, 1.0], second_order=True)
    assert means(fall.plot_interactive())[0].name == "y<sub>1</sub>"
    assert means(fall.plot_interactive(k=1))[1].name == "y′<sub>2</sub>"


def test_of_many_components_only_lines_are_drawn():
    many = solve_ivp(lambda t, y: -y, (0.0, 1.0), np.arange(1.0, 9.0))
    drawing = many.plot_interactive()
    assert len(means(drawing)) == 8 and len(drawing.data) == 16


def test_what_ends_early_is_seen_up_to_there():
    stopped = solve_ivp(lambda t, y: y**2, (0.0, 2.0), [1.0])
    drawing = stopped.plot_interactive()
    assert drawing.layout.yaxis.range[1] < 1e3 < np.max(stopped.y)
    assert drawing.layout.shapes[0].x0 == stopped.t[-1]


def test_without_plotly_the_message_says_how_to_get_it(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ImportError, match=r"pip install probode\[interactive\]"):
        result.plot_interactive()
