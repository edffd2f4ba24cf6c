"""The world of an episode: its clock, its queues and their rules, and what messages do to their handler."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.outage import Outage
from airflow_poison.rules.service_broker import ServiceBroker
from tests.faults.talks import TALKERS

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from airflow_poison.rules.policy import Policy

SPEED = 60.0
"""Seconds of the queues' clock in a second: a lease is over, and a retry cycle, in less than a second."""
LEASE = timedelta(seconds=45)
DELAY = timedelta(seconds=20)
TRANSFORMED, WITH_OUTAGES = "frames", "weather"
"""The queue that a transformation receives, and the one whose passes tell outages from poison."""
OUTAGE = Outage(at_least=4, probe=2, every=timedelta(seconds=5))
LONGEST_STOP, LONGEST_STOP_IN_A_BUCKET = 4.0, 12.0
"""Seconds of the world's clock that a stopped process stands still: in a bucket, another one needs longer to take its claim over."""
RETENTION, RETENTION_IN_A_BUCKET = timedelta(seconds=2 * LONGEST_STOP), timedelta(seconds=2 * LONGEST_STOP_IN_A_BUCKET)
"""How long maintainers keep what is not needed now, on the world's clock: longer than any process stands still."""


class Strangers(StrEnum):
    """What writers that are not ours do to the tables of an episode."""

    NONE = "none"
    TAKE_MESSAGES = "take messages"  # undone by a repair
    CHANGE_PROPERTIES = "change properties"  # undone, or accepted


@dataclass(frozen=True, slots=True)
class FastClock:
    """A clock that all processes of an episode share.

    :param origin: monotonic seconds at which it began.
    """

    origin: float

    def now(self) -> datetime:
        return datetime(2013, 1, 1, tzinfo=UTC) + timedelta(seconds=(time.monotonic() - self.origin) * SPEED)


@dataclass(frozen=True, slots=True)
class Rules:
    """A queue's policy, and what the checker may expect of it.

    :param ordered: messages are received in the order of their lookup ids.
    :param tells: every delivery is in the events, those of dead passes too.
    """

    policy: Policy
    ordered: bool = False
    tells: bool = True


def queues() -> Mapping[str, Rules]:
    """Return the queues of an episode by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several settings are risky on purpose
        return {
            "move": Rules(_msmq4("Move", retries=2, cycles=1)),
            "reject": Rules(_msmq4("Reject", retries=1, cycles=1)),
            "fault": Rules(_msmq4("Fault", retries=1, cycles=0), ordered=True),
            "broker": Rules(ServiceBroker(), ordered=True, tells=False),
            "activation": Rules(
                ActivationSpecification(
                    failure_delivery_count=4, backout_threshold=2, backout_requeue_queue="activation.backout", max_server_sessions=1
                ),
                ordered=True,
                tells=False,
            ),
            "engine": Rules(DefaultMessaging(max_failed_deliveries=2, persist_redelivery_count=True)),
            TRANSFORMED: Rules(_msmq4("Move", retries=1, cycles=1)),
            WITH_OUTAGES: Rules(_msmq4("Move", retries=2, cycles=1)),
            **dict.fromkeys(TALKERS, Rules(ServiceBroker(rollback_limit=3), tells=False)),
        }


def _msmq4(handling: str, *, retries: int, cycles: int) -> Msmq4:
    return Msmq4(receive_retry_count=retries, max_retry_cycles=cycles, retry_cycle_delay=DELAY, receive_error_handling=handling)


_BODIES = {b"ok": 70, b"bad": 8, b"flaky 1": 8, b"flaky 2": 3, b"die": 3, b"killer": 1, b"unprocessable": 2, b"postpone": 5}

_MORE_FOR = {"reject": {b"unprocessable": 12}}
"""What is sent to a queue more often: what is rejected at once fills the dead-letter queue while there are faults, and people send it back."""
_NOT_FOR = {"move": set[bytes](), "broker": {b"postpone", b"killer"}, TRANSFORMED: {b"postpone", b"killer"}}
"""What is not sent to a queue: Service Broker's counter dies with its host, so a message that always ends its host never disables the queue; and the
Python of a transformation takes seconds to begin again."""


def bodies(chance: random.Random, queue: str) -> list[bytes]:
    """Return what a sender sends: each body says what its handler does."""
    weights = _BODIES | _MORE_FOR.get(queue, {})
    found = chance.choices([*weights], [*weights.values()], k=chance.randint(1, 14))
    left_out = _NOT_FOR.get(queue, {b"postpone"})
    return [b"ok" if body in left_out else body for body in found]


def calm(folder: str) -> Path:
    """Return the file from whose coming on the system stays that handlers of the queue with outages need."""
    return Path(folder, "calm")


def is_away(folder: str, now: datetime) -> bool:
    """Whether that system is away: three seconds of eight, so it goes and comes within passes."""
    return now.timestamp() % 8 < 3 and not calm(folder).exists()


def output_of(folder: str, queue: str) -> str:
    """Return where the rows land that the handlers of a queue return: each settled message's lookup id."""
    return str(Path(folder, "outputs", queue))
