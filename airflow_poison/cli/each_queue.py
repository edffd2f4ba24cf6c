"""What is looked for in several queues: a queue that cannot be opened is an error behind the others, and nothing at all is an answer, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from airflow_poison.cli.telling import NO, say
from airflow_poison.core.errors import PoisonError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_poison.core.store import QueueStore
    from airflow_poison.core.store.queue_table import QueueTable

T = TypeVar("T")


def looked_for(store: QueueStore, names: Sequence[str], look: Callable[[QueueTable], Iterable[T]]) -> tuple[list[T], dict[str, str]]:
    """Return what a look finds in queues, and by name what is wrong with those that could not be looked at.

    :param names: of the queues; none: all of the store.
    """
    found, failed = list[T](), dict[str, str]()
    for name in names or store.names():
        try:
            found += look(store.open(name, upgrade=False))
        except PoisonError as error:
            failed[name] = str(error)
    return found, failed


def end_with(failed: dict[str, str], *, found: bool, nothing: str) -> None:
    """Say what went wrong. Ends with exit code 2 when something did, and with 1 when nothing was found.

    :param nothing: said when nothing was found; empty: for programs, which see that.
    """
    for text in failed.values():
        say("error", text)
    if failed:
        raise SystemExit(2)
    if not found:
        if nothing:
            say("nothing", nothing)
        raise SystemExit(NO)
