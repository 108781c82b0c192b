"""A progress bar for ensembles: members done and time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock


@contextmanager
def members_bar(show: bool | str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    """A function to be told of members that have finished; ``done`` were finished before.

    ``show=True`` shows a bar on a terminal only, ``show="always"`` everywhere.
    """
    if not show or (show is True and not sys.stderr.isatty()):
        yield lambda count: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("a progress bar needs tqdm: pip install probode[progress].") from None
    turn = Lock()
    with tqdm(total=total, initial=done, unit=" members", unit_scale=True) as bar:

        def update(count: int) -> None:
            with turn:
                bar.update(count)

        yield update
