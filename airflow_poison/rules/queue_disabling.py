"""When a Service Broker queue is to be disabled: counters of consecutive rollbacks of receiving transactions (spec SB-4 to SB-11), and what follows.

What follows is the status of the queue, and what a disabled queue refuses (spec SB-11, SB-12, SB-18 to SB-23), and the event's document.

How Service Broker queues are freed of poison messages: what people do, and what the application does itself before the queue is disabled.

People inspect a conversation's message and give it back (spec SB-27 to SB-29, SB-33), end its conversation and enable the queue (spec SB-15,
SB-24 to SB-26, SB-34). An application counts failures, one count a conversation: ``TrackMessage`` of the product documentation (spec SB-58, SB-59).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from airflow_poison.rules import settings
from airflow_poison.rules.decisions import Halt, Return
from airflow_poison.values.errors import InputError, QueueHaltedError, RetentionError
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.texts import xml_codec

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Entry, Receiver


@dataclass(frozen=True, slots=True)
class EndConversation:
    """END CONVERSATION, which removes all messages of the conversation (spec SB-30).

    :param error: the error code that the partner gets, greater than 0; None: the conversation ends without an error.
    """

    error: int | None = None
    description: str = ""


REMOVAL = EndConversation(127, "Unable to process message.")
"""How people remove a poison message, after an inspection (spec SB-26)."""


class RecoveryStep(StrEnum):
    """One step of a recovery."""

    END_CONVERSATION = "end_conversation"  # with an error: removes the poison message
    ENABLE = "enable"  # ALTER QUEUE ... STATUS = ON: removes nothing (spec SB-24)


class RecoveryOrder(StrEnum):
    """Which step comes first (spec SB-34)."""

    END_THEN_ENABLE = "end_then_enable"  # no pass can receive the poison message in between
    ENABLE_THEN_END = "enable_then_end"  # the source's order: an activated reader may be faster

    @property
    def steps(self) -> tuple[RecoveryStep, RecoveryStep]:
        """The two steps in their order."""
        first, second = RecoveryStep.END_CONVERSATION, RecoveryStep.ENABLE
        return (first, second) if self is RecoveryOrder.END_THEN_ENABLE else (second, first)


WAIT = timedelta(seconds=2)
"""How long an inspection that receives waits for a message that the application holds (spec SB-29)."""

NO_MESSAGE = "No message available."
EMPTY = "Empty message."
BINARY = "No validation -- binary message:"

_INSPECTED = Failure(FailureKind.EXCEPTION, text="rolled back by an inspection")


class Inspection(StrEnum):
    """How an inspection reads, and whether its rollback counts (spec SB-33)."""

    EXEMPT = "exempt"  # RECEIVE and ROLLBACK, not counted
    STRICT = "strict"  # RECEIVE and ROLLBACK, counted like any other: five in a row disable the queue
    BROWSE = "browse"  # read without a lock

    @property
    def receives(self) -> bool:
        """Whether it needs a queue that is ON and a message that is not locked; browsing needs neither."""
        return self is not Inspection.BROWSE

    @property
    def wait(self) -> timedelta:
        """How long it waits for a locked message."""
        return WAIT if self.receives else timedelta(0)

    def give_back(self, receiver: Receiver, entry: Entry, now: datetime) -> Return | Halt:
        """Return the message to the queue, whatever was printed (spec SB-28). Not asked when there was none: nothing was received (SB-8).

        :param receiver: an endpoint of the queue; it counts the rollback of a strict inspection.
        """
        if self is not Inspection.STRICT:
            return Return(entry.counts)
        receiver.transaction_aborted(became_poison=False)
        decision = receiver.after_rollback(entry, _INSPECTED, now)
        assert isinstance(decision, Return | Halt), decision
        return decision


class Validation(StrEnum):
    """How the bodies of a message type are validated, as the column ``validation`` says (spec SB-52)."""

    EMPTY = "E"
    NONE = "N"
    XML = "X"


@dataclass(frozen=True, slots=True)
class Printed:
    """What an inspection prints.

    :param text: its line of text.
    :param binary: bytes that it prints after the line as they are; ``str()`` shows them in hexadecimal.
    """

    text: str
    binary: bytes | None = None

    def __str__(self) -> str:
        return self.text if self.binary is None else f"{self.text}\n0x{self.binary.hex().upper()}"


def printed(body: bytes | None, validation: str = "") -> Printed:
    """Return what the inspection of a message prints (spec SB-27).

    :param body: None when no message was available in time.
    :param validation: the column's letter. It is two characters wide there and may end in a blank (spec section 10, Q-9).
    Raises InputError for a letter that is none.
    """
    if body is None:
        return Printed(NO_MESSAGE)
    letter = validation.strip()
    if letter not in set(Validation):
        raise InputError(f"validation {validation!r}: expected one of {', '.join(Validation)}.")
    match Validation(letter):
        case Validation.EMPTY:
            return Printed(EMPTY)
        case Validation.XML:
            return Printed(_xml_text(body))
        case Validation.NONE:
            return Printed(BINARY, body)


def _xml_text(body: bytes) -> str:
    """Return XML as text, in the encoding that it says; what is none of that is shown with escapes."""
    return body.decode(xml_codec(body) or "utf-8", "backslashreplace")


FAILED_TOO_OFTEN = EndConversation(500, "Unable to process message.")


@dataclass(frozen=True, slots=True)
class Tracked:
    """What is left after an outcome.

    :param counts: the failures of each conversation that has any; to be kept in the transaction that commits.
    :param end: how the conversation ends now; None: it goes on.
    """

    counts: Mapping[str, int]
    end: EndConversation | None = None


@dataclass(frozen=True, slots=True)
class FailureTracking:
    """The rule of ``TrackMessage``. Raises SettingError for a value that is not allowed.

    The pattern: begin a transaction, save it, receive; on a failure roll back to the savepoint, track the failure, commit. Nothing rolls back in
    full, so the queue's own counter stays 0, and automatic detection remains what it is meant for: a safeguard against fatal errors.

    :param max_failures: failures of a conversation that are forgiven, 0 to 2147483647; the next one ends it. With the default the
        fourth failure does, as in the documentation's sample (spec section 11, item 10).
    """

    max_failures: int = 3

    def __post_init__(self) -> None:
        settings.put(self, max_failures=settings.whole_number("max_failures", self.max_failures))

    def failed(self, counts: Mapping[str, int], conversation: str) -> Tracked:
        """Count a failure; above ``max_failures`` clear the count and end the conversation with an error."""
        failures = counts.get(conversation, 0) + 1
        if failures > self.max_failures:
            return Tracked(_without(counts, conversation), FAILED_TOO_OFTEN)
        return Tracked({**counts, conversation: failures})

    def succeeded(self, counts: Mapping[str, int], conversation: str) -> Tracked:
        """Clear the count."""
        return Tracked(_without(counts, conversation))

    def partner_ended(self, counts: Mapping[str, int], conversation: str) -> Tracked:
        """Clear the count and end the conversation: an Error or EndDialog message was received."""
        return Tracked(_without(counts, conversation), EndConversation())


def _without(counts: Mapping[str, int], conversation: str) -> Mapping[str, int]:
    return {other: failures for other, failures in counts.items() if other != conversation}


ROLLBACK_LIMIT = 5
"""The rollback that disables a queue; a constant in the product (spec SB-4)."""


class Scope(StrEnum):
    """What has a counter (spec section 11, item 1)."""

    QUEUE = "queue"
    CONVERSATION_GROUP = "conversation_group"  # each group of each queue


class Disables(StrEnum):
    """Which queues a transaction that received from several of them disables (spec section 11, item 2)."""

    ALL_RECEIVED = "all_received"  # also those whose own counter is lower
    AT_LIMIT = "at_limit"


@dataclass(frozen=True, slots=True)
class ReceivedGroup:
    """One conversation group that a transaction received messages from; one message or many, it makes no difference.

    :param poison_message_handling: whether the queue is counted and can be disabled at all (spec SB-11).
    """

    queue: str
    group: str = ""
    poison_message_handling: bool = True


Counter = tuple[str, str]
"""The queue, and with scope ``conversation_group`` its group."""


@dataclass(slots=True)
class RollbackCounters:
    """The counters of one or several queues.

    :param limit: the rollback in a row that disables, at least 1.
    :param counts: those that are not zero.
    :param disabled: the queues that these counters have disabled. They are counted on and disabled no more (spec section 11.1).
    """

    limit: int = ROLLBACK_LIMIT
    scope: Scope = Scope.QUEUE
    disables: Disables = Disables.ALL_RECEIVED
    counts: dict[Counter, int] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)

    def rolled_back(self, received: Iterable[ReceivedGroup]) -> tuple[str, ...]:
        """Count the full rollback of one transaction; return the queues that it disables, each one once (spec SB-7, SB-9).

        :param received: what the transaction received. A RECEIVE without a row, or that failed, received nothing (spec SB-8).
        """
        counted = list(dict.fromkeys(self.counter(one) for one in received if one.poison_message_handling))
        for counter in counted:
            self.counts[counter] = self.counts.get(counter, 0) + 1
        at_limit = [counter for counter in counted if self.counts[counter] >= self.limit and counter[0] not in self.disabled]
        victims = counted if at_limit and self.disables is Disables.ALL_RECEIVED else at_limit
        queues = tuple(dict.fromkeys(queue for queue, _ in victims if queue not in self.disabled))
        self.disabled.update(queues)
        return queues

    def committed(self, received: Iterable[ReceivedGroup]) -> None:
        """Begin anew with what a transaction received that has committed, also after a rollback to a savepoint (spec SB-7, SB-8)."""
        for one in received:
            self.counts.pop(self.counter(one), None)

    def enabled(self, queue: str) -> None:
        """Begin anew with a queue that is set to ON, also when it is ON already (spec SB-7, section 11.1)."""
        self.disabled.discard(queue)
        self.not_handled(queue)

    def not_handled(self, queue: str) -> None:
        """Forget the counters of a queue whose poison handling is switched off (spec SB-7)."""
        for counter in [counter for counter in self.counts if counter[0] == queue]:
            del self.counts[counter]

    def count(self, one: ReceivedGroup) -> int:
        """Return how many rollbacks in a row there were."""
        return self.counts.get(self.counter(one), 0)

    def counter(self, one: ReceivedGroup) -> Counter:
        """Return which counter counts it."""
        return one.queue, one.group if self.scope is Scope.CONVERSATION_GROUP else ""


class Statement(StrEnum):
    """What can be done with a queue, as far as its status matters."""

    RECEIVE = "RECEIVE"
    GET_CONVERSATION_GROUP = "GET CONVERSATION GROUP"
    SEND = "SEND"  # on a conversation whose own queue this is
    END_CONVERSATION = "END CONVERSATION"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """The columns of ``sys.service_queues`` about a queue's status.

    :param is_receive_enabled: messages can be received.
    :param is_enqueue_enabled: messages can be added. While they cannot, arriving ones wait at their senders, which get no error
        (spec SB-19); so do the messages of timers and lifetimes, which keep running (spec SB-22).
    :param is_activation_enabled: readers are started for it.
    :param is_poison_message_handling_enabled: consecutive rollbacks disable it.
    :param is_retention_enabled: it keeps messages until their conversation ends.
    """

    is_receive_enabled: bool = True
    is_enqueue_enabled: bool = True
    is_activation_enabled: bool = False
    is_poison_message_handling_enabled: bool = True
    is_retention_enabled: bool = False

    def switched(self, *, on: bool) -> QueueStatus:
        """Return the status after STATUS = ON or OFF; activation and poison handling keep theirs (spec SB-12)."""
        return replace(self, is_receive_enabled=on, is_enqueue_enabled=on)

    def error(self, statement: Statement) -> int | None:
        """Return the number of the error with which a statement fails; None when it works (spec SB-18, SB-20, SB-21)."""
        if self.is_receive_enabled:
            return None
        match statement:
            case Statement.RECEIVE | Statement.GET_CONVERSATION_GROUP:
                return QueueHaltedError.number
            case Statement.SEND:
                return RetentionError.number if self.is_retention_enabled else None
            case Statement.END_CONVERSATION:
                return None


TRACE_EVENT = "Broker:Queue Disabled"
TRACE_EVENT_CLASS = 143
EVENT_TYPE = "BROKER_QUEUE_DISABLED"
"""The type of its event notification."""
MESSAGE_TYPE = "http://schemas.microsoft.com/SQL/Notifications/EventNotification"
CONTRACT = "http://schemas.microsoft.com/SQL/Notifications/PostEventNotification"

_ROOT = "EVENT_INSTANCE"
_OBJECT_TYPE = "QUEUE"
_NAMES = {
    "ServerName": "server_name",
    "LoginName": "login_name",
    "UserName": "user_name",
    "DatabaseName": "database_name",
    "SchemaName": "schema_name",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDisabledDocument:
    """The document of the event ``Broker:Queue Disabled`` (spec SB-16, SB-17).

    UNVERIFIED: no sample with values was found in public sources. Its shape is modelled on ``QUEUE_ACTIVATION`` (spec section 11,
    item 5); the names of the event, the message type and the contract are documented ones. A queue table has neither a server nor a
    login nor a session number: these are empty, or 0.

    :param queue: the queue, ``ObjectName``.
    :param post_time: when it was disabled, UTC.
    """

    queue: str
    post_time: datetime
    database_name: str = ""
    schema_name: str = "dbo"
    server_name: str = ""
    login_name: str = ""
    user_name: str = ""
    spid: int = 0

    def to_xml(self) -> str:
        """Return the ``EVENT_INSTANCE`` document."""
        root = ET.Element(_ROOT)
        posted = self.post_time.astimezone(UTC).isoformat(timespec="milliseconds")
        head = {"EventType": EVENT_TYPE, "PostTime": posted, "SPID": str(self.spid)}
        names = {element: getattr(self, name) for element, name in _NAMES.items()}
        for name, text in (head | names | {"ObjectName": self.queue, "ObjectType": _OBJECT_TYPE}).items():
            ET.SubElement(root, name).text = text
        return ET.tostring(root, encoding="unicode", short_empty_elements=False)

    @classmethod
    def from_xml(cls, document: str) -> QueueDisabledDocument:
        """Return what a document says; unknown elements are passed over. Raises InputError for one that is no such event."""
        values = _children(document)
        kind, about = values.get("EventType"), values.get("ObjectType")
        if (kind, about) != (EVENT_TYPE, _OBJECT_TYPE):
            raise InputError(f"the event document is about {kind} of a {about}: expected {EVENT_TYPE} of a {_OBJECT_TYPE}.")
        try:
            posted = datetime.fromisoformat(values["PostTime"])
            return cls(
                queue=values["ObjectName"],
                post_time=posted if posted.tzinfo else posted.replace(tzinfo=UTC),
                spid=int(values.get("SPID") or 0),
                **{name: values.get(element, "") for element, name in _NAMES.items()},
            )
        except (KeyError, ValueError) as error:
            raise InputError(f"the event document lacks a readable PostTime, ObjectName or SPID: {error!r}.") from error


def _children(document: str) -> Mapping[str, str]:
    """Return the children of the root. A document with a DTD is refused: it could grow without bound."""
    if "<!DOCTYPE" in document:
        raise InputError("the event document has a DTD: an event has none.")
    try:
        root = ET.fromstring(document)  # noqa: S314  (without a DTD there are no entities to expand)
    except ET.ParseError as error:
        raise InputError(f"the event document is not well-formed XML: {error}.") from error
    if root.tag != _ROOT:
        raise InputError(f"the event document's root is {root.tag}: expected {_ROOT}.")
    return {child.tag: child.text or "" for child in root}
