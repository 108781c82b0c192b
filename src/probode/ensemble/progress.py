"""What is shown while an ensemble is solved: members done and time left, or that XLA compiles."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from probode.base.waiting import doing, wanted


@contextmanager
def members_bar(
    show: bool | str, total: int, done: int, engine: str
) -> Iterator[Callable[[int], None]]:
    """A function to be told of members that have finished; ``done`` were finished before.

    ``show=True`` shows a bar on a terminal and in a notebook, ``show="always"`` everywhere. Without
    one, a line says how many are done, if it takes long, or what is waited for before the first.
    """
    if not wanted(show):
        before = done

        def count_them(count: int) -> None:
            nonlocal done
            done += count

        def now() -> str:
            if done == before and engine != "kernels":
                return f"XLA compiles for the engine {engine!r}, once for this function"
            return f"{done} of {total} members"

        with doing(now):
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
