"""Who acts, and why: what people do to a queue is recorded with both, whichever verb it is."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_poison.values.events import Event

WHO, WHY = "who", "why"
"""The details of an event that say who has caused it, and why."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The actor of a change of a queue.

    :param who: ``airflow:ann``, ``shell:ann@host`` or ``dag:nightly/manual__1/redrive``.
    :param why: the reason they gave; empty: none.
    """

    who: str
    why: str = ""

    @property
    def facts(self) -> dict[str, str]:
        """What events say of it."""
        return {WHO: self.who} | ({WHY: self.why} if self.why else {})


_acting: ContextVar[Actor | None] = ContextVar("airflow_poison_actor", default=None)


@contextmanager
def acting(who: str, why: str = "") -> Iterator[None]:
    """Record the events of this block with who has caused them, and why: set by each door through which people act."""
    token = _acting.set(Actor(who, why))
    try:
        yield
    finally:
        _acting.reset(token)


def shell_user() -> str:
    """Return who acts in a shell or a script: ``shell:<user>@<host>``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return f"shell:{user}@{socket.gethostname()}"


def is_anybody_acting() -> bool:
    """Whether an actor is set."""
    return _acting.get() is not None


def signed_by_actor(events: Sequence[Event]) -> Sequence[Event]:
    """Return events with their actor; unchanged without one."""
    actor = _acting.get()
    return events if actor is None else [replace(event, details={**actor.facts, **event.details}) for event in events]
