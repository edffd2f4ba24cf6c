"""The mask of a queue: which values of its messages are hidden (``values.masking``), recorded in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.desk.settings import configure
from airflow_poison.values.masking import PART, Masking

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock


def declare_mask(table: QueueTable, clock: Clock, mask: object) -> Masking | None:
    """Record which values of its messages a queue hides, in one commit, where they are others than before; return the mask.

    Whatever is shown or written down from then on has none of them; failures that were recorded before are shown without them.

    :param mask: a path, or a list of paths; an empty one: nothing is hidden any more.
    Raises SettingError for what is no path.
    """
    masking = Masking.read(mask)
    if Masking.recorded(table.snapshot().control.desk) != masking:
        configure(table, clock, **{PART: None if masking is None else list(masking.paths)})
    return masking
