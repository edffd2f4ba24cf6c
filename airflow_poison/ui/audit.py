"""The audit log: what people do at the pages, written to Airflow's own log before it is done, also what is then refused."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from airflow.models import Log
from airflow.sdk.log import redact  # type: ignore[attr-defined]  # it has no public place
from airflow.utils.session import create_session
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.api_fastapi.core_api.security import GetUserDep

log = logging.getLogger(__name__)

MOST_CHARACTERS = 2_000
"""So much is kept of one field."""
NOTED = (
    "queue",
    "plan",
    "reason",
    "selection",
    "version",
    "limit",
    "rate",
    "chunk",
    "canary",
    "dag_id",
    "run_id",
    "task_id",
    "map_index",
    "option",
    "lookup_id",
)
"""The fields of a request that are written as they are. Of an action its verb, target and function: new bodies and properties stay out."""
OF_TASK, MOST_IN_COLUMN = ("dag_id", "run_id", "task_id"), 250
_OF_ACTION = ("verb", "target", "function")


class AuditError(Exception):
    """The entry could not be written, so nothing may be done."""


def note(event: str, user: GetUserDep, conn_id: str, body: Mapping[str, Any]) -> int:
    """Write an entry; return its id. Raises AuditError."""
    action = body.get("action")
    told = {"conn_id": conn_id} | {name: _cut(body[name]) for name in NOTED if name in body}
    if isinstance(action, dict):
        told["action"] = {name: _cut(action[name]) for name in _OF_ACTION if name in action}
    name = user.get_name()
    entry = Log(event, owner=name, owner_display_name=name, extra=json.dumps(redact(told), default=str))
    for of_task in OF_TASK:
        if isinstance(body.get(of_task), str):
            setattr(entry, of_task, body[of_task][:MOST_IN_COLUMN])
    try:
        with create_session(scoped=False) as session:
            session.add(entry)
            session.flush()
            return int(entry.id)
    except SQLAlchemyError as error:
        log.exception("The audit log of Airflow cannot be written: %s by %s", event, name)
        raise AuditError from error


def add_plan(entry_id: int, plan_id: str) -> None:
    """Add to an entry the id of the plan that the request has recorded. Where that fails, the plan itself says who made it."""
    try:
        with create_session(scoped=False) as session:
            entry = session.get(Log, entry_id)
            if entry is not None:
                entry.extra = json.dumps(json.loads(entry.extra or "{}") | {"plan": plan_id})
    except SQLAlchemyError:
        log.exception("The audit log of Airflow cannot be written: plan %s", plan_id)


def _cut(value: object) -> object:
    """Return a value that is not long; a long one as the beginning of its text."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return value if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
