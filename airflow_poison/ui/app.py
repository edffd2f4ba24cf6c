"""The FastAPI app behind the pages: it answers GET requests of users who may read assets, and serves nothing else."""

import json
import logging
from asyncio import Task, create_task, shield
from collections.abc import Callable, Hashable
from functools import cache, partial
from importlib.resources import files
from typing import Annotated

from airflow.api_fastapi.core_api.security import requires_access_asset
from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI, HTTPException, Query, Response

from airflow_poison.core.events import EventType
from airflow_poison.core.schema import SubQueue
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.ui import page_data
from airflow_poison.ui.page_data import NotReadableError, NotThereError, neutral

NOT_THERE, UNREADABLE = 404, 503
READERS = 4
"""So many reads of tables go on at the same time. Others wait, and take no thread of the server's."""
MOST_READS = 32
"""So many go on or wait; who asks for yet another one is told to come again."""
AGAIN_SECONDS = 10
_BUSY = "The API server reads as many queues as it can at this time. The page asks again by itself."
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""What is answered is somebody's data: no cache keeps it, and opened by itself it is neither a page nor a script."""

log = logging.getLogger(__name__)
_going_on: dict[Hashable, Task[bytes]] = {}
"""The reads that go on or wait, by what is asked."""

ConnId = Annotated[str, Query(max_length=250, pattern=r"^[\w.\-]+$", description="A connection of type poison.")]
QueueName = Annotated[str, Query(max_length=100, description="The queue's name.")]
Handle = Annotated[str, Query(min_length=1, max_length=200, description="A conversation's handle at this side.")]
LookupId = Annotated[int, Query(ge=0, le=2**63 - 1)]
Limit = Annotated[int, Query(ge=1, le=200)]


@cache
def app() -> FastAPI:
    """Return the app. It has neither documentation pages nor a schema, and every route has the same guard."""
    guard = Depends(requires_access_asset("GET"))
    served = FastAPI(title="Poison queues", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, dependencies=[guard])
    served.get("/ui/poison.js")(_script)
    for answer in (_queues, _queue, _messages, _message, _events, _conversations, _conversation):
        served.get(f"/api/{answer.__name__.removeprefix('_')}")(answer)
    return served


async def _script() -> Response:
    return Response(_bundle(), media_type="text/javascript", headers={**HEADERS, "Cache-Control": "no-cache"})


async def _queues(conn_id: ConnId = QueueHook.default_conn_name) -> Response:
    return await _answer(page_data.queues, conn_id)


async def _queue(queue: QueueName, conn_id: ConnId = QueueHook.default_conn_name) -> Response:
    return await _answer(page_data.queue, conn_id, queue)


async def _messages(
    queue: QueueName, conn_id: ConnId = QueueHook.default_conn_name, sub_queue: SubQueue = SubQueue.MAIN, limit: Limit = 50
) -> Response:
    return await _answer(page_data.messages, conn_id, queue, sub_queue, limit)


async def _message(queue: QueueName, lookup_id: LookupId, conn_id: ConnId = QueueHook.default_conn_name) -> Response:
    return await _answer(page_data.message, conn_id, queue, lookup_id)


async def _events(
    queue: QueueName,
    conn_id: ConnId = QueueHook.default_conn_name,
    lookup_id: LookupId | None = None,
    event: Annotated[list[EventType], Query()] = [],  # noqa: B006  (FastAPI copies it)
    limit: Limit = 100,
) -> Response:
    return await _answer(page_data.events, conn_id, queue, lookup_id, tuple(event), limit)


async def _conversations(
    queue: QueueName, conn_id: ConnId = QueueHook.default_conn_name, limit: Limit = 50, *, ended: Annotated[bool, Query()] = False
) -> Response:
    return await _answer(page_data.conversations, conn_id, queue, limit, ended=ended)


async def _conversation(queue: QueueName, handle: Handle, conn_id: ConnId = QueueHook.default_conn_name, limit: Limit = 50) -> Response:
    return await _answer(page_data.conversation, conn_id, queue, handle, limit)


async def _answer(read: Callable[..., dict[str, object]], *asked: Hashable, **further: Hashable) -> Response:
    """Answer with what a read gives; those who ask for the same at the same time share one read. Raises HTTPException."""
    question = (read, asked, tuple(further.items()))
    reading_it = _going_on.get(question)
    if reading_it is None:
        if len(_going_on) >= MOST_READS:
            log.warning("%d reads of queues are under way or wait: another one is sent away for %d s.", MOST_READS, AGAIN_SECONDS)
            raise HTTPException(UNREADABLE, _BUSY, {**HEADERS, "Retry-After": str(AGAIN_SECONDS)})
        reading_it = _going_on[question] = create_task(to_thread.run_sync(partial(_written, partial(read, *asked, **further)), limiter=_readers()))
        reading_it.add_done_callback(lambda _: _going_on.pop(question))
    try:
        found = await shield(reading_it)  # who goes away does not take the answer from the others
    except NotThereError as error:
        raise HTTPException(NOT_THERE, neutral(str(error)), HEADERS) from error
    except NotReadableError as error:
        raise HTTPException(UNREADABLE, neutral(str(error)), HEADERS) from error
    return Response(found, media_type="application/json", headers=HEADERS)


def _written(read: Callable[[], dict[str, object]]) -> bytes:
    """Return what a read gives as JSON, made in the reader's thread, too."""
    return json.dumps(neutral(read()), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


@cache
def _readers() -> CapacityLimiter:
    return CapacityLimiter(READERS)


@cache
def _bundle() -> str:
    """Return the page's script; where it was not built, one that says how to build it."""
    built, unbuilt = (files("airflow_poison.ui") / name for name in ("poison.js", "unbuilt.js"))
    return (built if built.is_file() else unbuilt).read_text(encoding="utf-8")
