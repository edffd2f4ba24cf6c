"""Answers of the server: JSON that no cache keeps, with an ETag, of reads that are shared and limited, and errors as statuses with a text.

Large reads look at many messages, so that they take seconds and memory: one at a time for each user, and few of all users. They leave the others
of the server's cores to Airflow.

Rights: who may read queues and who may act on them, as Airflow's auth manager says, for each connection.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import time
from asyncio import Task, create_task, shield
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated
from weakref import WeakValueDictionary

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AssetDetails, ConnectionDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset
from airflow.configuration import conf
from airflow.models.connection import Connection
from anyio import CapacityLimiter, move_on_after, to_thread
from fastapi import HTTPException, Query, Response

from airflow_poison.hooks.poison import QueueHook
from airflow_poison.ui.page_data import NotReadableError, NotThereError, RefusedError, neutral, neutral_text
from airflow_poison.values.libraries import pa

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable, Mapping

    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod

log = logging.getLogger(__name__)

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


NOT_MODIFIED, NOT_THERE, UNREADABLE = 304, 404, 503
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

_going_on: dict[Hashable, tuple[str, Task[tuple[str, bytes]]]] = {}
"""The reads that go on or wait, by what is asked, with the user who has asked first."""
_readers_of: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()


async def answer(user: str, seen: str, read: Callable[..., dict[str, object]], *asked: Hashable, **further: Hashable) -> Response:
    """Answer with the result of a read; equal requests at the same time share one read. Raises HTTPException.

    :param seen: the ETags of what who asks has got before; one that still holds is answered without the result.
    """
    question = (read, asked, tuple(further.items()))
    if question not in _going_on:
        mine = sum(who == user for who, _ in _going_on.values())
        if mine >= MOST_READS_OF_ONE or len(_going_on) >= MOST_READS:
            log.warning("%d reads of queues are under way or wait, %d of them for %r: another one is refused.", len(_going_on), mine, user)
            raise busy(_BUSY_FOR_ONE if mine >= MOST_READS_OF_ONE else _BUSY)
        _going_on[question] = user, create_task(_read(user, partial(_written, partial(read, *asked, **further))))
        _going_on[question][1].add_done_callback(lambda _: _going_on.pop(question))
    try:
        tag, found = await shield(_going_on[question][1])  # who goes away does not take the answer from the others
    except (NotThereError, NotReadableError, RefusedError) as error:
        raise refusal(error) from error
    return tagged(Response(found, media_type="application/json", headers=HEADERS), tag, seen)


def tagged(found: Response, tag: str, seen: str) -> Response:
    """Return an answer with its ETag; where it is among those that were seen, 304 in its place."""
    found.headers["ETag"] = tag
    if tag not in {each.strip().removeprefix("W/") for each in seen.split(",")}:
        return found
    kept = {name: value for name, value in found.headers.items() if name not in {"content-length", "content-type"}}
    return Response(status_code=NOT_MODIFIED, headers=kept)


def tag_of(found: bytes) -> str:
    """Return the ETag of content."""
    return f'"{sha256(found).hexdigest()[:32]}"'


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


async def _read(user: str, written: Callable[[], tuple[str, bytes]]) -> tuple[str, bytes]:
    """Read as soon as one of the user's readers and one of all is free; what is large, when no other large read of the user goes on."""
    own = _readers_of.setdefault(user, CapacityLimiter(READERS_OF_ONE))
    try:
        async with own:
            return await to_thread.run_sync(written, limiter=_readers())
    except LargeReadError as large:
        what = str(large)
    async with alone(user, what):
        return await to_thread.run_sync(written)


def _written(read: Callable[[], dict[str, object]]) -> tuple[str, bytes]:
    """Return what a read gives as JSON, made in the reader's thread, too, and its ETag."""
    found = read()
    return tag_of(written(_timeless(found))), written(found)


def _timeless(found: Mapping[str, object]) -> dict[str, object]:
    """Return what a read gives without the time at which it was read, its own and that of each of the queues."""
    queues = found.get("queues")
    parts = {"queues": [_timeless(each) for each in queues]} if isinstance(queues, list) else {}
    return {name: value for name, value in {**found, **parts}.items() if name != "at"}


@cache
def _readers() -> CapacityLimiter:
    return CapacityLimiter(READERS)


# Large reads ----------------------------------------------------------------------------------------------------------


_CORES = os.cpu_count() or 1
LARGE_READS, THREADS = max(1, _CORES // 4), max(1, min(2, _CORES // 2))
"""So many large reads go on at the same time in each worker of the API server, of different users, and so many threads of a query: half of the cores
are for Airflow."""
WAIT_SECONDS = 10.0
"""So long a large read waits for others; then it is answered with 503 and a time to try again."""
MOST_SAID = 300
_may_be_large: ContextVar[bool] = ContextVar("airflow_poison_may_be_large", default=False)
_large_of: dict[str, tuple[str, float]] = {}
"""What is read for a user, and since when."""
_turns_of: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()


class LargeReadError(Exception):
    """A read is large, and it is not its turn: in words, what it reads."""


def large(what: str) -> None:
    """Go on with a large read. Raises LargeReadError where it has to wait for its turn.

    :param what: it reads, as its user may know it.
    """
    if not _may_be_large.get():
        raise LargeReadError(what)


@asynccontextmanager
async def alone(user: str, what: str) -> AsyncIterator[None]:
    """Let no other large read of a user, and few of others, go on meanwhile. Raises HTTPException when these take too long."""
    turn = _turns_of.setdefault(user, CapacityLimiter(1))
    with move_on_after(WAIT_SECONDS) as waiting:
        async with turn, _large_reads():
            waiting.deadline = float("inf")
            _large_of[user] = what, time.monotonic()
            token = _may_be_large.set(True)
            try:
                yield
            finally:
                _may_be_large.reset(token)
                del _large_of[user]
                await to_thread.run_sync(_give_back_memory)
            return
    raise busy(neutral_text(_busy_with(user)))


def _busy_with(user: str) -> str:
    if user not in _large_of:
        return f"The API server answers large questions of others. Ask again in {AGAIN_SECONDS} s."
    what, since = _large_of[user]
    what = what if len(what) <= MOST_SAID else f"{what[:MOST_SAID]}…"
    return (
        f"The API server answers one large question at a time for each user; yours of {time.monotonic() - since:.0f} s ago still goes on: {what}. "
        f"Ask again in {AGAIN_SECONDS} s."
    )


@cache
def _large_reads() -> CapacityLimiter:

    pa.set_memory_pool(pa.system_memory_pool())  # of what Arrow's own allocators have had, they keep tens of MiB for good
    return CapacityLimiter(LARGE_READS)


def _give_back_memory() -> None:
    """Give memory that nothing uses any more back to the system: the allocator keeps it for the next time, and Airflow's processes share a host."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
