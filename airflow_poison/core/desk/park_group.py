"""Parking of groups (`park_group`): whether messages of a queue wait behind earlier ones of their groups, recorded in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.desk.settings import configure
from airflow_poison.core.errors import SettingError
from airflow_poison.core.parking import SETTING, check_parking
from airflow_poison.core.policies import policy_from_dict

if TYPE_CHECKING:
    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.queue_table import QueueTable


def set_park_group(table: QueueTable, clock: Clock, park_group: bool) -> bool:  # noqa: FBT001  (the setting's value)
    """Let messages of a queue wait behind earlier ones of their groups, or not any more, which is the default; return it. From the next claim on.

    Raises SettingError for a queue whose policy, or whose services, lock groups or keep an order of their own; then nothing has changed.
    """
    if not isinstance(park_group, bool):
        raise SettingError(SETTING, park_group, "True or False")
    snapshot = table.snapshot()
    if park_group:
        check_parking(table.name, policy_from_dict(snapshot.control.policy), converses=snapshot.has_conversations)
    if bool(snapshot.control.desk.get(SETTING)) != park_group:
        configure(table, clock, **{SETTING: True if park_group else None})
    return park_group
