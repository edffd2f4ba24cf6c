"""One message at the pages: its body and the one that was sent, and everything that has happened to it, with who did it and where that is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_poison.ui.page_data import NotThereError, opened, shown
from airflow_poison.values.actor import WHO

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_poison.passes.browse import MessageRow
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.events import EventType

MOST_EVENTS = 200
_BY_DAG = "dag:"


def message(conn_id: str, name: str, lookup_id: int, *, unmask: bool) -> dict[str, object]:
    """Return one message with the first 64 KiB of its body, wherever it is. Raises NotThereError, NotReadableError.

    :param unmask: with the values that the queue hides; ``masked`` are the paths of those that are not shown.
    """
    from airflow_poison.passes.browse import look_up, recorded_mask
    from airflow_poison.passes.messages import Chosen

    with opened(conn_id, name) as table:
        mask = None if unmask else recorded_mask(table)
        found = look_up(table, Chosen.ids([lookup_id]), unmask=unmask)
        if not found:
            raise NotThereError(
                f"Message {lookup_id} is not in queue {name!r}: it was settled, moved or removed, or never sent. Its events may say which."
            )
        [row] = found
        return {
            "conn_id": conn_id,
            "queue": name,
            "message": _with_body(row),
            "original": _original(row),
            "masked": [] if mask is None else list(mask.paths),
            "history": _history(table, lookup_id),
        }


def events(conn_id: str, name: str, lookup_id: int | None, types: Collection[EventType], limit: int) -> dict[str, object]:
    """Return the newest events of a queue or of one of its messages, oldest first. Raises NotThereError, NotReadableError."""
    from airflow_poison.passes.history import recorded_events

    with opened(conn_id, name) as table:
        found = recorded_events(table, lookup_ids=None if lookup_id is None else [lookup_id], types=types or None, limit=limit)
        return {"conn_id": conn_id, **found.to_dict()}


def _with_body(row: MessageRow) -> dict[str, object]:
    """Return a message with its body as people read it; XML in another encoding than plain UTF-8 says which."""
    from airflow_poison.passes.browse import MOST_BODY_BYTES

    text = row.shown(MOST_BODY_BYTES)
    return shown(row.to_dict()) | ({"body": text.text, "body_encoding": text.encoding} if text is not None and text.encoding else {})


def _original(row: MessageRow) -> dict[str, object] | None:
    """Return the body that was sent; None where it was not edited."""
    from airflow_poison.desk.actions import original_body

    body = original_body(row.body, row.properties)
    if body is None:
        return None
    sent = _with_body(replace(row, body=body))
    return {name: sent[name] for name in ("body", "body_encoding", "body_bytes", "body_cut")}


def _history(table: QueueTable, lookup_id: int) -> list[dict[str, object]]:
    from airflow_poison.passes.history import plain, recorded_events

    found = recorded_events(table, lookup_ids=[lookup_id], limit=MOST_EVENTS).events
    return [_with_links(plain(event)) for event in found]


def _with_links(event: dict[str, Any]) -> dict[str, object]:
    links = links_of(str(event["details"].get(WHO, "")))
    return event | {"type": event["event"], "links": links}


def links_of(who: str) -> dict[str, str | None]:
    """Return where Airflow's UI shows the run and the log of the task that has acted, relative to its own address."""
    dag_id, first, rest = who.removeprefix(_BY_DAG).partition("/")
    run_id, second, task_id = rest.rpartition("/")
    if not (who.startswith(_BY_DAG) and first and second):
        return {"dag_run": None, "task_log": None}
    run = f"dags/{quote(dag_id, '')}/runs/{quote(run_id, '')}"
    return {"dag_run": run, "task_log": f"{run}/tasks/{quote(task_id, '')}"}
