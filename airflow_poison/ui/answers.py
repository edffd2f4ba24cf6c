"""Answers of the server: JSON that no cache keeps, of reads that are shared and limited, and errors as statuses with a text."""

from __future__ import annotations

import json
import logging
from asyncio import Task, create_task, shield
from functools import cache, partial
from typing import TYPE_CHECKING

from anyio import CapacityLimiter, to_thread
from fastapi import HTTPException, Response

from airflow_poison.ui.page_data import NotReadableError, NotThereError, RefusedError, neutral

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

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


async def answer(read: Callable[..., dict[str, object]], *asked: Hashable, **further: Hashable) -> Response:
    """Answer with what a read gives; those who ask for the same at the same time share one read. Raises HTTPException."""
    question = (read, asked, tuple(further.items()))
    reading_it = _going_on.get(question)
    if reading_it is None:
        if len(_going_on) >= MOST_READS:
            log.warning("%d reads of queues are under way or wait: another one is sent away for %d s.", MOST_READS, AGAIN_SECONDS)
            raise busy(_BUSY)
        reading_it = _going_on[question] = create_task(to_thread.run_sync(partial(_written, partial(read, *asked, **further)), limiter=_readers()))
        reading_it.add_done_callback(lambda _: _going_on.pop(question))
    try:
        return answered(await shield(reading_it))  # who goes away does not take the answer from the others
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
    status = error.status if isinstance(error, RefusedError) else NOT_THERE if isinstance(error, NotThereError) else UNREADABLE
    return HTTPException(status, neutral(str(error)), HEADERS)


def busy(text: str) -> HTTPException:
    """Return the answer to one too many."""
    return HTTPException(UNREADABLE, text, {**HEADERS, "Retry-After": str(AGAIN_SECONDS)})


def _written(read: Callable[[], dict[str, object]]) -> bytes:
    """Return what a read gives as JSON, made in the reader's thread, too."""
    return written(read())


@cache
def _readers() -> CapacityLimiter:
    return CapacityLimiter(READERS)
