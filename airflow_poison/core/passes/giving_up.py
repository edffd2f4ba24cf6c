"""A pass that ends before its commit gives its claim up: any later pass goes on at once, from what was journalled.

The claim is not taken back, for its journals hold attempts that count. It only expires now instead of in two minutes, and only when nobody can
write to its journals any more; else it expires by itself.
"""

from __future__ import annotations

import fcntl
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.counted import counted
from airflow_poison.core.errors import ClaimLostError, PoisonError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.files import Claim
    from airflow_poison.core.store.queue_table import QueueTable

PATIENCE_SECONDS = 4.0
"""How long to wait for the end of what still writes. Airflow kills a task five seconds after it has asked it to end."""
_LOOK_SECONDS = 0.05


INTERRUPTS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit)


@contextmanager
def given_up(
    table: QueueTable, claim: Callable[[], Claim], clock: Clock, tell: Callable[[str], None], interrupts: tuple[type[BaseException], ...] = INTERRUPTS
) -> Iterator[None]:
    """Give the claim up when an error or an interrupt ends the block.

    :param claim: returns it as it was renewed last.
    :param tell: told a line.
    :param interrupts: what is no Exception.
    Raises ClaimLostError where a missing file means that.
    """
    ends: tuple[type[BaseException], ...] = (Exception, *interrupts)
    try:
        yield
    except ClaimLostError:
        raise
    except ends as error:
        if isinstance(error, FileNotFoundError):
            table.stage(claim())  # says so when a later holder has shut this one out, and its folder is gone with that
        give_up(table, claim(), clock, tell)
        raise


def give_up(table: QueueTable, claim: Claim, clock: Clock, tell: Callable[[str], None]) -> None:
    """Let a claim expire now, when nobody works on it any more; else it expires by itself."""
    with suppress(PoisonError, OSError):  # what ended the pass is what is told
        if _quiet(Path(table.stage(claim), "journal")):
            table.renew(claim, lease=timedelta(0), now=clock.now())
            tell(f"the claim of {counted(claim.messages, 'message')} is given up: the next pass goes on at once, with all attempts counted")


def _quiet(folder: Path) -> bool:
    """Wait until nobody can write to the journals any more; False when that takes too long."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not all(map(_is_left, folder.glob("*.journal"))):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _is_left(journal: Path) -> bool:
    with journal.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
