"""What the tests of endpoints share: policies of the systems that remember, bodies, and calls as the handlers wrote them down."""

from __future__ import annotations

import warnings
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.service_broker import ServiceBroker
from tests.given.messages import batch_of

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

NEVER = 2_147_483_647
"""Failures in a row that no test reaches."""


def specification(sessions: int, failures: int = NEVER, **settings: Any) -> ActivationSpecification:
    """An activation specification that stops after so many failures in a row; the third backout requeues unless told otherwise."""
    given: dict[str, Any] = {"backout_threshold": 3, "transaction_timeout": timedelta(seconds=60)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ActivationSpecification(max_server_sessions=sessions, failure_delivery_count=failures, **given | settings)


def broker(readers: int, **settings: Any) -> ServiceBroker:
    """A Service Broker queue."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ServiceBroker(max_queue_readers=readers, **settings)


def saying(folder: Path, *words: str) -> list[bytes | str | None]:
    """Return bodies for ``endpoint_handlers.recorded``."""
    return [f"{folder} {word}" for word in words]


def in_groups(groups: str, bodies: list[bytes | str | None], first_id: int = 0) -> pa.RecordBatch:
    """Return a batch whose messages belong to conversation groups, a letter each; a blank is a message without one."""
    import pyarrow as pa

    batch = batch_of(bodies, first_id)
    column = pa.array([letter.strip() or None for letter in groups], pa.string())
    place = batch.schema.get_field_index("group_id")
    return batch.set_column(place, batch.schema.field(place), column)


def written(folder: Path, what: str = "call") -> list[int]:
    """Return the lookup ids in the order in which they were delivered (or, with ``done``, succeeded)."""
    path = folder / "calls"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [int(line[1]) for line in lines if line[0] == what]


def processes(folder: Path) -> dict[int, set[int]]:
    """Return the processes that each message was delivered in."""
    found: dict[int, set[int]] = {}
    for line in (folder / "calls").read_text().splitlines():
        what, number, _, pid = line.split()
        if what == "call":
            found.setdefault(int(number), set()).add(int(pid))
    return found


def deliveries(folder: Path, what: str = "call") -> Counter[int]:
    """Return how often each message was delivered (or, with ``done``, succeeded)."""
    return Counter(written(folder, what))
