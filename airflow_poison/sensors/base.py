"""QueueSensor: what the sensors of queues have in common."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowSkipException

from airflow_poison.core.errors import SettingError, recalled
from airflow_poison.core.policies.settings import choice
from airflow_poison.hooks.poison import QueueHook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_poison.core.watching.conditions import Condition
    from airflow_poison.core.watching.poller import QueueReader

Match = StrEnum("Match", ["ANY", "ALL"])
"""Of which of several queues the condition must hold."""


class QueueSensor(BaseSensorOperator):
    """Wait until a condition holds of a queue, of any of several, or of all of them.

    Deferrable as Airflow's own sensors are: by ``[operators] default_deferrable``, or ``deferrable=True``. Deferred, it is looked after by the
    triggerer, which makes one look at a store for all sensors together. Otherwise a poke reads the table's log, without a JVM; one that finds
    the queue unchanged reads nothing.

    Returns the facts, with ``queue``, as a dict; for ``queue_names`` a list of those of the queues of which the condition holds.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. Either this or ``queue_names``. (templated)
    :param queue_names: several queues. (templated)
    :param match: ``any``: one of the queues is enough; ``all``: it must hold of each at the same time.
    :param deferrable: wait in the triggerer.
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "queue_names", "conn_id")
    ui_color = "#efe3f7"

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        queue_names: Sequence[str] | None = None,
        match: str = "any",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        conn_id: str = QueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (queue_name is None) == (queue_names is None):
            raise SettingError("queue_names", queue_names, "either queue_name or queue_names, and not both")
        self.queue_name = queue_name
        self.queue_names = queue_names
        self.match = choice("match", match, Match)
        self.deferrable = deferrable
        self.conn_id = conn_id
        self._look: QueueReader | None = None

    @property
    @abstractmethod
    def condition(self) -> Condition:
        """What is waited for."""

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once. Raises QueueNotFoundError, StoreUnreachableError, TableChangedError."""
        del context
        from airflow_poison.core.clock import SystemClock
        from airflow_poison.core.watching.poller import QueueReader, Readings, Until

        if self._look is None:
            self._look = QueueReader(QueueHook(self.conn_id).store())
        names = self._names()
        look = Readings(self._look.at(names), SystemClock().now())
        for name in names:
            self.log.info("Queue %r: %s", name, look.ask(name, self.condition).facts)
        met = Until(names, self.condition, self.match is Match.ALL)(look).result
        return PokeReturnValue(is_done=met is not None, xcom_value=None if met is None else self._result(met))

    def execute(self, context: Context) -> Any:
        """Wait; by deferring, when that is wanted and the condition does not hold already.

        Raises AirflowSensorTimeout, and the errors of ``poke``.
        """
        if not self.deferrable:
            return super().execute(context)
        first = self.poke(context)
        return first.xcom_value if first.is_done else self._defer()

    def _defer(self) -> NoReturn:
        from airflow_poison.triggers.queue import QueueTrigger

        trigger = QueueTrigger(
            self._names(),
            self.condition.to_dict(),
            every=self.match is Match.ALL,
            conn_id=self.conn_id,
            poll_interval=self.poke_interval,
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return what the triggerer has found. Raises the error with which a queue could not be looked at."""
        del context
        if "error" in event:
            error = recalled(event["error"], event["message"])
            if self.never_fail:
                raise AirflowSkipException("Skipping due to never_fail is set to True.") from error
            raise error
        return self._result(event["met"])

    def _names(self) -> tuple[str, ...]:
        if self.queue_name is not None:
            return (self.queue_name,)
        if isinstance(self.queue_names, str) or not self.queue_names:
            raise SettingError("queue_names", self.queue_names, "a list of queue names, at least one")
        return tuple(dict.fromkeys(self.queue_names))

    def _result(self, met: Sequence[Mapping[str, object]]) -> Any:
        found = [dict(facts) for facts in met]
        return found[0] if self.queue_name is not None else found
