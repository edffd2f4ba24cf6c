"""Answers of the server: JSON that no cache keeps, of reads that are shared and limited, and errors as statuses with a text.

Rights: who may read queues and who may act on them, as Airflow's auth manager says, for each connection.
"""

from __future__ import annotations

import json
import logging
from asyncio import Task, create_task, shield
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated
from weakref import WeakValueDictionary

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AssetDetails, ConnectionDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset
from airflow.configuration import conf
from airflow.models.connection import Connection
from anyio import CapacityLimiter, to_thread
from fastapi import HTTPException, Query, Response

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.ui.page_data import NotReadableError, NotThereError, RefusedError, neutral, neutral_text

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod

FORBIDDEN = 403
ASSETS: tuple[ResourceMethod, ...] = ("POST", "PUT")
"""Who may do one of these to assets may act, with the right to edit the connection."""

ConnId = Annotated[str, Query(max_length=250, pattern=r"^[\w.\-]+$", description="A connection of type poison.")]

reads = requires_access_asset("GET")
"""The guard of every route."""


def may_act(user: GetUserDep, conn_id: str) -> bool:
    """Whether a user may change the queues of a connection: asset POST or PUT, and PUT of this connection."""
    manager = get_auth_manager()
    if not any(manager.is_authorized_asset(method=method, details=AssetDetails(), user=user) for method in ASSETS):
        return False
    team = Connection.get_team_name(conn_id) if conf.getboolean("core", "multi_team", fallback=False) else None
    return bool(manager.is_authorized_connection(method="PUT", details=ConnectionDetails(conn_id=conn_id, team_name=team), user=user))


def acts(user: GetUserDep, conn_id: ConnId = QueueHook.default_conn_name) -> None:
    """Guard a route that changes queues. Raises HTTPException."""
    if not may_act(user, conn_id):
        why = f"To act on the queues of connection {conn_id!r}, you need Airflow's rights to create asset events and to edit this connection."
        raise HTTPException(FORBIDDEN, why)


def rights(user: GetUserDep, conn_id: ConnId = QueueHook.default_conn_name) -> dict[str, object]:
    """Return what a user may do with the queues of a connection. Who may act may also see what a queue masks."""
    act = may_act(user, conn_id)
    return {"read": True, "act": act, "unmask": act}


NOT_THERE, UNREADABLE = 404, 503
READERS = 4
"""So many reads of tables go on at the same time. Others wait, and take no thread of the server's."""
MOST_READS = 32
"""So many run or wait; further requests are answered with 503 and a time to try again."""
READERS_OF_ONE, MOST_READS_OF_ONE = 2, 16
"""The same for one user, so that one user cannot keep all readers busy."""
AGAIN_SECONDS = 10
_BUSY = "The API server reads as many queues as it can at this time. The page asks again by itself."
_BUSY_FOR_ONE = "The API server reads as many queues for you as it does for one user at a time. The page asks again by itself."
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Answers are users' data: no cache keeps them, and opened by itself it is neither a page nor a script."""

log = logging.getLogger(__name__)
_going_on: dict[Hashable, tuple[str, Task[bytes]]] = {}
"""The reads that go on or wait, by what is asked, with the user who has asked first."""
_readers_of: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()


async def answer(user: str, read: Callable[..., dict[str, object]], *asked: Hashable, **further: Hashable) -> Response:
    """Answer with the result of a read; equal requests at the same time share one read. Raises HTTPException."""
    question = (read, asked, tuple(further.items()))
    if question not in _going_on:
        mine = sum(who == user for who, _ in _going_on.values())
        if mine >= MOST_READS_OF_ONE or len(_going_on) >= MOST_READS:
            log.warning("%d reads of queues are under way or wait, %d of them for %r: another one is refused.", len(_going_on), mine, user)
            raise busy(_BUSY_FOR_ONE if mine >= MOST_READS_OF_ONE else _BUSY)
        _going_on[question] = user, create_task(_read(user, partial(_written, partial(read, *asked, **further))))
        _going_on[question][1].add_done_callback(lambda _: _going_on.pop(question))
    try:
        return answered(await shield(_going_on[question][1]))  # who goes away does not take the answer from the others
    except (NotThereError, NotReadableError, RefusedError) as error:
        raise refusal(error) from error


def answered(found: bytes) -> Response:
    """Return an answer of JSON."""
    return Response(found, media_type="application/json", headers=HEADERS)


def written(found: object) -> bytes:
    """Return plain values as JSON in which nothing is invisible."""
    return json.dumps(neutral(found), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def refusal(error: NotThereError | NotReadableError | RefusedError) -> HTTPException:
    """Return the status and the text of an error that people may see."""
    if isinstance(error, RefusedError) and error.status == UNREADABLE:
        return busy(neutral_text(f"{error} Ask again in {AGAIN_SECONDS} s."))
    status = error.status if isinstance(error, RefusedError) else NOT_THERE if isinstance(error, NotThereError) else UNREADABLE
    return HTTPException(status, neutral_text(str(error)), HEADERS)


def busy(text: str) -> HTTPException:
    """Return the answer to one too many, and to what would take too long now."""
    return HTTPException(UNREADABLE, text, {**HEADERS, "Retry-After": str(AGAIN_SECONDS)})


async def _read(user: str, written: Callable[[], bytes]) -> bytes:
    """Read as soon as one of the user's readers and one of all is free."""
    own = _readers_of.setdefault(user, CapacityLimiter(READERS_OF_ONE))
    async with own:
        return await to_thread.run_sync(written, limiter=_readers())


def _written(read: Callable[[], dict[str, object]]) -> bytes:
    """Return what a read gives as JSON, made in the reader's thread, too."""
    return written(read())


@cache
def _readers() -> CapacityLimiter:
    return CapacityLimiter(READERS)
