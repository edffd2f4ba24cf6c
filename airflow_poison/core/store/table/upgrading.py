"""Upgrade: a table of an earlier format becomes one of this version's, in one commit, when it is opened.

What format 2 brought, and what a reader of format 1 would get wrong:

* messages that wait in ``transmission``: it would neither count them nor give them to ``main`` when the queue is enabled;
* blocks in the control row: it would receive from a blocked queue;
* a last lookup id that is never forgotten: it would begin at 1 again after 30 days without a send;
* every version looked at before the next is made: it would commit on top of what a stranger did;
* joined event files: it would tell them out of order.

What format 3 brought, and what a reader of format 2 would get wrong:

* services in the control row: it would leave them out of the next one that it writes;
* conversation endpoints, and dialog messages that wait for their target queues: it would deliver messages of dialogs whose rules it does not know.

Whoever still runs an earlier version of the package is refused from then on; a pass of it that is under way cannot finish, and its claim is
taken over when it has expired.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_poison.core.store.control import FORMAT_VERSION
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.table import files, rows, sequence
from airflow_poison.core.store.table.layout import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_poison.core.store.log import State
    from airflow_poison.core.store.table.base import Table, View


def upgrade(table: Table) -> None:
    """Bring the table to this version's format; nothing happens when it has it. Raises StoreUnreachableError, TableChangedError."""
    table.change(lambda view: (_plan(table, view), None))


def _plan(table: Table, view: View) -> Commit | None:
    before = view.snapshot.control
    if before.format_version >= FORMAT_VERSION:
        return None
    lasting: dict[str, int] = {}
    for version in range(before.format_version, FORMAT_VERSION):
        lasting |= _STEPS[version](view.state)
    row = files.write_new(table.root, CONTROL, 0, rows.control_to_row(replace(before, format_version=FORMAT_VERSION)))
    return Commit(
        "upgrade",
        add=[row],
        remove=[view.control_row],
        lasting=lasting,
        details={"from": before.format_version, "to": FORMAT_VERSION},
        scratch=[row.path],
    )


def _to_2(state: State) -> Mapping[str, int]:
    """Set the last lookup id anew, for good: format 1 let the log forget it."""
    return {sequence.SEQUENCE: sequence.last_id(state)}


def _to_3(_: State) -> Mapping[str, int]:
    """Set nothing: a table of format 2 has neither services nor conversations, which is what their absence says."""
    return {}


_STEPS: Mapping[int, Callable[[State], Mapping[str, int]]] = {1: _to_2, 2: _to_3}
"""What brings a table of a format to the next one: the numbers that it sets."""
