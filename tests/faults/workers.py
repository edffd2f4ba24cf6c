"""Workers: what the tasks of a DAG do with a queue, one verb each."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_poison.core.checking.claims import worked
from airflow_poison.core.errors import MalformedError
from airflow_poison.core.outputs import outputs_of
from airflow_poison.core.passes.alerts import send_alerts
from airflow_poison.core.passes.alter import declare
from airflow_poison.core.passes.delivering import LocalEngine
from airflow_poison.core.passes.due import return_due
from airflow_poison.core.passes.receive import ReceivePass
from airflow_poison.core.passes.send import send
from airflow_poison.core.passes.take import take
from airflow_poison.core.sources.decoding import Schema
from airflow_poison.core.sources.files import Files
from tests.faults.ledger import note
from tests.faults.world import LEASE, SPEED, bodies, output_of, queues

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.core.passes.alerts import Alert
    from airflow_poison.core.store.files import Claim
    from airflow_poison.core.store.queue_table import QueueTable
    from tests.faults.actor import Actor

HANDLER = "tests.faults.handler:handle"
SUBSCRIBER = "people"


_TAKEN = 0.3
"""The share of senders that put a file down and take what is new, their own and those of others that have died."""


_MALFORMED = b"malformed"
_ONE_IS_MALFORMED = 0.3


class _Refusing(Schema):
    def decode(self, body: bytes) -> bytes:
        if body == _MALFORMED:
            raise MalformedError("it is malformed")
        return body


def sends(actor: Actor) -> None:
    if actor.chance.random() < _TAKEN:
        takes(actor)
    else:
        send_as(actor, actor.task.run_key, actor.task.name)


def takes(actor: Actor) -> None:
    """Put a file of messages down, as a whole and once, and take every file that nobody has taken."""
    queue, name = actor.task.queue, actor.task.name
    folder = Path(actor.place.folder, "landing", queue)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.txt"
    found = bodies(actor.chance, queue) + [_MALFORMED] * (actor.chance.random() < _ONE_IS_MALFORMED)
    if not path.exists():
        note("put_down", queue=queue, ids=[f"{path}:{number}" for number in range(1, len(found) + 1)])
        unfinished = folder / f".{name}-{os.getpid()}"
        unfinished.write_bytes(b"\n".join(found))
        unfinished.rename(path)
    source = Files(f"{folder}/*.txt", format="lines", name="landing", settled=timedelta(0), schema=_Refusing())
    take(actor.table, source, key=actor.task.run_key, clock=actor.clock)
    note("taken", queue=queue, key=name)


def send_as(actor: Actor, key: str, name: str) -> None:
    """Send messages that are called after the sender."""
    found = bodies(actor.chance, actor.task.queue)
    ids = [f"{name}/{number}" for number in range(len(found))]
    batch = pa.record_batch({"body": found, "message_id": ids})
    sent = send(actor.table, [batch], key=key, clock=actor.clock)
    note("sent", queue=actor.task.queue, key=name, first=sent.first_lookup_id, ids=ids)


class Lingering(LocalEngine):
    """Takes its time, and renews its claim as Spark's driver does."""

    def run(self, table: QueueTable, claim: Claim, job: object, *, keep_alive: Callable[[], None]) -> None:
        time.sleep(LEASE.total_seconds() / SPEED / 2)
        keep_alive()
        super().run(table, claim, job, keep_alive=keep_alive)  # type: ignore[arg-type]


def receives(actor: Actor) -> None:
    engine = Lingering if actor.chance.random() < 0.1 else LocalEngine
    ReceivePass(
        actor.table,
        queues()[actor.task.queue].policy,
        HANDLER,
        engine,
        actor.clock,
        max_messages=actor.chance.choice([5, 20, 1_000]),
        isolation=actor.task.isolation,
        lease=actor.place.lease,
        record_all=True,
        store=actor.store,
        outputs=outputs_of(output_of(actor.place.folder, actor.task.queue), schema="id bigint"),
    ).run(actor.task.run_key)
    note("received", queue=actor.task.queue)


def returns(actor: Actor) -> None:
    return_due(actor.table, actor.clock)


def alerts(actor: Actor) -> None:
    def tell(alert: Alert) -> None:
        note("told", queue=alert.queue, key=alert.key, event=alert.event, count=alert.count, ids=alert.lookup_ids)

    send_alerts(actor.table, SUBSCRIBER, tell, actor.clock)


def declares(actor: Actor) -> None:
    declare(actor.store, f"made-{actor.task.name}", queues()[actor.task.queue].policy, actor.clock)


def gives_up(actor: Actor) -> None:
    """Claim a little and release it; a claim that others have taken over in the meantime may have been worked on, and stays."""
    held = actor.table.claim(actor.task.run_key, lease=actor.place.lease, now=actor.clock.now(), max_messages=5, exclusive=actor.task.queue != "move")
    if held is not None and not worked(actor.table.root, held):
        actor.table.release(held)
