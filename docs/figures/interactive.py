"""Draw interactive.png, a picture of the interactive figure of docs/start.md, in Chromium."""

import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

import probode

HERE = Path(__file__).parent
WIDTH, HEIGHT = 800, 560


def pendulum(t, y, damping):
    angle, velocity = y
    return np.array([velocity, -9.81 * np.sin(angle) - damping * velocity])


result = probode.solve_ivp(pendulum, (0, 10), [2.0, 0.0], args=(0.2,), rtol=1e-4)
figure = result.plot_interactive(names=["angle", "velocity"])

with tempfile.TemporaryDirectory() as folder, sync_playwright() as tools:
    page_file = Path(folder) / "figure.html"
    figure.write_html(page_file)
    browser = tools.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    page.goto(page_file.as_uri())
    page.wait_for_selector(".plotly .legend")
    at = page.evaluate(
        """() => {
            const div = document.querySelector(".plotly-graph-div"), layout = div._fullLayout;
            const line = div._fullData.find(one => one.meta === "mean");
            const k = Array.from(line.x).findIndex(t => t > 4.2), box = div.getBoundingClientRect();
            return [box.x + layout.xaxis._offset + layout.xaxis.d2p(line.x[k]),
                    box.y + layout.yaxis._offset + layout.yaxis.d2p(line.y[k])];
        }"""
    )
    page.mouse.move(*at)
    page.wait_for_selector(".hovertext")
    page.screenshot(path=HERE / "interactive.png")
    browser.close()
