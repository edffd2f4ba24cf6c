"""The rows of a table that are not messages, its control row and its claims; files as JSON; and the upgrade of a table of an earlier format."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_poison.core.errors import NewerFormatError, TableChangedError
from airflow_poison.core.store.control import FORMAT_VERSION, Control, QueueState
from airflow_poison.core.store.files import Claim, DataFile
from airflow_poison.core.store.log import SEQUENCE, Commit, last_id
from airflow_poison.core.store.table import files
from airflow_poison.core.store.table.files import CLAIM, CONTROL, one_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from airflow_poison.core.store.log import State
    from airflow_poison.core.store.queue_table import Table, View


CONTROL_COLUMNS = ("lookup_id", "message_type", "reason", "body")
CLAIM_COLUMNS = ("lookup_id", "message_id", "message_type", "body")
_INSTANTS = ("min_enqueued_at", "min_due_at", "max_due_at")


def file_to_dict(file: DataFile) -> dict[str, object]:
    """Return a file as plain JSON values."""
    values = asdict(file)
    return values | {name: values[name].isoformat() for name in _INSTANTS if values[name] is not None}


def file_from_dict(values: Mapping[str, object]) -> DataFile:
    """Return the file that ``file_to_dict`` described."""
    instants = {name: datetime.fromisoformat(str(values[name])) for name in _INSTANTS if values[name] is not None}
    return DataFile(**{**values, **instants})  # type: ignore[arg-type]  # the names and types are those of asdict


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Turn what unreadable rows raise into words."""
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError) as error:
        message = (
            f"{what} cannot be read ({type(error).__name__}: {error}): somebody else has written it. Nothing was committed by this verb. "
            "Restore the table to a version before that (RESTORE, or a backup); 'airflow poison check' names the file."
        )
        raise TableChangedError(message) from error


def control_to_row(control: Control) -> pa.Table:
    """Return the one row of the ``_ctl`` partition."""
    poison_reader = {"state": control.poison_state.value, "reason": control.poison_reason}
    parts = {"policy": dict(control.policy), "counters": dict(control.counters), "services": dict(control.services)}
    return one_row(
        CONTROL,
        lookup_id=control.format_version,
        message_type=control.state.value,
        reason=control.reason,
        body=json.dumps(parts | {"poison_reader": poison_reader}).encode(),
    )


def control_from_row(table: pa.Table, name: str) -> Control:
    """Return what ``control_to_row`` wrote. Raises NewerFormatError before anything else is looked at, TableChangedError for anything else."""
    with _readable(f"The control row of queue {name!r}"):
        return _control(table.to_pylist()[0], name)


def _control(row: Mapping[str, Any], name: str) -> Control:
    version: int = row["lookup_id"]
    if version > FORMAT_VERSION:
        message = (
            f"Queue {name!r} has table format {version}; this version of airflow-poison knows formats up to {FORMAT_VERSION}. "
            "Install the version that wrote it, or a newer one, everywhere the queue is used."
        )
        raise NewerFormatError(message)
    body = json.loads(row["body"])
    poison_reader = body.get("poison_reader", {"state": QueueState.ENABLED, "reason": ""})
    return Control(
        policy=body["policy"],
        state=QueueState(row["message_type"]),
        reason=row["reason"],
        counters=body["counters"],
        format_version=version,
        poison_state=QueueState(poison_reader["state"]),
        poison_reason=poison_reader["reason"],
        services=body.get("services", {}),
    )


def claim_to_row(claim: Claim) -> pa.Table:
    """Return one row of the ``_claim`` partition."""
    body = {
        "expires_at": claim.expires_at.isoformat(),
        "exclusive": claim.exclusive,
        "earlier": list(claim.earlier),
        "files": [file_to_dict(file) for file in claim.files],
    }
    return one_row(
        CLAIM,
        lookup_id=claim.epoch,
        message_id=claim.key,
        message_type=claim.attempt,
        due_at=claim.expires_at,
        body=json.dumps(body).encode(),
    )


def claim_from_row(table: pa.Table) -> Claim:
    """Return what ``claim_to_row`` wrote. Raises TableChangedError for anything else."""
    with _readable("A claim"):
        return _claim(table.to_pylist()[0])


def _claim(row: Mapping[str, Any]) -> Claim:
    body = json.loads(row["body"])
    return Claim(
        key=row["message_id"],
        epoch=row["lookup_id"],
        attempt=row["message_type"],
        expires_at=datetime.fromisoformat(body["expires_at"]),
        files=tuple(file_from_dict(values) for values in body["files"]),
        exclusive=body["exclusive"],
        earlier=tuple(body["earlier"]),
    )


# Earlier formats ------------------------------------------------------------------------------------------------------


def upgrade(table: Table) -> None:
    """Bring the table to this version's format in one commit, when it is opened; nothing happens when it has it.

    What format 2 brought, and what a reader of format 1 would get wrong:

    * messages that wait in ``transmission``: it would neither count them nor give them to ``main`` when the queue is enabled;
    * blocks in the control row: it would receive from a blocked queue;
    * a last lookup id that is never forgotten: it would begin at 1 again after 30 days without a send;
    * every version looked at before the next is made: it would commit on top of what a stranger did;
    * joined event files: it would tell them out of order.

    What format 3 brought, and what a reader of format 2 would get wrong:

    * services in the control row: it would leave them out of the next one that it writes;
    * conversation endpoints, and dialog messages that wait for their target queues: it would deliver messages of dialogs without their rules.

    Whoever still runs an earlier version of the package is refused from then on; a pass of it that is under way cannot finish, and its claim is
    taken over when it has expired. Raises StoreUnreachableError, TableChangedError.
    """
    table.change(lambda view: (_plan(table, view), None))


def _plan(table: Table, view: View) -> Commit | None:
    before = view.snapshot.control
    if before.format_version >= FORMAT_VERSION:
        return None
    lasting: dict[str, int] = {}
    for version in range(before.format_version, FORMAT_VERSION):
        lasting |= _STEPS[version](view.state)
    row = files.write_new(table.root, CONTROL, 0, control_to_row(replace(before, format_version=FORMAT_VERSION)))
    return Commit(
        "upgrade",
        add=[row],
        remove=[view.control_row],
        lasting=lasting,
        details={"from": before.format_version, "to": FORMAT_VERSION},
        scratch=[row],
    )


def _to_2(state: State) -> Mapping[str, int]:
    """Set the last lookup id anew, for good: format 1 let the log forget it."""
    return {SEQUENCE: last_id(state)}


def _to_3(_: State) -> Mapping[str, int]:
    """Set nothing: a table of format 2 has neither services nor conversations, which is what their absence says."""
    return {}


_STEPS: Mapping[int, Callable[[State], Mapping[str, int]]] = {1: _to_2, 2: _to_3}
"""What brings a table of a format to the next one: the numbers that it sets."""
