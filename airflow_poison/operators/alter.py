"""QueueAlterOperator: change what a queue does at run time."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, assert_never

from airflow.sdk import BaseOperator

from airflow_poison.core.errors import SettingError
from airflow_poison.hooks.poison import QueueHook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_poison.core.passes.alter import AlterResult, DisableResult, EnableResult
    from airflow_poison.core.passes.restart import RestartResult


class Action(StrEnum):
    """What can be done to a queue."""

    ENABLE = "enable"
    DISABLE = "disable"
    ALTER = "alter"
    RESTART_ENDPOINT = "restart_endpoint"
    RESTART_SERVER = "restart_server"
    RESTART_BROKER = "restart_broker"


class QueueAlterOperator(BaseOperator):
    """Enable or disable a queue, change its settings, or restart what its system restarts. Starts no JVM.

    ``enable`` starts a disabled, stopped or faulted endpoint, and lets in what was sent while it was disabled. ``disable`` sets it to OFF: no pass
    begins, a pass that runs finishes what it has claimed. ``alter`` changes settings that are recorded in the queue; a DAG that declares a policy
    records its own again at its next run. A restart takes from the queue what the system loses then: ``restart_endpoint``, ``restart_server`` (the
    application's host), ``restart_broker`` (database engine, messaging engine, queue manager).

    Returns what was done as a dict with ``queue``.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. (templated)
    :param action: ``enable``, ``disable``, ``alter``, ``restart_endpoint``, ``restart_server`` or ``restart_broker``. (templated)
    :param settings: for ``alter``: new values by name, in our words or the manual's; durations in seconds. (templated)
    :param system: for ``alter``: another messaging system, for example ``ServiceBroker``; settings not given are its defaults. (templated)
    :param reason: for ``disable``: why, one line; whoever meets the disabled queue is told. (templated)
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "action", "settings", "system", "reason", "conn_id")
    ui_color = "#efe3f7"

    def __init__(
        self,
        *,
        queue_name: str,
        action: str,
        settings: Mapping[str, object] | None = None,
        system: str | None = None,
        reason: str = "",
        conn_id: str = QueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.action = action
        self.settings = settings
        self.system = system
        self.reason = reason
        self.conn_id = conn_id

    def execute(self, context: Context) -> dict[str, object]:
        """Do it. Raises SettingError, QueueNotFoundError, and MessageClaimedError for a restart while a pass receives."""
        del context
        result = self._act().to_dict()
        self.log.info("Queue %r, %s: %s", self.queue_name, self.action, result)
        return result

    def _act(self) -> EnableResult | DisableResult | AlterResult | RestartResult:
        from airflow_poison.core.policies.settings import choice

        hook, action = QueueHook(self.conn_id), choice("action", self.action, Action)
        if (action is Action.ALTER) != bool(self.settings or self.system):
            raise SettingError(
                "settings", self.settings, f"values by name, or a system, with action='alter', none otherwise (action={action.value!r})"
            )
        match action:
            case Action.ENABLE:
                return hook.enable(self.queue_name)
            case Action.DISABLE:
                return hook.disable(self.queue_name, self.reason)
            case Action.ALTER:
                return hook.alter(self.queue_name, self.settings or {}, self.system)
            case Action.RESTART_ENDPOINT | Action.RESTART_SERVER | Action.RESTART_BROKER:
                return hook.restart(self.queue_name, action.removeprefix("restart_"))
            case _:
                assert_never(action)
