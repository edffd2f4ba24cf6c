"""The FastAPI app behind the pages: reads for users who may read assets, changes for those who may also edit the connection, nothing else.

Forged requests: what another site lets a signed-in browser send is refused.

Airflow's session is a cookie with ``SameSite=Lax``, and its API takes JSON alone; it has no CSRF token and does not look at where a request comes
from. That leaves pages of the same site (another port, a sister domain). So a request that changes something must come from a page of this server,
or from an origin that ``[api] access_control_allow_origins`` names, or from a client that is no browser and sends its token itself.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.resources import files
from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from anyio import to_thread
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from pydantic import AwareDatetime

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.ui import answers, desk, page_data, posts, shapes
from airflow_poison.ui.answers import HEADERS, ConnId, answer, answered, tag_of, tagged, written
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue

FORBIDDEN, UNSUPPORTED = 403, 415
SCRIPT_SECONDS = 300
"""So long a browser uses the script without asking; then it asks whether that has changed."""
_JSON = "application/json"


def refuse_forged(request: Request) -> None:
    """Guard a route that changes something. Raises HTTPException for requests that another site may have sent, and for other bodies than JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        raise HTTPException(UNSUPPORTED, f"The body must be JSON, sent with Content-Type: {_JSON}.")
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if site == "same-origin" or (origin is not None and origin in conf.getlist("api", "access_control_allow_origins", fallback="")):
        return
    if site is not None or (origin is not None and not _is_own(request, origin)):
        where = origin or site
        raise HTTPException(
            FORBIDDEN,
            f"The request comes from {where!r}, not from a page of this server. To allow that site, name it in [api] access_control_allow_origins.",
        )
    if origin is None and "authorization" not in request.headers:
        raise HTTPException(FORBIDDEN, "The request does not say where it comes from. Outside of a browser, send the token as Authorization: Bearer.")


def _is_own(request: Request, origin: str) -> bool:
    """Whether an origin is this server's. Where a proxy ends TLS, the server sees another scheme than the browser, so that does not count."""
    own = {request.headers.get("host", ""), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc}
    return urlsplit(origin).netloc in own - {""}


QueueName = Annotated[str, Query(max_length=100, description="The queue's name.")]
Handle = Annotated[str, Query(min_length=1, max_length=200, description="A conversation's handle at this side.")]
LookupId = Annotated[int, Query(ge=0, le=2**63 - 1)]
Limit = Annotated[int, Query(ge=1, le=200)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
Column = Annotated[str, Query(max_length=30)]
PlanId = Annotated[str, Query(min_length=1, max_length=100)]
Selected = Annotated[str, Query(max_length=10_000, description="A selection as JSON.")]


async def _answering(request: Request, user: GetUserDep) -> Callable[..., Awaitable[Response]]:
    return partial(answer, user.get_id(), request.headers.get("if-none-match", ""))


Answer = Annotated[Callable[..., Awaitable[Response]], Depends(_answering)]
"""Answers the user who asks."""


@cache
def app() -> FastAPI:
    """Return the app. It has neither documentation pages nor a schema; every route has a guard, and those that change something have two more."""
    guard = [Depends(answers.reads)]
    served = FastAPI(
        title="Poison queues",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        dependencies=guard,
        lifespan=_serving,
    )
    served.add_exception_handler(RequestValidationError, _refuse_query)
    served.get("/ui/poison.js")(_script)
    for read in (_queues, _queue, _messages, _message, _events, _conversations, _conversation, _groups, _samples, _plans, _plan, _decisions, _rights):
        name = read.__name__.removeprefix("_")
        served.get(f"/api/{name}", responses={200: {"model": shapes.ANSWERS[name]}})(read)
    for change in posts.ROUTES:
        served.post(f"/api/{change.__name__}", dependencies=[Depends(refuse_forged), Depends(answers.acts)])(change)
    return served


async def _refuse_query(request: Request, error: Exception) -> Response:
    """Answer a query that cannot be as a body that cannot be is answered."""
    assert isinstance(error, RequestValidationError), "it is what this is registered for"
    first = error.errors()[0]
    return await http_exception_handler(request, posts.wrong({**first, "loc": first["loc"][1:]}))


@asynccontextmanager
async def _serving(_app: FastAPI) -> AsyncIterator[None]:
    """Serve; plans that are applied when the server ends stay where they are, each with a whole chunk."""
    yield
    await to_thread.run_sync(desk.end)


async def _script(request: Request) -> Response:
    found = Response(_bundle(), media_type="text/javascript", headers={**HEADERS, "Cache-Control": f"private, max-age={SCRIPT_SECONDS}"})
    return tagged(found, tag_of(_bundle()), request.headers.get("if-none-match", ""))


def _decisions(user: GetUserDep, queue: QueueName | None = None, conn_id: ConnId = QueueHook.default_conn_name) -> Response:
    return answered(written(posts.pending(user, conn_id, queue)))


def _rights(found: Annotated[dict[str, object], Depends(answers.rights)]) -> Response:
    return answered(written(found))


async def _queues(answers: Answer, conn_id: ConnId = QueueHook.default_conn_name) -> Response:
    return await answers(page_data.queues, conn_id)


async def _queue(answers: Answer, queue: QueueName, conn_id: ConnId = QueueHook.default_conn_name) -> Response:
    return await answers(page_data.queue, conn_id, queue)


def _page(limit: Limit = 50, offset: Offset = 0, order: Column = "lookup_id", *, desc: Annotated[bool, Query()] = False) -> desk.Page:
    return desk.Page(offset, limit, order, desc)


async def _messages(  # noqa: PLR0917  (of the query)
    answers: Answer,
    queue: QueueName,
    page: Annotated[desk.Page, Depends(_page)],
    conn_id: ConnId = QueueHook.default_conn_name,
    sub_queue: SubQueue | None = None,
    selection: Selected = "",
) -> Response:
    place = sub_queue or (None if selection else SubQueue.MAIN)
    return await answers(desk.messages, conn_id, queue, place and place.value, selection, page)


def _listed(
    order: Column = "messages",
    search: Annotated[str, Query(max_length=200, description="A part of a group's id, type or text.")] = "",
    limit: Annotated[int, Query(ge=1, le=1_000)] = 1_000,
    since: Annotated[AwareDatetime | None, Query(description="Groups that were first seen then or later are new.")] = None,
    *,
    desc: Annotated[bool, Query()] = True,
) -> desk.Listed:
    return desk.Listed(order, desc, search, limit, since)


async def _groups(
    answers: Answer,
    queue: QueueName,
    listed: Annotated[desk.Listed, Depends(_listed)],
    conn_id: ConnId = QueueHook.default_conn_name,
    selection: Selected = "",
) -> Response:
    return await answers(desk.groups, conn_id, queue, selection, listed)


async def _samples(
    answers: Answer,
    queue: QueueName,
    conn_id: ConnId = QueueHook.default_conn_name,
    selection: Selected = "",
    limit: Annotated[int, Query(ge=1, le=10)] = 10,
) -> Response:
    return await answers(desk.samples, conn_id, queue, selection, limit)


async def _plans(answers: Answer, queue: QueueName, conn_id: ConnId = QueueHook.default_conn_name) -> Response:
    return await answers(desk.plans, conn_id, queue)


async def _plan(answers: Answer, queue: QueueName, plan: PlanId, conn_id: ConnId = QueueHook.default_conn_name) -> Response:
    return await answers(desk.plan, conn_id, queue, plan)


def _unmasks(
    user: GetUserDep,
    queue: QueueName,
    lookup_id: LookupId,
    conn_id: ConnId = QueueHook.default_conn_name,
    *,
    unmask: Annotated[bool, Query()] = False,
) -> bool:
    """Say whether hidden values are shown; who asks for them needs the right, and leaves an entry in the audit log."""
    if unmask:
        answers.acts(user, conn_id)
        posts.note("poison_unmask", user, conn_id, {"queue": queue, "lookup_id": lookup_id})
    return unmask


async def _message(
    answers: Answer, queue: QueueName, lookup_id: LookupId, unmask: Annotated[bool, Depends(_unmasks)], conn_id: ConnId = QueueHook.default_conn_name
) -> Response:
    return await answers(page_data.message, conn_id, queue, lookup_id, unmask=unmask)


async def _events(  # noqa: PLR0917  (of the query)
    answers: Answer,
    queue: QueueName,
    conn_id: ConnId = QueueHook.default_conn_name,
    lookup_id: LookupId | None = None,
    event: Annotated[list[EventType], Query()] = [],  # noqa: B006  (FastAPI copies it)
    limit: Limit = 100,
) -> Response:
    return await answers(page_data.events, conn_id, queue, lookup_id, tuple(event), limit)


async def _conversations(
    answers: Answer, queue: QueueName, conn_id: ConnId = QueueHook.default_conn_name, limit: Limit = 50, *, ended: Annotated[bool, Query()] = False
) -> Response:
    return await answers(page_data.conversations, conn_id, queue, limit, ended=ended)


async def _conversation(
    answers: Answer, queue: QueueName, handle: Handle, conn_id: ConnId = QueueHook.default_conn_name, limit: Limit = 50
) -> Response:
    return await answers(page_data.conversation, conn_id, queue, handle, limit)


@cache
def _bundle() -> bytes:
    """Return the page's script; where it was not built, one that says how to build it."""
    built, unbuilt = (files("airflow_poison.ui") / name for name in ("poison.js", "unbuilt.js"))
    return (built if built.is_file() else unbuilt).read_bytes()
