"""A progress bar for long solves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from probode.base.waiting import doing, wanted
from probode.engines.monitor import Progress

Callback = Callable[[Progress], Any]


@contextmanager
def with_progress(
    show: bool | str, t0: float, t1: float, callback: Callback | None
) -> Iterator[Callback | None]:
    """The callback, with a bar in front of it if wanted.

    ``show=True`` shows a bar on a terminal and in a notebook, ``show="always"`` everywhere. The bar
    tells the time reached, the step size, steps per second and the time that is left.
    """
    if not wanted(show):
        yield callback
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("a progress bar needs tqdm: pip install probode[progress].") from None
    total = abs(t1 - t0)
    finite = total < float("inf")
    form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}" if finite else None
    bar = tqdm(total=total if finite else None, bar_format=form, desc=f"t = {t0:g}")
    with doing(None), bar:

        def update(progress: Progress) -> Any:
            bar.n = abs(progress.t - t0)
            rate = progress.steps / max(progress.elapsed, 1e-9)
            bar.set_description_str(f"t = {progress.t:.6g}", refresh=False)
            bar.set_postfix_str(f"h = {abs(progress.step_size):.1e}, {rate:.0f} steps/s")
            return callback(progress) if callback is not None else None

        yield update
        bar.n = total if finite else bar.n
        bar.refresh()
