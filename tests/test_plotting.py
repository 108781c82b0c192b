"""Figures of a posterior: what the panels show, and at which times."""

import builtins

import matplotlib

matplotlib.use("agg")

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from compiling import jit_once
from matplotlib.colors import to_hex

import probode
from probode import plotting
from probode.posterior import curves

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


def test_of_many_components_the_first_and_the_last_are_named(ax):
    plotting.plot_solution(solve(np.ones(8)), ax)
    assert (len(data(ax)), legend(ax)) == (8, ["$y_{1}$", "$y_{8}$"])


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
    times = curves.drawing_times(nodes)
    assert np.sum((times > 1.0) & (times < 1 + 1e-6)) > 100


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


# The methods of a posterior


@pytest.fixture(scope="module")
def coupled():
    """Two components whose errors are correlated, at a rough tolerance."""
    return probode.solve(
        lambda t, y: jnp.stack([y[1], -y[0]]),
        (0.0, 4.0),
        np.array([1.0, 0.0]),
        solver=probode.EK1(2),
        step=0.25,
    )


def test_plot_draws_the_three_panels(pair):
    assert len(pair.plot(title="Decay").axes) == 3


def test_plot_into_axes_draws_the_solution_only(pair, ax):
    assert pair.plot(ax=ax) is ax
    assert ax.get_ylabel() == "solution"


def test_plot_into_axes_takes_a_title(pair, ax):
    assert pair.plot(ax=ax, title="Decay").get_title() == "Decay"


def test_plot_into_axes_has_no_place_for_a_reference(pair, ax):
    with pytest.raises(ValueError, match="plot_error"):
        pair.plot(ax=ax, reference=np.exp)


METHODS = {
    "plot_error": "standard deviation",
    "plot_samples": "sample − mean",
    "plot_steps": "step size",
    "plot_phase": "$y_{2}$",
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_return_the_axes_that_they_are_given(pair, ax, name):
    assert getattr(pair, name)(ax=ax) is ax


@pytest.mark.parametrize("name", METHODS)
def test_methods_make_a_figure_if_none_is_given(pair, name):
    drawn = getattr(pair, name)()
    drawn.figure.canvas.draw()
    assert drawn.get_ylabel() == METHODS[name]


@pytest.mark.parametrize("name", ["plot", *METHODS])
def test_a_small_figure_cuts_no_label_off(pair, name):
    drawing, ax = plt.subplots(figsize=(4.0, 3.0))
    getattr(pair, name)(ax=ax)
    drawing.canvas.draw()
    box = ax.get_tightbbox()
    assert np.all(box.min >= 0.0) and np.all(box.max <= drawing.bbox.max)


def test_axes_with_room_or_placed_by_hand_stay_where_they_are(pair, ax):
    by_hand = plt.figure(figsize=(4.0, 3.0)).add_axes((0.0, 0.0, 0.5, 0.5))
    for one in (ax, by_hand):
        before = one.get_position().bounds
        pair.plot(ax=one)
        assert one.get_position().bounds == before


def test_error_alone_names_the_components(pair, ax):
    assert legend(pair.plot_error(ax=ax)) == ["$y_{1}$", "$y_{2}$"]


def test_error_shows_the_distance_to_a_reference(pair, ax):
    pair.plot_error(lambda t: np.exp(-t) * np.array([1.0, 2.0]), ax=ax)
    assert legend(ax)[-1] == "true error"


def test_samples_are_drawn_as_deviations_from_the_mean(pair, ax):
    lines = data(pair.plot_samples(n=3, seed=5, ax=ax))
    t, first = lines[0].get_data()
    np.testing.assert_array_equal(first, pair.sample(3, seed=5, t=t)[0, :, 0] - pair(t).mean[:, 0])


def test_all_samples_of_all_components_are_drawn(pair, ax):
    """Three of each, and the line at zero."""
    assert len(data(pair.plot_samples(n=3, ax=ax))) == 2 * 3 + 1


def test_band_of_deviations_lies_around_zero(pair, ax):
    band = pair.plot_samples(n=1, ax=ax).collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(-band.min())
    assert band.max() == pytest.approx(1.959964 * pair(data(ax)[0].get_xdata()).std.max())


def test_samples_themselves_can_be_drawn(pair, ax):
    lines = data(pair.plot_samples(n=2, ax=ax, deviations=False))
    assert lines[0].get_ydata()[0] == pytest.approx(1.0)


def test_components_to_sample_can_be_chosen(pair, ax):
    pair.plot_samples(n=2, ax=ax, components=[-1])
    assert legend(ax) == ["$y_{2}$", "95 % band"]
    assert to_hex(data(ax)[0].get_color()) == plotting.PALETTE[1].lower()


def test_few_of_many_components_are_sampled():
    ax = solve(np.ones(8)).plot_samples(n=2)
    assert legend(ax) == ["$y_{1}$", "$y_{5}$", "$y_{8}$", "95 % band"]


@pytest.mark.parametrize(
    ("wrong", "error"), [([2], ValueError), ([], TypeError), ([0.5], TypeError)]
)
def test_components_that_do_not_exist_are_refused(pair, ax, wrong, error):
    with pytest.raises(error, match="components must be"):
        pair.plot_samples(ax=ax, components=wrong)


def test_samples_at_saved_times_are_drawn_there(ax):
    posterior = solve([1.0, 2.0], save_at=[0.5, 1.0, 2.0])
    line = data(posterior.plot_samples(n=2, ax=ax))[0]
    np.testing.assert_array_equal(line.get_xdata(), [0.5, 1.0, 2.0])


def test_phase_plot_has_one_component_over_the_other(pair, ax):
    x, y = data(pair.plot_phase(1, 0, ax=ax))[0].get_data()
    np.testing.assert_allclose(x, 2 * y, rtol=1e-3)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$y_{2}$", "$y_{1}$")


def test_phase_plot_marks_start_and_end(pair, ax):
    _, start, end = data(pair.plot_phase(ax=ax))
    assert start.get_xydata()[0] == pytest.approx(pair.mean[0])
    assert end.get_xydata()[0] == pytest.approx(pair.mean[-1])


def ellipses(ax):
    return [patch.get_xy() for patch in ax.patches if len(patch.get_xy()) > 10]


def test_ellipses_have_the_covariance_of_the_posterior(coupled, ax):
    """Points on the ellipse that holds 95 % have a Mahalanobis distance of sqrt(5.991)."""
    outline = ellipses(coupled.plot_phase(ax=ax, enlarge=1))[-1]
    away = outline - coupled.mean[-1]
    distance = np.einsum("ni,ij,nj->n", away, np.linalg.inv(coupled.cov[-1]), away)
    np.testing.assert_allclose(distance, 5.991, rtol=1e-3)


def test_ellipses_too_small_to_see_are_enlarged(pair, ax):
    pair.plot_phase(ax=ax)
    factor = int(legend(ax)[-1].split("enlarged ")[1].removesuffix(" times").replace(",", ""))
    widths = [np.ptp(outline[:, 0]) for outline in ellipses(ax)]
    assert max(widths) > 0.02
    np.testing.assert_allclose(widths[-1], 2 * 2.4477 * factor * pair.std[-1, 0], rtol=1e-3)


def test_enlarged_ellipses_can_be_refused(pair, ax):
    assert legend(pair.plot_phase(ax=ax, enlarge=1))[-1] == "95 % ellipses"


def test_phase_plot_of_a_single_component_is_refused(ax):
    posterior = probode.solve(lambda t, y: 0.0 * y, (0.0, 1.0), 1.0, solver=SOLVER)
    with pytest.raises(ValueError, match="between 0 and 0, as y has 1"):
        posterior.plot_phase(ax=ax)


ALL = ["plot", *METHODS]


@pytest.fixture(scope="module")
def batch(pair):
    return jax.tree.map(lambda x: np.stack([x, x, x]), pair)


@pytest.mark.parametrize("name", ALL)
def test_batch_is_refused(batch, name):
    with pytest.raises(TypeError, match=r"one solve, got a batch of shape \(3,\): take one member"):
        getattr(batch, name)()


@pytest.mark.parametrize("name", ALL)
def test_traced_posterior_is_refused(pair, name):
    with pytest.raises(TypeError, match="finished solve, got one inside a trace"):
        jax.make_jaxpr(lambda posterior: getattr(posterior, name)())(pair)


def test_times_that_a_compiled_solve_did_not_reach_are_left_out():
    run = jit_once(lambda y0: solve(y0, save_at=[0.001, 2.0], max_steps=2))
    (line, _) = data(run(np.ones(2)).plot_error())
    np.testing.assert_array_equal(line.get_xdata(), [0.001])


def test_wide_bands_do_not_set_the_axis(pair, ax):
    """The solution fills at least half of it, whatever the bands; these go on beyond the axes."""
    drawn = curves.curves(pair)
    plotting._draw_solution(drawn._replace(std=1e3 * np.ones_like(drawn.std)), ax)
    low, high = ax.get_ylim()
    assert np.ptp(drawn.mean) >= 0.45 * (high - low)
    assert ax.collections[0].get_paths()[0].get_extents().height > 1e3


def test_bands_of_moderate_size_are_seen_as_a_whole(pair, ax):
    drawn = curves.curves(pair)
    plotting._draw_solution(drawn._replace(std=0.1 * np.ones_like(drawn.std)), ax)
    low, high = ax.get_ylim()
    assert low < drawn.mean.min() - 0.19 and high > drawn.mean.max() + 0.19


@pytest.mark.parametrize("layout", [None, "tight", "constrained"])
def test_the_legend_is_not_cut_off_in_the_users_figure(pair, layout):
    drawn, ax = plt.subplots(layout=layout)
    pair.plot(ax=ax)
    drawn.canvas.draw()
    legend = ax.get_legend().get_window_extent()
    assert legend.x0 >= 0 and legend.x1 <= drawn.bbox.x1


def test_parts_of_complex_states_are_named():
    posterior = probode.solve_ivp(lambda t, y: 1j * y, (0, 1), [1.0, 1j], order=2).posterior
    names = curves.curves(posterior).names
    assert names == [rf"$\mathrm{{{part}}}\,y_{{{i}}}$" for part in ("Re", "Im") for i in (1, 2)]
    assert list(posterior.to_dataframe().columns[::2]) == ["Re_y1", "Re_y2", "Im_y1", "Im_y2"]
    assert "Im y2" in posterior._repr_html_()


def blow_up(t, y):
    return y**2


@pytest.fixture(scope="module")
def stopped():
    """A solution that leaves every bound before the end."""
    return probode.solve_ivp(blow_up, (0.0, 2.0), [1.0])


def test_a_solve_that_stopped_is_drawn_as_far_as_it_can_be_seen(stopped):
    drawing = stopped.posterior.plot()
    drawing.canvas.draw()  # with ticks, which have no room beyond the largest numbers
    axes = drawing.axes
    assert "stopped" in legend(axes[0])
    assert float(np.max(stopped.y)) > 1e10 and axes[0].get_ylim()[1] < 1e3


def test_events_are_marked_where_they_happen():
    level = lambda t, y: y[0] - 0.5  # noqa: E731
    never = lambda t, y: y[0] + 1.0  # noqa: E731
    result = probode.solve_ivp(decay, (0.0, 2.0), [1.0], events=[level, never])
    ax = result.plot().axes[0]
    marks = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in marks] == [result.t_events[0][0]]
    assert "event 1 (1)" in legend(ax) and ax.get_xlim() == (0.0, 2.0)


def test_an_uncertain_event_has_a_band(ax):
    ax.set_xlim(0.0, 2.0)
    plotting.mark_events(ax, [[1.0]], [[0.1]])
    (band,) = ax.patches
    assert np.allclose(band.get_xy()[0] - 1.0, -0.196, atol=1e-3)


def test_errors_in_units_of_their_bars(ax):
    posterior = probode.solve_ivp(decay, (0.0, 2.0), [1.0, 2.0]).posterior
    truth = lambda t: np.exp(-t) * np.array([1.0, 2.0])  # noqa: E731
    plotting.plot_calibration(posterior, truth, ax)
    true = data(ax)[0].get_ydata()
    error = posterior.mean[:, 0] - np.exp(-posterior.t)
    known = posterior.std[:, 0] > 0.0
    assert np.allclose(true[known], error[known] / posterior.std[known, 0])
    estimated = data(plotting.plot_calibration(posterior))[0].get_ydata()
    assert np.allclose(true[known], estimated[known], atol=0.1)  # a tenth of a bar
    assert "% inside" in legend(ax)[-1] and "trusted" in ax.get_title()


def test_errors_of_a_posterior_that_has_no_estimate_need_a_reference(pair):
    with pytest.raises(ValueError, match="calibrate"):
        plotting.plot_calibration(pair)
