"""What an endpoint is told when it opens, and the restarts that lose what it keeps in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Access(StrEnum):
    """Whether an endpoint can send to another queue."""

    GRANTED = "granted"
    MISSING = "missing"  # there is no such queue
    DENIED = "denied"  # some authority is lacking (spec DMP-17, WMQ-22)


@dataclass(frozen=True, slots=True)
class Opening:
    """What an endpoint finds when it opens.

    :param queue: the name of the queue that it receives from.
    :param counters: what an earlier endpoint of this queue left behind, as its ``Receiver.counters()`` gave it.
    :param access: of the queues that the policy sends to, those that it cannot simply send to.
    """

    queue: str = "queue"
    counters: Mapping[str, int] = field(default_factory=dict)
    access: Mapping[str, Access] = field(default_factory=dict)

    def can_send_to(self, queue: str) -> Access:
        """Return whether the endpoint can send to a queue."""
        return self.access.get(queue, Access.GRANTED)


FIRST = Opening()
"""An endpoint of a queue that remembers nothing."""


class Restart(StrEnum):
    """What is started anew, and so loses what it keeps in memory (spec SB-7, M3-4, DMP-19, WMQ-8, ZOS-5). What that is, is the policy's to say."""

    ENDPOINT = "endpoint"  # the listener, activation specification or listener port
    SERVER = "server"  # the application's host: service host, application server
    BROKER = "broker"  # database engine, messaging engine, queue manager
