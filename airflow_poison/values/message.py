"""A message as handlers see it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from airflow_poison.dialogs.system_messages import DIALOG_TIMER, END_DIALOG, ERROR, ErrorDocument, error_of, is_system
from airflow_poison.values.json_text import natural_values
from airflow_poison.values.schema import DEFAULT_PRIORITY

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_poison.dialogs.transaction import Conversation


class _Columns:
    """The columns of an Arrow batch of one queue as Python lists, each converted when first asked for."""

    __slots__ = ("_batch", "_lists", "jms", "queue")

    def __init__(self, batch: pa.RecordBatch | None, queue: str, lists: dict[str, list[Any]] | None = None, *, jms: bool = False) -> None:
        self._batch = batch
        self.queue = queue
        self.jms = jms
        self._lists: dict[str, list[Any]] = lists if lists is not None else {}

    def get(self, name: str, row: int) -> Any:
        column = self._lists.get(name)
        if column is None:
            assert self._batch is not None
            column = self._lists[name] = self._batch.column(name).to_pylist()
        return column[row]


class Message:
    """One message. What a handler receives; read only.

    Made by the receive pass, one a delivery, as a view of an Arrow batch (columns that are not read are never converted).
    Tests make their own: ``Message(b"body", lookup_id=7, properties={"kind": "order"})``.
    """

    __slots__ = ("_abort_count", "_columns", "_conversation", "_move_count", "_row")

    def __init__(
        self,
        body: bytes = b"",
        *,
        lookup_id: int = 0,
        message_id: str = "",
        priority: int = DEFAULT_PRIORITY,
        group_id: str | None = None,
        conversation_id: str | None = None,
        message_type: str | None = None,
        properties: Mapping[str, str] | None = None,
        enqueued_at: datetime | None = None,
        expires_at: datetime | None = None,
        abort_count: int = 0,
        move_count: int = 0,
        crash_count: int = 0,
        queue: str = "",
        conversation: Conversation | None = None,
    ) -> None:
        if conversation is not None:
            group_id, conversation_id = group_id or conversation.group_id, conversation_id or conversation.handle
        cells = {
            "body": body,
            "lookup_id": lookup_id,
            "message_id": message_id,
            "priority": priority,
            "group_id": group_id,
            "conversation_id": conversation_id,
            "message_type": message_type,
            "properties": list((properties or {}).items()),
            "enqueued_at": enqueued_at,
            "expires_at": expires_at,
            "crash_count": crash_count,
        }
        self._columns = _Columns(None, queue, {name: [value] for name, value in cells.items()})
        self._row = 0
        self._abort_count = abort_count
        self._move_count = move_count
        self._conversation = conversation

    @classmethod
    def view(cls, columns: _Columns, row: int, abort_count: int, move_count: int) -> Message:
        """Return the message of one row, with the counts of this delivery."""
        message = cls.__new__(cls)
        message._columns = columns  # noqa: SLF001  (its own class)
        message._row = row  # noqa: SLF001  (its own class)
        message._abort_count = abort_count  # noqa: SLF001  (its own class)
        message._move_count = move_count  # noqa: SLF001  (its own class)
        return message

    def within(self, conversation: Conversation) -> Message:
        """Return this message as one of a dialog."""
        self._conversation = conversation
        return self

    @staticmethod
    def columns(batch: pa.RecordBatch | None, queue: str = "", *, jms: bool = False) -> _Columns:
        """Return the shared, lazily converted columns that views of this batch of a queue read.

        :param jms: their properties say how often a message was delivered, as a JMS provider does.
        """
        return _Columns(batch, queue, jms=jms)

    @property
    def body(self) -> bytes:
        """The message itself."""
        return self._columns.get("body", self._row) or b""

    @property
    def text(self) -> str:
        """The body as UTF-8 text. Raises UnicodeDecodeError (a rollback like any other) when it is none."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the body parsed as JSON. A number that a float does not keep is a ``Decimal``: ``19.99`` is a float, ``12345678901234567.89`` not.

        Raises ValueError (a rollback like any other) when it is no JSON, and for a name that stands twice in one object.
        """
        return natural_values(self.body)

    @property
    def queue(self) -> str:
        """The name of the queue that it is received from, without a sub-queue; empty for a message that no queue has delivered."""
        return self._columns.queue

    @property
    def lookup_id(self) -> int:
        """The queue's own number of the message."""
        return int(self._columns.get("lookup_id", self._row))

    @property
    def message_id(self) -> str:
        """The sender's identifier."""
        return self._columns.get("message_id", self._row) or ""

    @property
    def priority(self) -> int:
        """Higher is received earlier."""
        return int(self._columns.get("priority", self._row))

    @property
    def group_id(self) -> str | None:
        """The group whose order matters to the sender."""
        return cast("str | None", self._columns.get("group_id", self._row))

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the message belongs to."""
        return cast("str | None", self._columns.get("conversation_id", self._row))

    @property
    def message_type(self) -> str | None:
        """The type that the sender gave."""
        return cast("str | None", self._columns.get("message_type", self._row))

    @property
    def conversation(self) -> Conversation | None:
        """The dialog that it belongs to, as this delivery has it: reply, end it, set its timer. None for a message that is in none."""
        return getattr(self, "_conversation", None)  # not set by ``view``: most messages have none

    @property
    def is_system(self) -> bool:
        """Whether it is one of the broker's own: Error, EndDialog or DialogTimer (spec SB-35)."""
        return self._system_type is not None

    @property
    def is_error(self) -> bool:
        """Whether it says that the dialog has ended with an error (spec SB-38)."""
        return self._system_type == ERROR

    @property
    def is_end_dialog(self) -> bool:
        """Whether it says that the partner has ended the dialog (spec SB-44)."""
        return self._system_type == END_DIALOG

    @property
    def is_timer(self) -> bool:
        """Whether it says that the conversation timer has expired (spec SB-45)."""
        return self._system_type == DIALOG_TIMER

    @property
    def error(self) -> ErrorDocument | None:
        """What an Error message says; None for any other message. What is no Error document has code 0, and says why."""
        if not self.is_error:
            return None

        return error_of(self.body)

    @property
    def _system_type(self) -> str | None:
        return is_system(self.message_type)

    @property
    def properties(self) -> dict[str, str]:
        """Further values by name.

        With a policy of WebSphere ``JMSXDeliveryCount`` is which delivery this is, 1 for the first (spec DMP-4, WMQ-9), and ``JMSRedelivered``
        ``true`` from the second on; what a sender has set under these names is not seen.
        """
        sent = dict(self._columns.get("properties", self._row) or ())
        if not self._columns.jms:
            return sent
        return sent | {"JMSXDeliveryCount": str(self._abort_count + 1), "JMSRedelivered": str(self._abort_count > 0).lower()}

    @property
    def enqueued_at(self) -> datetime | None:
        """When it was sent."""
        return cast("datetime | None", self._columns.get("enqueued_at", self._row))

    @property
    def expires_at(self) -> datetime | None:
        """When its time to live ends."""
        return cast("datetime | None", self._columns.get("expires_at", self._row))

    @property
    def abort_count(self) -> int:
        """Rollbacks since the last move, as this delivery sees them (spec WCF-10)."""
        return self._abort_count

    @property
    def move_count(self) -> int:
        """Moves between main and the sub-queues so far (spec WCF-10)."""
        return self._move_count

    @property
    def crash_count(self) -> int:
        """Deliveries of this message so far that ended its process or timed out."""
        return int(self._columns.get("crash_count", self._row) or 0)

    def __repr__(self) -> str:
        return f"Message(lookup_id={self.lookup_id}, abort_count={self.abort_count}, move_count={self.move_count})"
