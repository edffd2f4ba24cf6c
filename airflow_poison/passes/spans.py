"""One transaction over several queues: what a pass does to the other queues that its handler's transaction received from (spec SB-4, SB-9).

The counters of rollbacks are in memory in the product and may be lost with a process. That the queues are disabled is derived from the committed
event of the queue whose pass it was, so a process that dies behind that commit leaves it to the next pass over any of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_poison.passes.history import QUIET_VERSIONS
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.queue_disabling import QueueDisabledDocument
from airflow_poison.rules.service_broker import QUEUES, ROLLBACKS, ServiceBroker, of_queue
from airflow_poison.store.control import Control, QueueState
from airflow_poison.values.errors import QueueHaltedError, QueueNotFoundError, SettingError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from airflow_poison.delivery.stage import Tally
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

_FOLLOWS = "told:spans:"
"""Begins the counters of the control row that say up to which version of another queue its transactions have been looked at."""


def check_spans(store: QueueStore | None, table: QueueTable, spans: Sequence[str], clock: Clock) -> None:
    """Bring the other queues of a transaction up to date.

    Raises SettingError for what cannot be one, QueueNotFoundError, and QueueHaltedError (9617) when one is disabled: nothing can be received.
    """
    if isinstance(spans, str) or table.name in spans or (spans and store is None):
        raise SettingError("spans", spans, f"a list of other queues than {table.name!r} in its store")
    for name in dict.fromkeys(spans):
        assert store is not None, "it was looked at"
        other = store.open(name)
        _begin(other, table)
        follow(store, other, other.snapshot().control, clock)
        control = other.snapshot().control
        if not isinstance(policy_from_dict(control.policy), ServiceBroker):
            raise SettingError("spans", name, "a queue with Service Broker's rules")
        if control.state is not QueueState.ENABLED:
            raise QueueHaltedError(
                f"Error 9617: queue {name!r} is {control.state.value} ({control.reason}), "
                f"and the transaction of queue {table.name!r} receives from it. "
                "Enable it; nothing is received until then."
            )


def rollback_counts(others: Mapping[str, QueueTable]) -> dict[str, int]:
    """Return the counts of rollbacks of the other queues, by the names that the endpoint has for them; those without poison handling have none."""
    rows = {name: other.snapshot().control for name, other in others.items()}
    handled = {name: row for name, row in rows.items() if row.policy.get("poison_message_handling", True)}
    return {of_queue(name): row.endpoint_counters.get(ROLLBACKS, 0) for name, row in handled.items()}


def spread(store: QueueStore | None, others: Mapping[str, QueueTable], tally: Tally, clock: Clock) -> None:
    """Give the other queues their counts, after the commit that settled the transactions, and disable those that it says."""
    for name, other in others.items():

        def change(row: Control, key: str = of_queue(name)) -> Control:
            count = tally.counters_over({key: row.endpoint_counters.get(ROLLBACKS, 0)}).get(key, 0)
            return row.with_counters({ROLLBACKS: count or None})

        reach("pass.spanning.before_counts")
        row = other.alter(change)
        assert store is not None, "the other queues were opened"
        follow(store, other, row, clock)


def follow(store: QueueStore, table: QueueTable, control: Control, clock: Clock) -> bool:
    """Disable a queue where a transaction of another queue's pass has received from it, and has disabled its queues: once for each such event.

    :param control: its row. Returns whether there is such another queue.
    """
    leaders = [counter.removeprefix(_FOLLOWS) for counter in control.counters if counter.startswith(_FOLLOWS)]
    for name in leaders:
        try:
            leader = store.open(name, read_only=True)
        except QueueNotFoundError:
            continue
        version, seen = leader.snapshot().version, control.counters[_FOLLOWS + name]
        events = [] if version <= seen else leader.events(seen, until_version=version, types={EventType.QUEUE_DISABLED})
        halts = [event for event in events if table.name in json.loads(event.details.get(QUEUES, "[]"))]
        if halts or version < seen or version - seen >= QUIET_VERSIONS:
            _note(table, name, (seen, version), halts, clock)
    return bool(leaders)


def _begin(table: QueueTable, leader: QueueTable) -> None:
    counter = _FOLLOWS + leader.name
    if counter not in table.snapshot().control.counters:
        version = leader.snapshot().version
        table.alter(lambda row: row if counter in row.counters else row.with_counters({counter: version}))


def _note(table: QueueTable, leader: str, versions: tuple[int, int], halts: Sequence[Event], clock: Clock) -> None:
    """Disable the queue and note up to where the other one was looked at, in one commit; nothing where another run has done so meanwhile."""
    seen, version = versions
    counter = _FOLLOWS + leader

    def change(row: Control) -> Control:
        if row.counters.get(counter) != seen:
            return row
        after = row.with_counters({counter: version})
        reason = f"a transaction of queue {leader!r} received from it, too, and was rolled back: {halts[0].details.get('error', '')}" if halts else ""
        return after.halted(SubQueue.MAIN, QueueState.DISABLED, reason) if halts else after

    def events(before: Control, after: Control) -> list[Event]:
        if not halts or before is after or before.counters.get(counter) != seen or before.state is QueueState.DISABLED:
            return []
        reasons = {name: value for name, value in halts[0].details.items() if name in {"rollbacks", "error", "system"}}
        database, schema = (str(before.policy.get(name, "")) for name in ("database_name", "schema_name"))
        document = QueueDisabledDocument(queue=table.name, post_time=halts[0].at, database_name=database, schema_name=schema).to_xml()
        facts = {"place": "", "endpoint": table.name, "transaction": leader, "document": document}
        return [Event(EventType.QUEUE_DISABLED, clock.now(), details=facts | reasons)]

    reach("pass.spanning.before_disabling")
    table.alter(change, events)
