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
    """Links to the queue of a task; to all queues of the connection for a task with several."""

    what: ClassVar[dict[str, str]] = {}

    @property
    def name(self) -> str:
        """The text of the link."""
        return "Queue"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  (Airflow's signature)
        """Return the page's place, relative to the UI's own address."""
        queue, conn_id = getattr(operator, "queue_name", None), getattr(operator, "conn_id", None)
        query = {"conn_id": conn_id} if isinstance(conn_id, str) and _UNRENDERED not in conn_id else {}
        if isinstance(queue, str) and _UNRENDERED not in queue:
            query |= {"queue": queue, **self.what}
        return f"{PAGE}?{urlencode(query)}"


@attrs.define()
class MessagesLink(QueueLink):
    """Links to the messages in ``main``."""

    what: ClassVar[dict[str, str]] = {"sub_queue": "main"}

    @property
    def name(self) -> str:
        """The text of the link."""
        return "Messages"


@attrs.define()
class RetryLink(QueueLink):
    """Links to the messages that wait in ``retry``."""

    what: ClassVar[dict[str, str]] = {"sub_queue": "retry"}

    @property
    def name(self) -> str:
        """The text of the link."""
        return "Messages in retry"


@attrs.define()
class PoisonLink(QueueLink):
    """Links to the poison messages."""

    what: ClassVar[dict[str, str]] = {"sub_queue": "poison"}

    @property
    def name(self) -> str:
        """The text of the link."""
        return "Poison messages"


@attrs.define()
class EventsLink(QueueLink):
    """Links to what has happened to the queue."""

    what: ClassVar[dict[str, str]] = {"view": "events"}

    @property
    def name(self) -> str:
        """The text of the link."""
        return "Events"
