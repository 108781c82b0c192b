"""What is shown while an ensemble is solved: members done and time left, or that XLA compiles."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer

_PATIENCE = 2.0
"""Seconds without a finished member, after which somebody at a terminal is told why."""

from probode.base.waiting import doing, wanted


@contextmanager
def members_bar(show: bool | str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    """A function to be told of members that have finished; ``done`` were finished before.

    ``show=True`` shows a bar on a terminal and in a notebook, ``show="always"`` everywhere. Without
    one, a line says how many are done, if it takes long.
    """
    if not wanted(show):

        def count_them(count: int) -> None:
            nonlocal done
            done += count

        with doing(lambda: f"{done} of {total} members"):
            yield count_them
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("a progress bar needs tqdm: pip install probode[progress].") from None
    turn = Lock()
    with doing(None), tqdm(total=total, initial=done, unit=" members", unit_scale=True) as bar:

        def update(count: int) -> None:
            with turn:
                bar.update(count)

        yield update


@contextmanager
def compiling_line(engine: str, tell: Callable[[int], None]) -> Iterator[Callable[[int], None]]:
    """``tell``, with a line on a terminal if compiling takes long before the first member is done.

    Scripts, whose output nobody watches, and engines that compile nothing see none.
    """
    if engine == "kernels" or not sys.stderr.isatty():
        yield tell
        return
    words = f"probode: XLA compiles for the engine {engine!r}, once for this function ..."
    timer = Timer(_PATIENCE, lambda: print(words, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()

    def told(count: int) -> None:
        timer.cancel()
        tell(count)

    try:
        yield told
    finally:
        timer.cancel()
