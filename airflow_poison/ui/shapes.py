"""The shapes of what the server answers. OpenAPI is made of them, and from that the types of the page (``make types``); tests hold answers to it."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from airflow_poison.desk.plans import PlannedGroup, Sample, UnfitMessage
from airflow_poison.store.files import PlanState
from airflow_poison.values.schema import SubQueue


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Depth(_Shape):
    """What waits in one sub-queue."""

    messages: int
    claimed: int
    oldest_enqueued_at: str | None
    next_due_at: str | None
    due: int = 0
    by_move_count: dict[str, int] = {}


class Outage(_Shape):
    """What a handler needs is away."""

    since: str
    next_probe_at: str
    fingerprint: str = ""


class Claim(_Shape):
    """Messages that a pass holds."""

    key: str
    sub_queue: str
    messages: int
    expires_at: str
    expired: bool
    given_up: bool = False


class Source(_Shape):
    """How far a source was taken."""

    source: str
    kind: str
    position: str
    at: dict[str, Any] = {}
    taken_at: str
    messages: int
    malformed: int


class QueueNeed(_Shape):
    """What in a queue needs a person."""

    kind: Literal["halted", "outage", "plan", "poison_growing", "poison", "overdue", "expired_claim", "plan_at_work"]
    text: str
    plan: str = ""


class Trend(_Shape):
    """The last hours of a queue, the oldest first."""

    hours: int
    poison: list[int]
    settled: list[int]


class Queue(_Shape):
    """One queue; in the overview with what it needs, on its own page with its conversations."""

    conn_id: str = ""
    queue: str
    version: int = 0
    at: str
    state: str
    reason: str | None
    poison_state: str
    poison_reason: str | None
    halted: bool
    halted_by: int | None
    blocked_until: str | None
    blocked_by: int | None
    obstacle: str
    outage: Outage | None
    poison_outage: Outage | None
    policy: dict[str, Any]
    counters: dict[str, int] = {}
    sub_queues: dict[SubQueue, Depth]
    outbox: int = 0
    unsent: int = 0
    oldest_enqueued_at: str | None
    next_due_at: str | None
    claims: list[Claim]
    expired_claims: int
    sources: list[Source]
    needs: list[QueueNeed] = []
    trend: Trend | None = None
    has_conversations: bool = False
    conversations: int | None = None


class Totals(_Shape):
    """How much there is in all queues together."""

    queues: int
    halted: int
    outages: int
    messages: dict[SubQueue, int]


class Queues(_Shape):
    """All queues of a connection."""

    conn_id: str = ""
    at: str
    exists: bool
    queues: list[Queue]
    unreadable: list[str]
    totals: Totals


class LastError(_Shape):
    """The last failure of a message."""

    kind: str | None = None
    type: str | None = None
    message: str | None = None
    fingerprint: str | None = None
    trace: str | None = None


class MessageRow(_Shape):
    """A message without its body."""

    lookup_id: int
    message_id: str
    sub_queue: SubQueue
    abort_count: int
    move_count: int
    crash_count: int
    priority: int
    group_id: str | None
    conversation_id: str | None
    message_type: str | None
    properties: dict[str, str]
    enqueued_at: str | None
    expires_at: str | None
    due_at: str | None
    last_error: LastError | None
    reason: str | None
    edited: bool = False


class Messages(_Shape):
    """A page of messages."""

    conn_id: str = ""
    queue: str = ""
    sub_queue: SubQueue | None = None
    messages: list[MessageRow]
    total: int
    version: int
    more: int = 0


class Body(_Shape):
    """A body as people read it: ``body_encoding`` is ``text``, ``base64``, or the encoding that XML says."""

    body: str
    body_encoding: str
    body_bytes: int = 0
    body_cut: bool = False


class WholeMessage(MessageRow):
    """A message with the beginning of its body."""

    body: str
    body_encoding: str
    body_bytes: int
    body_cut: bool


class Samples(_Shape):
    """Some messages of a selection."""

    conn_id: str = ""
    queue: str = ""
    version: int = 0
    samples: list[WholeMessage]
    total: int


class Links(_Shape):
    """Where Airflow shows the run and the log of the task that has acted."""

    dag_run: str | None
    task_log: str | None


class QueueEvent(_Shape):
    """Something that has happened."""

    at: str
    event: str
    lookup_id: int | None
    abort_count: int
    move_count: int
    details: dict[str, str]
    links: Links | None = None


class HistoryEvent(_Shape):
    """Something that has happened to a message."""

    at: str
    type: str
    details: dict[str, str]
    links: Links | None = None
    event: str = ""
    lookup_id: int | None = None
    abort_count: int = 0
    move_count: int = 0


class MessageAnswer(_Shape):
    """One message with all that has happened to it; ``masked`` are the paths of what is hidden."""

    conn_id: str = ""
    queue: str = ""
    message: WholeMessage
    original: Body | None
    masked: list[str] = []
    history: list[HistoryEvent]


class Events(_Shape):
    """The newest events."""

    conn_id: str = ""
    queue: str = ""
    events: list[QueueEvent]
    earlier: int


class ErrorGroup(_Shape):
    """Messages that failed alike."""

    error: str
    kind: str
    type: str
    text: str
    messages: int
    share: float
    first_seen: str | None
    last_seen: str | None
    sample: int | None
    trend: list[int]
    new: bool


class Groups(_Shape):
    """The error groups of a selection."""

    conn_id: str = ""
    queue: str = ""
    version: int = 0
    at: str = ""
    messages: int
    groups: list[ErrorGroup]
    more: int = 0


class Selection(_Shape):
    """Which messages are meant."""

    sub_queue: SubQueue | None = None
    error: str = ""
    error_type: str = ""
    text: str = ""
    since: str = ""
    until: str = ""
    counts: list[str] = []
    group: str = ""
    message_type: str = ""
    message_id: str = ""
    properties: dict[str, str] = {}
    lookup_ids: list[int] = []
    where: str = ""


class Action(_Shape):
    """What becomes of messages; a patch may be JSON text."""

    verb: Literal["put_back", "move", "send_to", "remove", "edit"]
    target: str = ""
    patch: Any = None
    body: str | None = None
    function: str = ""
    properties: dict[str, str | None] = {}


class Canary(_Shape):
    """How many messages go first, and the share of them that must be settled."""

    messages: int
    share: float


class CanarySeen(_Shape):
    """What has become of the messages that went first."""

    version: int = 0
    settled: int
    failed: int
    waiting: int
    errors: list[PlannedGroup]


class PlanServer(_Shape):
    """What this server does with a plan."""

    state: Literal["", "running", "waiting", "later"]
    before: int
    error: str


class Plan(_Shape):
    """A plan; ``planned`` and without an id while it is not recorded."""

    queue: str
    plan: str
    version: int
    action: Action
    selection: Selection
    at: str
    messages: int
    claimed: int
    groups: list[PlannedGroup]
    samples: list[Sample]
    state: PlanState | Literal["planned"]
    done: int
    skipped: int
    who: str
    reason: str
    rate: int | None
    chunk: int | None
    canary: Canary | None
    canary_seen: CanarySeen | None = None
    undoable: bool
    export_to: str = ""
    unfit: list[UnfitMessage] = []
    error: str = ""
    queue_id: str = ""
    server: PlanServer | None = None


class Plans(_Shape):
    """The recorded plans of a queue."""

    conn_id: str = ""
    queue: str = ""
    plans: list[Plan]


class Rights(_Shape):
    """What a user may do."""

    read: bool
    act: bool
    unmask: bool


class Decision(_Shape):
    """A question about a queue that waits for an answer."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    queue: str
    subject: str
    body: str | None
    options: list[str]
    at: str = ""
    may_answer: bool = True
    url: str | None


class Decisions(_Shape):
    """The questions of a queue, or of a connection."""

    conn_id: str = ""
    queue: str | None = None
    decisions: list[Decision]


class DialogError(_Shape):
    """The error that has ended a conversation."""

    code: int
    description: str


class ConversationRow(_Shape):
    """One side of a conversation."""

    handle: str
    conversation_id: str
    group_id: str
    is_initiator: bool
    service: str
    far_service: str
    contract: str
    state: str
    priority: int
    lifetime: str | None
    dialog_timer: str | None
    sent: int
    waiting: dict[str, int]
    failures: int
    error: DialogError | None
    began_at: str | None
    cleaned: bool = False


class Conversations(_Shape):
    """The conversations of a queue."""

    conn_id: str = ""
    queue: str = ""
    at: str
    conversations: list[ConversationRow]
    more: int


class OneConversation(ConversationRow):
    """A conversation with the handle of its other side."""

    far_handle: str


class FarQueue(_Shape):
    """The queue of the partner's service."""

    queue: str
    state: str


class Conversation(_Shape):
    """One conversation: what waits for it, what has not left, what ends it."""

    conn_id: str = ""
    queue: str = ""
    at: str
    conversation: OneConversation
    far_queue: FarQueue | None
    messages: list[MessageRow]
    more: int
    unsent: dict[str, int]
    halts: bool
    ended_by: str | None


ANSWERS: dict[str, type[BaseModel]] = {
    "queues": Queues,
    "queue": Queue,
    "messages": Messages,
    "message": MessageAnswer,
    "events": Events,
    "conversations": Conversations,
    "conversation": Conversation,
    "groups": Groups,
    "samples": Samples,
    "plans": Plans,
    "plan": Plan,
    "decisions": Decisions,
    "rights": Rights,
}
"""The shape of the answer to each read."""
