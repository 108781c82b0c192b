"""Figures of a posterior: what the panels show, and at which times."""

import builtins

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

import probode
from probode import plotting

SOLVER = probode.EK0(2)
CONTROL = probode.PIControl(rtol=1e-3, atol=1e-6)


def decay(t, y):
    return -y


def solve(y0, t_span=(0.0, 2.0), **options):
    return probode.solve(decay, t_span, y0, solver=SOLVER, control=CONTROL, **options)


@pytest.fixture(scope="module")
def pair():
    """Two components."""
    return solve([1.0, 2.0])


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture
def ax():
    return plt.subplots()[1]


def data(ax):
    """The lines drawn with data, without those made for the legend."""
    return [line for line in ax.lines if len(line.get_xdata())]


def legend(ax):
    drawn = ax.get_legend()
    return None if drawn is None else [text.get_text() for text in drawn.get_texts()]


def test_figure_has_panels_for_solution_deviation_and_steps(pair):
    labels = [ax.get_ylabel() for ax in plotting.figure(pair).axes]
    assert labels == ["solution", "standard deviation", "step size"]


def test_panels_share_their_time_axis(pair):
    axes = plotting.figure(pair).axes
    axes[0].set_xlim(0.5, 1.0)
    assert all(ax.get_xlim() == (0.5, 1.0) for ax in axes)


def test_only_the_lowest_panel_names_the_time_axis(pair):
    assert [ax.get_xlabel() for ax in plotting.figure(pair).axes] == ["", "", "$t$"]


def test_title_stands_above_the_first_panel(pair):
    assert plotting.figure(pair, title="Decay").axes[0].get_title() == "Decay"


def test_figure_leaves_the_users_style_alone(pair):
    before = dict(matplotlib.rcParams)
    plotting.figure(pair)
    assert dict(matplotlib.rcParams) == before


def test_figure_can_be_saved(pair, tmp_path):
    plotting.figure(pair).savefig(tmp_path / "pair.png")
    assert (tmp_path / "pair.png").read_bytes().startswith(b"\x89PNG")


def test_no_legend_overlaps_a_panel(pair):
    drawing = plotting.figure(pair, reference=lambda t: np.exp(-t) * np.array([1.0, 2.0]))
    drawing.canvas.draw()
    for ax in drawing.axes:
        assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1


def test_solution_is_drawn_from_dense_output(pair, ax):
    (line, _) = data(plotting.plot_solution(pair, ax))
    t, y = line.get_data()
    assert len(t) > 400
    np.testing.assert_array_equal(y, pair(t).mean[:, 0])


def test_band_holds_95_percent(ax):
    posterior = probode.solve(decay, (0.0, 2.0), 1.0, solver=SOLVER, save_at=[1.0, 2.0], step=0.5)
    band = plotting.plot_solution(posterior, ax).collections[0]
    vertices = band.get_paths()[0].vertices
    width = np.ptp(vertices[vertices[:, 0] == 2.0, 1])
    assert width == pytest.approx(2 * 1.959964 * posterior.std[-1], rel=1e-6)


def test_components_have_distinct_colours_that_panels_share(pair):
    axes = plotting.figure(pair).axes
    colors = [[to_hex(line.get_color()) for line in data(ax)] for ax in axes[:2]]
    assert colors[0] == colors[1] == [color.lower() for color in plotting.PALETTE[:2]]


def test_names_appear_in_the_legend(pair, ax):
    plotting.plot_solution(pair, ax, names=["prey", "predators"])
    assert legend(ax) == ["prey", "predators", "95 % band"]


def test_default_names_are_indices(pair, ax):
    assert legend(plotting.plot_solution(pair, ax))[:2] == ["$y_{1}$", "$y_{2}$"]


def test_wrong_number_of_names_is_refused(pair, ax):
    with pytest.raises(ValueError, match="2 strings, one per component"):
        plotting.plot_solution(pair, ax, names=["prey"])


def test_matrices_are_flattened_to_components():
    axes = plotting.figure(solve(np.ones((2, 2)))).axes
    assert legend(axes[0])[:4] == ["$y_{1,1}$", "$y_{1,2}$", "$y_{2,1}$", "$y_{2,2}$"]


def test_many_components_are_drawn_without_a_legend(ax):
    plotting.plot_solution(solve(np.ones(8)), ax)
    assert (len(data(ax)), legend(ax)) == (8, None)


def test_zero_initial_deviation_is_left_out_of_the_logarithmic_axis(pair, ax):
    (line, _) = data(plotting.plot_std(pair, ax))
    y = line.get_ydata()
    assert pair.std[0, 0] == 0.0
    assert np.isnan(y[0])
    assert np.all(y[1:] > 0.0)


def test_deviation_is_on_a_logarithmic_axis(pair, ax):
    assert plotting.plot_std(pair, ax).get_yscale() == "log"


@pytest.mark.filterwarnings("error")
def test_solution_without_any_uncertainty_can_be_drawn():
    posterior = probode.solve(lambda t, y: 0.0 * y, (0.0, 1.0), 1.0, solver=SOLVER)
    plotting.figure(posterior).canvas.draw()
    assert not np.any(posterior.std)


def test_true_error_is_dotted_in_the_colour_of_its_component(pair, ax):
    plotting.plot_std(pair, ax, reference=lambda t: np.exp(-t) * np.array([1.0, 2.0]))
    lines = data(ax)
    assert [line.get_linestyle() for line in lines] == ["-", ":", "-", ":"]
    assert lines[2].get_color() == lines[3].get_color()


def test_true_error_is_the_distance_to_the_reference(pair, ax):
    plotting.plot_std(pair, ax, reference=lambda t: np.array([0.0, 7.0]))
    t, error = data(ax)[3].get_data()
    np.testing.assert_allclose(error, np.abs(pair(t).mean[:, 1] - 7.0))


def test_reference_of_the_wrong_size_is_refused(pair, ax):
    with pytest.raises(ValueError, match="2 components"):
        plotting.plot_std(pair, ax, reference=lambda t: np.zeros(3))


def test_steps_are_the_accepted_ones(pair, ax):
    (line,) = data(plotting.plot_steps(pair, ax))
    np.testing.assert_array_equal(line.get_ydata()[:-1], pair.step_sizes)
    assert ax.get_yscale() == "log"


def test_backward_steps_are_drawn_with_their_length(ax):
    (line,) = data(plotting.plot_steps(solve([1.0, 2.0], (2.0, 0.0)), ax))
    assert np.all(line.get_ydata() > 0.0)


def test_backward_solution_is_drawn_over_increasing_time():
    axes = plotting.figure(solve([1.0, 2.0], (2.0, 0.0))).axes
    assert axes[0].get_xlim() == (0.0, 2.0)


def test_saved_times_are_drawn_without_dense_output():
    posterior = solve([1.0, 2.0], save_at=[0.5, 1.0, 2.0])
    (line, _) = data(plotting.figure(posterior).axes[0])
    np.testing.assert_array_equal(line.get_xdata(), [0.5, 1.0, 2.0])


def test_saved_times_have_no_panel_of_steps():
    assert len(plotting.figure(solve([1.0, 2.0], save_at=[0.5, 1.0, 2.0])).axes) == 2


def test_filter_is_drawn_at_its_steps(ax):
    posterior = solve([1.0, 2.0], smooth=False)
    (line, _) = data(plotting.plot_std(posterior, ax))
    np.testing.assert_array_equal(line.get_xdata(), posterior.t)


def test_steps_that_grow_over_decades_make_time_logarithmic(ax):
    times = np.concatenate([[0.0], np.geomspace(1e-5, 1e3, 60)])
    posterior = probode.solve(decay, (0.0, 1e3), 1.0, solver=SOLVER, grid=times)
    assert plotting.plot_solution(posterior, ax).get_xscale() == "log"


def test_layers_thinner_than_the_drawing_are_resolved():
    nodes = np.concatenate([np.linspace(0, 1, 10), 1 + np.linspace(1e-9, 1e-6, 20), [2.0]])
    assert np.sum((plotting._times(nodes) > 1.0) & (plotting._times(nodes) < 1 + 1e-6)) > 100


def test_solve_that_never_started_can_be_drawn():
    posterior = probode.solve(lambda t, y: np.nan * y, (0.0, 1.0), 1.0, solver=SOLVER)
    assert not posterior.success
    plotting.figure(posterior).canvas.draw()


def test_missing_matplotlib_says_how_to_get_it(pair, monkeypatch):
    find = builtins.__import__

    def refuse(name, *rest, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return find(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"pip install probode\[plot\]"):
        plotting.figure(pair)
