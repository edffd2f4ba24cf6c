"""Alerts about decisions: that one is wanted, and that nobody has made it in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.passes.alerts import Alert, AlertKind

if TYPE_CHECKING:
    from airflow_poison.core.passes.halts import HaltedEndpoint


def alert_about(halt: HaltedEndpoint, event: str, reason: str, what_to_do: str, *, key: str) -> Alert:
    """Return an alert about a halted queue.

    :param event: what it tells.
    """
    return Alert(
        key=key,
        kind=AlertKind.QUEUE_DISABLED,
        queue=halt.queue,
        event=event,
        lookup_ids=() if halt.lookup_id is None else (halt.lookup_id,),
        count=0 if halt.lookup_id is None else 1,
        reason=reason,
        what_to_do=what_to_do,
        details={"endpoint": halt.name, "state": halt.state.value, "reason": halt.reason},
    )
