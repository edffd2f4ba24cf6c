"""QueueMoveOperator: put messages into another sub-queue or into another queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_poison.core.errors import MessageNotFoundError, SettingError
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.lineage import Lineage, WithLineage, queue_uri
from airflow_poison.links.queue import EventsLink, QueueLink
from airflow_poison.operators.identity import with_own_key
from airflow_poison.operators.lookup_ids import lookup_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

QUEUE = "queue"


class QueueMoveOperator(WithLineage, BaseOperator):
    """Move messages to ``main``, to ``poison`` or to another queue, all or none. Starts no JVM.

    Without ``lookup_ids``, ``target="main"`` moves all that are in poison and that no pass has claimed. ``target="queue"`` without ``to_queue``
    sends each message to the queue that it came from, so dead letters go back. Returns ``{"queue", "moved", "to"}``: how many messages, by where
    they are now. Running the task again moves those that are there again; those that an earlier try has moved are no error.

    :param queue_name: the queue's name (``queue`` is the executor's); it must exist. (templated)
    :param lookup_ids: which messages, numbers or text of them. (templated)
    :param target: ``main``: for another cycle; ``poison``: out of the way; ``queue``: into another queue. (templated)
    :param to_queue: with ``target="queue"``: the queue, which must exist. (templated)
    :param conn_id: connection of type ``poison``. (templated)
    """

    template_fields: Sequence[str] = ("queue_name", "lookup_ids", "target", "to_queue", "conn_id")
    ui_color = "#fdf3d8"
    operator_extra_links = (QueueLink(), EventsLink())

    def __init__(
        self,
        *,
        queue_name: str,
        lookup_ids: Sequence[int] | int | str | None = None,
        target: str = "main",
        to_queue: str | None = None,
        conn_id: str = QueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.lookup_ids = lookup_ids
        self.target = target
        self.to_queue = to_queue
        self.conn_id = conn_id
        self.lineage = Lineage()

    def execute(self, context: Context) -> dict[str, object]:
        """Move them. Raises SettingError, QueueNotFoundError, InputError, MessageNotFoundError, MessageClaimedError; then nothing was moved."""
        to = self._move(context)
        moved = sum(to.values())
        if self.target == QUEUE:
            self.lineage.reads(self, queue_uri(self.conn_id, self.queue_name))
            self.lineage.writes(self, *(queue_uri(self.conn_id, name) for name in to))
        self.log.info("Moved %s messages of %r: %s", f"{moved:,}", self.queue_name, to)
        return {"queue": self.queue_name, "moved": moved, "to": to}

    def _move(self, context: Context) -> dict[str, int]:
        hook = QueueHook(self.conn_id)
        if self.to_queue is not None and self.target != QUEUE:
            raise SettingError("to_queue", self.to_queue, f"nothing unless target={QUEUE!r} (target={self.target!r})")
        if self.lookup_ids is None:
            if self.target != "main":
                raise SettingError("lookup_ids", self.lookup_ids, f"the messages that go to {self.target!r}")
            return {"main": hook.put_back(self.queue_name)}
        numbers = lookup_ids(self.lookup_ids)

        def move(run: str) -> dict[str, int]:
            if self.target == QUEUE:
                return dict(hook.send_to(self.queue_name, numbers, self.to_queue, run=run).to)
            return {self.target: hook.move(self.queue_name, numbers, self.target, run=run)}

        return with_own_key(move, context, hook, self.queue_name, self.target, refused=MessageNotFoundError)
