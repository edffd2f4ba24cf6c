"""The rows of a table that are not messages: its control row and its claims; and files as JSON."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_poison.core.errors import NewerFormatError, TableChangedError
from airflow_poison.core.store.control import FORMAT_VERSION, Control, QueueState
from airflow_poison.core.store.files import Claim, DataFile
from airflow_poison.core.store.table.files import one_row
from airflow_poison.core.store.table.layout import CLAIM, CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

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
