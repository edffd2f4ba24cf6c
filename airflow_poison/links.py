"""Extra links of tasks: to their queue, and to the messages that they have to do with. Airflow makes them when a try of the task has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlencode

import attrs
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


PAGE = "plugin/poison"
"""Relative: the UI resolves it below its own address, which a worker need not know."""
_UNRENDERED = "{{"


@attrs.define()
class QueueLink(BaseOperatorLink):
    """Links to the queue of a task; to all queues of the connection for a task with several.

    :cvar text: the text of the link.
    :cvar what: the part of the queue that the page shows, as in its query.
    """

    text: ClassVar[str] = "Queue"
    what: ClassVar[dict[str, str]] = {}

    @property
    def name(self) -> str:
        """The text of the link."""
        return self.text

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  (Airflow's signature)
        """Return the page's place, relative to the UI's own address."""
        queue, conn_id = getattr(operator, "queue_name", None), getattr(operator, "conn_id", None)
        query = {"conn_id": conn_id} if isinstance(conn_id, str) and _UNRENDERED not in conn_id else {}
        if isinstance(queue, str) and _UNRENDERED not in queue:
            query |= {"queue": queue, **self.what}
        return f"{PAGE}?{urlencode(query)}"


class MessagesLink(QueueLink):
    """Links to the messages in ``main``."""

    text, what = "Messages", {"sub_queue": "main"}


class RetryLink(QueueLink):
    """Links to the messages that wait in ``retry``."""

    text, what = "Messages in retry", {"sub_queue": "retry"}


class PoisonLink(QueueLink):
    """Links to the poison messages."""

    text, what = "Poison messages", {"sub_queue": "poison"}


class EventsLink(QueueLink):
    """Links to what has happened to the queue."""

    text, what = "Events", {"view": "events"}
