"""What people do at the pages: each change is a POST of JSON, checked, noted in Airflow's audit log and then carried out.

It is noted before it is done, also what is then refused. Decisions are Airflow's required actions in which QueueAskOperator asks about a queue; to
answer one takes Airflow's own right to do so.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models import Log
from airflow.models.dag import DagModel
from airflow.models.hitl import HITLDetail
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.sdk.log import redact  # type: ignore[attr-defined]  # it has no public place
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from anyio import CapacityLimiter, to_thread
from fastapi import Depends, HTTPException, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from sqlalchemy import and_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.ui import desk, shapes
from airflow_poison.ui.answers import HEADERS, ConnId, alone, answered, busy, refusal, written
from airflow_poison.ui.page_data import NotReadableError, NotThereError, RefusedError, neutral_text
from airflow_poison.values import json_text

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod


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


def note(event: str, user: GetUserDep, conn_id: str, body: Mapping[str, Any]) -> int:
    """Write an entry of the audit log; return its id. Raises HTTPException where that cannot be done."""
    action = body.get("action")
    noted = {"conn_id": conn_id} | {name: _cut(body[name]) for name in NOTED if name in body}
    if isinstance(action, dict):
        noted["action"] = {name: _cut(action[name]) for name in _OF_ACTION if name in action}
    name = user.get_name()
    entry = Log(event, owner=name, owner_display_name=name, extra=json.dumps(redact(noted), default=str))
    for of_task in OF_TASK:
        if isinstance(body.get(of_task), str):
            setattr(entry, of_task, neutral_text(body[of_task])[:MOST_IN_COLUMN])  # databases refuse NUL and halves of surrogate pairs
    try:
        with create_session(scoped=False) as session:
            session.add(entry)
            session.flush()
            return int(entry.id)
    except SQLAlchemyError as error:
        log.exception("The audit log of Airflow cannot be written: %s by %s", event, name)
        text = "Airflow's audit log cannot be written, so nothing was done. The log of the API server says why."
        raise HTTPException(UNREADABLE, text, HEADERS) from error


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


BAD, FORBIDDEN, TOO_LARGE, UNREADABLE = 400, 403, 413, 503
MOST_BYTES = 1024 * 1024
"""So large may the JSON of a request be."""
ACTORS, MOST_ACTS = 2, 16
"""So many requests that change something are carried out at the same time, and so many go on or wait."""
MOST_REASON = 500
_BUSY = "The API server carries out as many changes as it can at this time. Nothing was done; try again."

Fields = TypeVar("Fields", bound=BaseModel)
_acts = 0


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _OfQueue(_Fields):
    queue: Annotated[str, Field(min_length=1, max_length=100)]


class OnQueue(_OfQueue):
    """What every change of a queue says."""

    reason: Annotated[str, Field(max_length=MOST_REASON)] = ""


def _patch(given: object) -> object:
    """Return a patch that is JSON text as values; JavaScript would have lost digits of its numbers."""
    return json_text.values_to_write(given) if isinstance(given, str) else given


class ActionRequest(_Fields):
    """What is to become of messages; see PlanAction. A patch may be JSON text: its numbers keep their digits."""

    verb: Annotated[str, Field(max_length=20)]
    target: Annotated[str, Field(max_length=100)] = ""
    patch: Annotated[dict[str, Any] | None, BeforeValidator(_patch, json_schema_input_type=dict[str, Any] | str | None)] = None
    body: str | None = None
    function: Annotated[str, Field(max_length=200)] = ""
    properties: dict[str, str | None] = {}


class First(_Fields):
    """How many messages are done first, and the share of them that must be settled before the others follow."""

    messages: Annotated[int, Field(ge=1, le=100_000)]
    share: Annotated[float, Field(gt=0, le=1)] = 1.0


class Planned(_OfQueue):
    """A selection of a queue's messages, and what is to become of them."""

    selection: Annotated[dict[str, Any], WithJsonSchema(shapes.Selection.model_json_schema())]
    action: ActionRequest
    limit: Annotated[int, Field(ge=1)] | None = None


class Applied(Planned):
    """A plan that was shown to the user; ``queue_id``, as the plan has it, says of which queue, should one of the same name take its place."""

    version: Annotated[int, Field(ge=0, lt=2**63)]
    queue_id: Annotated[str, Field(max_length=100)] = ""
    reason: Annotated[str, Field(max_length=MOST_REASON)] = ""
    rate: Annotated[int, Field(ge=1)] | None = None
    chunk: Annotated[int, Field(ge=1)] | None = None
    canary: First | None = None


class OfPlan(OnQueue):
    """What is to become of a recorded plan."""

    plan: Annotated[str, Field(min_length=1, max_length=100)]


class Answer(_Fields):
    """The answer to a pending question."""

    dag_id: Annotated[str, Field(min_length=1, max_length=250)]
    run_id: Annotated[str, Field(min_length=1, max_length=250)]
    task_id: Annotated[str, Field(min_length=1, max_length=250)]
    map_index: Annotated[int, Field(ge=-1, lt=2**31)] = -1
    option: Annotated[str, Field(min_length=1, max_length=1_000)]
    reason: Annotated[str, Field(max_length=MOST_REASON)] = ""


REQUESTS: dict[str, type[BaseModel]] = {"plan": Planned, "apply": Applied, "enable": OnQueue, "disable": OnQueue, "decide": Answer}
REQUESTS |= dict.fromkeys(("pause", "resume", "cancel", "undo"), OfPlan)
"""The bodies of requests, by path."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[Fields]):
    """A request that may be carried out.

    :param who: the user, as events name people: ``airflow:<name>``.
    :param entry: of the audit log.
    """

    fields: Fields
    conn_id: str
    user: GetUserDep
    who: str
    entry: int


def _asked(kind: type[Fields]) -> Callable[..., Awaitable[Asked[Fields]]]:
    """Return the dependency that reads a request, notes it and checks its fields; who asks is checked before."""

    async def read(request: Request, user: GetUserDep, conn_id: ConnId = QueueHook.default_conn_name) -> Asked[Fields]:
        body = _object(await _body(request))
        event = f"poison_{request.scope['endpoint'].__name__}"
        entry = await to_thread.run_sync(partial(note, event, user, conn_id, body))
        return Asked(_checked(kind, body), conn_id, user, f"airflow:{user.get_name()}", entry)

    return read


async def _body(request: Request) -> bytes:
    """Return what was sent, as long as it is not too much. Raises HTTPException."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MOST_BYTES:
            raise HTTPException(TOO_LARGE, f"The body is larger than {MOST_BYTES:,} bytes.", HEADERS)
    return bytes(found)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json_text.natural_values(body)
    except json_text.JsonError as error:
        raise HTTPException(BAD, neutral_text(f"The body is no JSON: {error}."), HEADERS) from error
    if not isinstance(found, dict):
        raise HTTPException(BAD, 'The body must be a JSON object, for example {"queue": "orders", "reason": "checked"}.', HEADERS)
    return found


def _checked(kind: type[Fields], body: dict[str, Any]) -> Fields:
    """Return the fields of a request. Raises HTTPException, which names the field, its value and what was expected."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise wrong(error.errors(include_url=False)[0], kind.model_fields) from error


def wrong(error: Mapping[str, Any], fields: Iterable[str] = ()) -> HTTPException:
    """Return the answer to what cannot be: it names the field, its value and what was expected.

    :param error: as Pydantic has it.
    :param fields: those that there are.
    """
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        text = f"{name}: it is missing."
    elif error["type"] == "extra_forbidden":
        text = f"{name}: there is no such field. Fields: {', '.join(fields)}."
    else:
        text = f"{name}={str(error['input'])[:100]!r}: {error['msg']}."
    return HTTPException(BAD, neutral_text(text), HEADERS)


async def _done(act: Callable[[Asked[Any]], dict[str, object]], asked: Asked[Any], *, large: bool) -> Response:
    """Carry a change out in a thread and answer with what it gives. It is not given up when who asked goes away. Raises HTTPException.

    :param large: it looks at many messages first, as large reads do.
    """
    global _acts  # noqa: PLW0603  (of the event loop alone)
    if _acts >= MOST_ACTS:
        raise busy(_BUSY)
    _acts += 1
    try:
        async with alone(asked.user.get_id(), f"a plan for queue {asked.fields.queue!r}") if large else nullcontext():
            return answered(written(await to_thread.run_sync(partial(act, asked), limiter=_actors())))
    except (NotThereError, NotReadableError, RefusedError) as error:
        raise refusal(error) from error
    finally:
        _acts -= 1


@cache
def _actors() -> CapacityLimiter:
    return CapacityLimiter(ACTORS)


def _begun(asked: Asked[Applied]) -> dict[str, object]:
    begun = desk.begin(asked)
    add_plan(asked.entry, str(begun["plan"]))
    return begun


def _route(name: str, act: Callable[[Asked[Any]], dict[str, object]], *, large: bool = False) -> Callable[..., Awaitable[Response]]:
    """Return the route of a change; it has the name of its path."""

    async def change(asked: Annotated[Any, Depends(_asked(REQUESTS[name]))]) -> Response:
        return await _done(act, asked, large=large)

    change.__name__ = name
    return change


ASKS = "QueueAskOperator"
TASK = ("dag_id", "run_id", "task_id", "map_index")
"""What names a task instance, in the tables of Airflow and in requests."""
WAITS = [TaskInstanceState[name] for name in ("AWAITING_INPUT", "DEFERRED") if name in TaskInstanceState.__members__]
"""The states of a task that waits for people; before Airflow 3.3 it is deferred."""
MOST = 500
"""So many pending ones of all queues are looked at, the newest."""


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


def _may(user: GetUserDep, method: "ResourceMethod", dag_id: str) -> bool:
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


ROUTES = (
    _route("plan", desk.dry_run, large=True),
    _route("apply", _begun, large=True),
    _route("pause", desk.pause),
    _route("resume", desk.resume),
    _route("cancel", desk.cancel),
    _route("undo", desk.undo),
    _route("enable", desk.enable),
    _route("disable", desk.disable),
    _route("decide", answer),
)
