"""A progress bar for ensembles: members done and time left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

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
