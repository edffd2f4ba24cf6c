"""Told: up to where a subscriber has been told, and what it is being told, in two counters of the queue's control row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_poison.core.clock import Clock
    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.queue_table import QueueTable


@dataclass(frozen=True, slots=True)
class Told:
    """The two counters of a subscriber. A killed task leaves ``telling`` behind, and whoever finds it tells the same again.

    :param subscriber: who, the same in every run.
    :param about: stands before the counters' names: what it is told of, where that is not the recorded events.
    """

    table: QueueTable
    subscriber: str
    clock: Clock
    about: str = ""

    def read(self, control: Control) -> tuple[int | None, int | None]:
        """Return ``told`` and ``telling``; None where nothing is noted."""
        return control.counters.get(self._told), control.counters.get(self._telling)

    def write(self, *, told: int | None, telling: int | None) -> None:
        """Note both, in one commit."""
        counters = {self._told: told, self._telling: telling}
        self.table.alter(lambda control: control.with_counters(counters), lambda _before, _after: (), self.clock.now())

    @property
    def _told(self) -> str:
        return f"{self.about}told:{self.subscriber}"

    @property
    def _telling(self) -> str:
        return f"{self.about}telling:{self.subscriber}"
