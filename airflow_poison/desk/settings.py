"""Settings of a queue's desk, recorded in the queue: masks, rules, retention. Each part has a module of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_poison.values.events import Event, EventType
from airflow_poison.values.masking import PART, SINCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.store.control import Control
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock


def configure(table: QueueTable, clock: Clock, **parts: object) -> Mapping[str, object]:
    """Record parts of a queue's desk, in one commit, and return all; the others stay. Nothing happens when they are so already.

    :param parts: plain JSON values by name, as each part's ``to_dict`` gives them; None takes one out.
    """
    now = clock.now()

    def change(control: Control) -> Control:
        wanted = {name: value for name, value in {**control.desk, **parts}.items() if value is not None}
        if wanted.get(PART) != control.desk.get(PART):
            wanted[SINCE] = now.isoformat()
        return control if wanted == control.desk else replace(control, desk=wanted)

    def told(before: Control, after: Control) -> list[Event]:
        names = sorted(name for name in parts if before.desk.get(name) != after.desk.get(name))
        return [Event(EventType.POLICY_CHANGED, now, details={"desk": ", ".join(names)})] if names else []

    return table.alter(change, told, now).desk
