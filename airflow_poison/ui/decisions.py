"""Decisions: Airflow's required actions in which QueueAskOperator asks about a queue, and their answers, with Airflow's own right to give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
from airflow.models.dag import DagModel
from airflow.models.hitl import HITLDetail
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from fastapi import HTTPException
from sqlalchemy import and_, select

from airflow_poison.ui.page_data import NotThereError, RefusedError

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
    from airflow.api_fastapi.core_api.security import GetUserDep
    from sqlalchemy.orm import Session

    from airflow_poison.ui.posts import Answer, Asked

ASKS = "QueueAskOperator"
TASK = ("dag_id", "run_id", "task_id", "map_index")
"""What names a task instance, in the tables of Airflow and in requests."""
WAITS = [TaskInstanceState[name] for name in ("AWAITING_INPUT", "DEFERRED") if name in TaskInstanceState.__members__]
"""The states of a task that waits for people; before Airflow 3.3 it is deferred."""
MOST = 500
"""So many pending ones of all queues are looked at, the newest."""
FORBIDDEN, BAD = 403, 400


def pending(user: GetUserDep, conn_id: str, queue: str | None) -> dict[str, object]:
    """Return what people are asked about a queue, or all queues, as far as the user may see it in Airflow, the newest question first."""
    with create_session(scoped=False) as session:
        asked = [each for each in _pending(session) if _is_about(each, conn_id, queue)]
    return {"conn_id": conn_id, "queue": queue, "decisions": [_plain(each, user) for each in asked if _may(user, "GET", each.dag_id)]}


def answer(asked: Asked[Answer]) -> dict[str, object]:
    """Answer a question as Airflow's page of required actions does. Raises NotThereError, RefusedError, and HTTPException of Airflow's own API."""
    user, given, option = asked.user, asked.fields, asked.fields.option
    with create_session(scoped=False) as session:
        found = next((each for each in _pending(session, given) if _is_about(each, asked.conn_id)), None)
        if found is None or not _may(user, "GET", given.dag_id):
            task = f"Task {given.task_id!r} of DAG {given.dag_id!r}, run {given.run_id!r}"
            raise NotThereError(f"{task}, asks nothing now: it was answered, or its time is over.")
        if not _may(user, "PUT", given.dag_id):
            raise RefusedError(FORBIDDEN, f"To answer, you need Airflow's right to answer required actions of DAG {given.dag_id!r}.")
        if option not in found.options:
            raise RefusedError(BAD, f"option={option!r} is no answer to it; allowed: {', '.join(map(repr, found.options))}.")
        payload = UpdateHITLDetailPayload(chosen_options=[option])
        place: dict[str, Any] = {"dag_id": given.dag_id, "dag_run_id": given.run_id, "task_id": given.task_id, "map_index": given.map_index}
        try:
            update_hitl_detail(**place, update_hitl_detail_payload=payload, user=user, session=session)
        except HTTPException as error:  # another user was faster, or this user may not answer
            raise RefusedError(error.status_code, str(error.detail)) from error
    return {**_task(given), "option": option, "by": user.get_name()}


def _task(of: Any) -> dict[str, Any]:
    """Return what names a task instance, of a row or a request."""
    return {name: getattr(of, name) for name in TASK}


def _pending(session: Session, task: Answer | None = None) -> list[Any]:
    of_task = and_(*(getattr(RenderedTaskInstanceFields, name) == column for name, column in _task(TaskInstance).items()))
    wanted = (
        select(
            *_task(TaskInstance).values(),
            HITLDetail.subject,
            HITLDetail.body,
            HITLDetail.options,
            HITLDetail.assignees,
            HITLDetail.created_at,
            RenderedTaskInstanceFields.rendered_fields,
        )
        .join(TaskInstance, HITLDetail.ti_id == TaskInstance.id)
        .join(RenderedTaskInstanceFields, of_task)
        .where(HITLDetail.responded_at.is_(None), TaskInstance.state.in_(WAITS), TaskInstance.operator == ASKS)
        .order_by(HITLDetail.created_at.desc())
        .limit(MOST)
    )
    if task is not None:
        wanted = wanted.where(*(getattr(TaskInstance, name) == value for name, value in _task(task).items()))
    return list(session.execute(wanted))


def _is_about(asked: Any, conn_id: str, queue: str | None = None) -> bool:
    fields = asked.rendered_fields or {}
    return fields.get("conn_id") == conn_id and (queue is None or fields.get("queue_name") == queue)


def _may(user: GetUserDep, method: ResourceMethod, dag_id: str) -> bool:
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=DagAccessEntity.HITL_DETAIL, details=details, user=user))


def _may_answer(user: GetUserDep, asked: Any) -> bool:
    assigned = {each["id"] for each in asked.assignees or ()}
    among_them = not assigned or get_auth_manager().is_authorized_hitl_task(assigned_users=assigned, user=user)
    return among_them and _may(user, "PUT", asked.dag_id)


def _plain(asked: Any, user: GetUserDep) -> dict[str, object]:
    place = f"dags/{quote(asked.dag_id, '')}/runs/{quote(asked.run_id, '')}/tasks/{quote(asked.task_id, '')}"
    mapped = f"/mapped/{asked.map_index}" if asked.map_index >= 0 else ""
    return {
        **_task(asked),
        "queue": asked.rendered_fields["queue_name"],
        "subject": asked.subject,
        "body": asked.body or "",
        "options": list(asked.options),
        "at": asked.created_at.isoformat(),
        "may_answer": _may_answer(user, asked),
        "url": f"{place}{mapped}/required_actions",
    }
