"""Workers: what the tasks of a DAG do with a queue, one verb each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_poison.fsck.files import worked
from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes.alerts import AlertKind, send_alerts
from airflow_poison.passes.alter import declare
from airflow_poison.passes.due import return_due
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.values.schema import message_schema
from tests.faults.exact import digest_of_given
from tests.faults.ledger import note
from tests.faults.records import exactly, hard_body, hard_properties, largest
from tests.faults.takers import takes
from tests.faults.transforming import TRANSFORMATION, engine
from tests.faults.world import LEASE, OUTAGE, SPEED, TRANSFORMED, WITH_OUTAGES, bodies, output_of, queues

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.passes.alerts import Alert
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from tests.faults.actor import Actor

HANDLER = "tests.faults.handler:handle"
SUBSCRIBER = "people"


_TAKEN = 0.4
"""The share of senders that put records down somewhere else, and take what is new there, their own and those of others that have died."""


def sends(actor: Actor) -> None:
    if actor.chance.random() < _TAKEN:
        takes(actor)
    else:
        send_as(actor, actor.task.run_key, actor.task.name)


def send_as(actor: Actor, key: str, name: str) -> None:
    """Send messages that are called after the sender; what they have is noted before anything is sent."""
    chance = actor.chance
    found = [hard_body(chance, deed) for deed in bodies(chance, actor.task.queue)] + largest(chance)
    ids = [f"{name}/{number}" for number in range(len(found))]
    properties = [hard_properties(chance) for _ in found]
    wanted = {each: [*exactly(body), digest_of_given(given)] for each, body, given in zip(ids, found, properties, strict=True)}
    note("wrote", queue=actor.task.queue, wanted=wanted)
    kinds = message_schema()
    batch = pa.record_batch({"body": found, "message_id": ids, "properties": pa.array(properties, kinds.field("properties").type)})
    sent = send(actor.table, [batch], key=key, clock=actor.clock)
    note("sent", queue=actor.task.queue, key=name, first=sent.first_lookup_id, ids=ids)


class Lingering(LocalEngine):
    """Takes its time, and renews its claim as Spark's driver does."""

    def run(self, table: QueueTable, claim: Claim, job: object, *, keep_alive: Callable[[], None]) -> None:
        time.sleep(LEASE.total_seconds() / SPEED / 2)
        keep_alive()
        super().run(table, claim, job, keep_alive=keep_alive)  # type: ignore[arg-type]


def receives(actor: Actor) -> None:
    lingering, queue = actor.chance.random() < 0.1, actor.task.queue
    is_transformed = queue == TRANSFORMED
    ReceivePass(
        table=actor.table,
        policy=queues()[queue].policy,
        handler=TRANSFORMATION if is_transformed else HANDLER,
        engine=engine if is_transformed else Lingering if lingering else LocalEngine,
        clock=actor.clock,
        max_messages=actor.chance.choice([5, 20, 1_000]),
        isolation="process" if is_transformed else actor.task.isolation,
        lease=actor.place.lease,
        record_all=True,
        store=actor.store,
        outputs=outputs_of(output_of(actor.place.folder, queue), schema="id bigint, body binary"),
        outage=OUTAGE if queue == WITH_OUTAGES and not actor.task.key.startswith("drain-") else None,
    ).run(actor.task.run_key)
    note("received", queue=actor.task.queue)


def returns(actor: Actor) -> None:
    return_due(actor.table, actor.clock)


def alerts(actor: Actor) -> None:
    def tell(alert: Alert) -> None:
        note("told", queue=alert.queue, key=alert.key, event=alert.event, count=alert.count, ids=alert.lookup_ids)

    send_alerts(actor.table, SUBSCRIBER, {"notes": tell}, actor.clock, kinds=AlertKind)


def declares(actor: Actor) -> None:
    declare(actor.store, f"made-{actor.task.name}", queues()[actor.task.queue].policy, actor.clock)


def gives_up(actor: Actor) -> None:
    """Claim a little and release it; a claim that others have taken over in the meantime may have been worked on, and stays."""
    held = actor.table.claim(actor.task.run_key, lease=actor.place.lease, now=actor.clock.now(), max_messages=5, exclusive=actor.task.queue != "move")
    if held is not None and not worked(actor.table.root, held):
        actor.table.release(held)
