"""Messages for handlers under test: real passes in this process, on a store in memory and a virtual clock; and conversations of a message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from types import GeneratorType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from airflow_poison.delivery.handlers import Transformation, check_given, check_returned, load_handler, load_types, resolve_handler
from airflow_poison.delivery.verdicts import failure_of
from airflow_poison.dialogs.acts import ConversationEndpoint, ConversationState, target_handle
from airflow_poison.dialogs.services import DEFAULT_CONTRACT, Contract, SentBy, Service
from airflow_poison.dialogs.transaction import BegunDelivery, Conversation
from airflow_poison.outputs.output import ONLY
from airflow_poison.outputs.output_table import last_of_each
from airflow_poison.passes.alter import declare
from airflow_poison.passes.declaration import Receive, ReceiveOptions, check_handler_given
from airflow_poison.passes.due import return_due
from airflow_poison.passes.engines import Engine, LocalEngine
from airflow_poison.passes.land import prepared
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import SENT, checked, send
from airflow_poison.sources.bodies import batches_of
from airflow_poison.store.control import NOT_BEFORE_RESTART
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.data_frames import is_frame
from airflow_poison.values.errors import InputError, SettingError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.json_values import body_of
from airflow_poison.values.mapping import ColumnMapping, check_several
from airflow_poison.values.message import Message
from airflow_poison.values.schema import SubQueue, message_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_poison.delivery.handlers import Handler, HandlerLike
    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.queue_table import QueueTable


MOST_PASSES = 1_000

_AS_SENT = ("message_id", "priority", "group_id", "conversation_id", "message_type", "enqueued_at", "expires_at")
_GONE = {EventType.DROPPED: "dropped", EventType.REJECTED: "dead_letter"}
_SENT_ON = {EventType.EXCEPTIONED, EventType.REQUEUED, EventType.DEAD_LETTERED}

_numbers = count(1)

lent = SimpleNamespace()
"""Handlers under test, by the name with which a pass finds them: so the very function is called, not a copy, and a test sees what it did."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the handler; or one delivery to a transformation, which gets many messages at once.

    :param at: when, on the virtual clock, UTC.
    :param abort_count: what the handler saw.
    :param move_count: what the handler saw.
    :param error: what it raised; None when it returned, and for a transformation: ``Outcome.last_error`` says what was wrong.
    """

    at: datetime
    abort_count: int
    move_count: int
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message.

    :param place: the sub-queue where it is (``main``, ``retry``, ``poison``, ``postponed``), ``dead_letter`` (the sender's), the name of the queue
        that it was sent to, or what became of it: ``processed``, ``dropped``, ``lost`` (consumed before its handler failed). The words are those
        of ``replay``.
    :param abort_count: its rollbacks since the last move; 0 when it has left the queue.
    :param move_count: its moves between main and the sub-queues; 0 when it has left the queue.
    :param calls: the calls of the handler, in order.
    :param last_error: the failure of its last delivery; None when that succeeded. Of a message that a transformation failed with it is known as
        long as the queue has it, and not when it was dropped or sent elsewhere.
    """

    lookup_id: int
    body: bytes
    place: str
    abort_count: int
    move_count: int
    calls: tuple[Call, ...]
    last_error: Failure | None

    @property
    def deliveries(self) -> int:
        """Calls of the handler."""
        return len(self.calls)

    def __str__(self) -> str:
        error = f", last error {self.last_error.type}: {self.last_error.text}" if self.last_error else ""
        return f"message {self.lookup_id} {self.body[:40]!r}: {self.place} after {self.deliveries} deliveries{error}"


@dataclass(frozen=True, slots=True)
class Received:
    """The result of ``receive``. Iterates over the outcomes, in the order in which the messages were given.

    :param passes: the result of each pass.
    :param events: what was recorded, ``DELIVERED``, ``COMMITTED`` and ``ROLLED_BACK`` among it.
    :param table: the queue, for a look inside.
    :param store: its store, which also has the dead-letter queues.
    :param elapsed: time that went by on the virtual clock.
    :param landed: the rows that deliveries returned and that would be in each output, by its name.
    :param endless: it was stopped at its limit of passes and would have gone on.
    """

    outcomes: tuple[Outcome, ...]
    passes: tuple[ReceiveResult, ...]
    events: tuple[Event, ...]
    table: QueueTable
    store: MemoryStore
    elapsed: timedelta
    endless: bool = False
    landed: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows of the only output."""
        return self.landed.get(ONLY, ())

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, number: int) -> Outcome:
        return self.outcomes[number]

    @property
    def places(self) -> list[str]:
        """The place of each message."""
        return [outcome.place for outcome in self.outcomes]

    @property
    def deliveries(self) -> int:
        """Calls of the handler, all together."""
        return sum(outcome.deliveries for outcome in self.outcomes)

    @property
    def halted(self) -> str | None:
        """How the last pass halted the queue (``faulted`` …); None when the queue goes on."""
        halt = self.passes[-1].halted if self.passes else None
        return halt["how"] if halt else None

    def __str__(self) -> str:
        lines = [str(outcome) for outcome in self.outcomes]
        if self.halted:
            lines.append(f"The queue is {self.halted}.")
        if self.endless:
            lines.append(f"Stopped after {len(self.passes)} passes; it would go on.")
        return "\n".join(lines)


def receive(
    handler: HandlerLike | None,
    messages: Iterable[object],
    policy: Policy,
    *,
    until: timedelta | None = None,
    clock: VirtualClock | None = None,
    queue: str = "test",
    most_passes: int = MOST_PASSES,
    spark: SparkSession | None = None,
    **options: Unpack[ReceiveOptions],
) -> Received:
    """Send messages, receive them and return what is due until nothing waits any more; say what became of each.

    Each pass is a real one; what is parked, postponed or blocked comes back at once, because the clock jumps to the next due time. The handler runs
    in this process (``isolation="none"``): a test sees its effects and its mocks, and a handler that ends or blocks its process ends or blocks
    the test; for settings against crashes and timeouts ask ``replay``.

    :param handler: an importable name (``"shop.arrivals:land"``) or any callable; None where ``transform`` is in its place.
    :param messages: bytes or text (bodies), dicts or lists (bodies as the JSON that a send makes of them), or Messages; or a data frame, whose rows
        are messages. The queue assigns lookup ids from 1 on.
    :param policy: the queue's rules; with ``PoisonSubQueue`` the messages are put into poison.
    :param until: stop this long after the start; None: when nothing waits, or the queue is halted.
    :param clock: where the handler can read the virtual time too; None: one of its own.
    :param queue: the queue's name.
    :param most_passes: stop a handler that postpones for ever, or an outage that does not end.
    :param spark: the session on which it runs, best one of ``local[2]``; None: the active one of this process.

    :param options: settings of the receive, see ``ReceiveOptions``. Nothing is written to an ``output``: ``Received.rows`` and ``landed`` have what
        would be, in the order of the deliveries, of rows of one key (``output_keys``) the last. Rows that a Delta table cannot hold fail their
        messages; where a local path has a table, so do rows that its columns and constraints refuse. A call with a frame (``batch``) stands in
        ``calls`` of each of its messages, with its error. Passes with ``transform`` run on Spark.

    Raises InputError for something that is no message, HandlerNotFoundError for something that cannot be called with one, TransformError for a
    transformation that a pass refuses, SettingError for what batches or transformations do not go with, OutputError for a table that takes no rows.
    """
    receive = _declared(queue, handler, policy, spark, options)
    transformation = receive.handler if isinstance(receive.handler, Transformation) else None
    engine = LocalEngine if transformation is None else _spark_engine(spark)
    clock = clock or VirtualClock()
    started = clock.now()
    store = MemoryStore()
    table = declare(store, queue, policy, clock)
    bodies = _send(table, messages, clock)
    if policy.reads is not SubQueue.MAIN:
        table.move_files(lambda snapshot: snapshot.files, policy.reads, clock.now(), count_move=False)
    first_event = table.snapshot().version
    outputs = tuple(replace(each if "://" in each.uri else prepared([each])[0], uri="") for each in receive.outputs)
    landed: dict[str, list[pa.Table]] = {each.name: [] for each in outputs}

    def take(table: pa.Table, key: str) -> None:
        landed[key.rpartition("-")[2]].append(table)

    with nullcontext((transformation, None)) if handler is None else _lend(handler, clock, lands=bool(outputs)) as (called, watched):
        assert called is not None, "one of the two was given"
        declared = replace(receive, handler=called, outputs=outputs, deliver=take)
        receiving = ReceivePass.of_table(table, declared, engine=engine, clock=clock, record_all=True, store=store)
        passes, endless = _play(receiving, clock, None if until is None else started + until, most_passes)
    events = tuple(table.events(first_event))
    all_calls = _delivered(events) if watched is None else watched.calls
    outcomes = tuple(_outcomes(table, bodies, events, all_calls, load_types(receive.unprocessable)))
    rows = {each.name: _merged(landed[each.name], each.keys) for each in outputs}
    return Received(outcomes, tuple(passes), events, table, store, clock.now() - started, endless, rows)


def _merged(landed: Sequence[pa.Table], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows that a new table would have when all have landed: of those with the same keys the last one."""
    if not keys or not landed:
        return [row for table in landed for row in table.to_pylist()]
    rows = pa.concat_tables(landed, promote_options="permissive")
    return rows.take(last_of_each(rows.to_batches(), rows.schema, keys)).to_pylist()


def _outcomes(
    table: QueueTable,
    bodies: Sequence[bytes],
    events: Sequence[Event],
    all_calls: Mapping[int, Sequence[Call]],
    unprocessable: tuple[type[BaseException], ...],
) -> Iterator[Outcome]:
    """Yield what has become of each message, in the order in which they were sent."""
    gone = {event.lookup_id or 0: _GONE[event.type] for event in events if event.type in _GONE}
    gone |= {event.lookup_id or 0: event.details["place"] for event in events if event.type in _SENT_ON}
    kept: dict[int, dict[str, Any]] = {row["lookup_id"]: row for file in table.snapshot().files for row in table.read(file).to_pylist()}
    for number, body in enumerate(bodies, 1):
        calls = tuple(all_calls.get(number, ()))
        raised = calls[-1].error if calls else None
        row = kept.get(number, {"abort_count": 0, "move_count": 0, "last_error": None})
        place = row.get("sub_queue") or gone.get(number, "lost" if raised else "processed")
        error = failure_of(raised, unprocessable) if raised else None
        if (cell := row["last_error"]) is not None:
            error = Failure(FailureKind(cell["kind"]), cell["type"], cell["message"], cell["trace"])
        yield Outcome(number, body, place, row["abort_count"], row["move_count"], calls, error)


def _declared(queue: str, handler: object, policy: Policy, spark: object, options: ReceiveOptions) -> Receive:
    """Return the settings of the receive. Raises SettingError and HandlerNotFoundError."""
    if isinstance(handler, Transformation):
        raise SettingError("handler", handler.name, "a function of a message; give one of a DataFrame as transform=..., with its schema=...")
    transform = options.get("transform")
    check_handler_given(handler, transform)
    if spark and transform is None:
        raise SettingError("spark", spark, "a setting of a transformation; declare transform=... too")
    inline: ReceiveOptions = {} if transform is not None else {"isolation": "none"}
    return Receive.of(queue, handler=handler, policy=policy, **{**options, **inline})  # type: ignore[arg-type]  # Receive.of checks it


def _spark_engine(spark: SparkSession | None) -> Callable[[], Engine]:
    """Return what makes the engine of a transformation. Raises SettingError where there is no session."""
    own = "SparkSession.builder.master('local[2]').getOrCreate()"
    try:
        from pyspark.sql import SparkSession

        from airflow_poison.spark.engine import SparkEngine
    except ModuleNotFoundError as error:
        raise SettingError(
            "transform", "a transformation", f"a handler where there is no Spark ({error}); install pyspark where it is tried"
        ) from error

    found = SparkSession.getActiveSession() if spark is None else spark
    if found is None:
        raise SettingError("spark", None, f"the session that runs the transformation, since none is active in this process: spark={own}")
    if not hasattr(found, "createDataFrame"):
        raise SettingError("spark", spark, f"a Spark session, like {own}")
    return lambda: SparkEngine(found)


def _delivered(events: Iterable[Event]) -> dict[int, list[Call]]:
    calls: dict[int, list[Call]] = {}
    for event in events:
        if event.type is EventType.DELIVERED:
            calls.setdefault(event.lookup_id or 0, []).append(Call(event.at, event.abort_count, event.move_count))
    return calls


def _play(receiving: ReceivePass, clock: VirtualClock, end: datetime | None, most_passes: int) -> tuple[list[ReceiveResult], bool]:
    """Run passes, jumping from due time to due time; return whether there were too many."""
    table = receiving.table
    passes: list[ReceiveResult] = []
    while len(passes) < most_passes:
        passes.append(receiving.run(f"pass-{len(passes) + 1}"))
        due = _next_due(table, clock)
        if passes[-1].halted is not None or due is None or (end is not None and due > end):
            if end is not None:
                clock.at = max(clock.at, end)
            return passes, False
        clock.at = max(due, clock.at)
        return_due(table, clock)
    return passes, True


def _next_due(table: QueueTable, clock: VirtualClock) -> datetime | None:
    snapshot = table.snapshot()
    dues = [snapshot.depth(place, clock.now()).next_due_at for place in (SubQueue.RETRY, SubQueue.POSTPONED)]
    dues.append(snapshot.control.blocked_until(clock.now()))
    there = (place for place in (SubQueue.MAIN, SubQueue.POISON) if snapshot.depth(place, clock.now()).messages)
    dues += (waits.next_probe_at for place in there if (waits := snapshot.control.outage(place)) is not None)
    return min((due for due in dues if due is not None and due < NOT_BEFORE_RESTART), default=None)


class _Watched:
    """A handler whose calls are written down, by lookup id."""

    def __init__(self, handler: Handler, clock: VirtualClock, *, lands: bool) -> None:
        self.calls: dict[int, list[Call]] = {}
        self._handler, self._clock, self._lands = handler, clock, lands

    def __call__(self, received: Any) -> Any:
        at = self._clock.now()
        error: BaseException | None = None
        try:
            returned = self._handler(received)
            if self._lands and isinstance(returned, GeneratorType):
                returned = list(returned)
            check_returned(returned)
        except BaseException as raised:
            error = raised
            raise
        finally:
            for lookup_id, abort_count, move_count in _handed(received):
                self.calls.setdefault(lookup_id, []).append(Call(at, abort_count, move_count, error))
        return returned


def _handed(received: Any) -> Iterator[tuple[int, int, int]]:
    """Yield lookup id, abort count and move count of each message that a handler got; of a frame of bodies the counts are not known, and 0."""
    message = getattr(received, "gram", received)  # a session has the counts of the message that carried it
    if isinstance(message, Message):
        yield message.lookup_id, message.abort_count, message.move_count
        return
    names = getattr(received, "column_names", None) or received.columns
    has_counts = "abort_count" in names and "body" in names
    columns = [list(received[name].to_numpy()) for name in ("lookup_id", *(("abort_count", "move_count") if has_counts else ()))]
    for row in zip(*columns, strict=True):
        lookup_id, *counts = map(int, row)
        abort_count, move_count = counts or (0, 0)
        yield lookup_id, abort_count, move_count


@contextmanager
def _lend(handler: HandlerLike, clock: VirtualClock, *, lands: bool) -> Iterator[tuple[str, _Watched]]:
    """Make a handler importable and watched, after the checks that a pass makes. Raises HandlerNotFoundError."""
    check_given(handler, returns_rows=lands)
    function = load_handler(resolve_handler(handler, returns_rows=lands)) if isinstance(handler, str) else handler
    label = re.sub(r"\W", "_", getattr(handler, "__name__", type(handler).__name__))
    name = f"{label}_{next(_numbers)}"
    watched = _Watched(function, clock, lands=lands)
    setattr(lent, name, watched)
    try:
        yield f"{__name__}:lent.{name}", watched
    finally:
        delattr(lent, name)


def _send(table: QueueTable, messages: Iterable[object], clock: VirtualClock) -> list[bytes]:
    """Send messages, and return their bodies. Raises InputError."""
    check_several(messages)
    messages = messages if is_frame(messages) else [*messages]
    if is_frame(messages) or any(map(is_frame, messages)):
        batches = [*batches_of(messages, ColumnMapping(), clock.now())]
        send(table, batches, key="test", clock=clock)
        return [body or b"" for batch in batches for body in batch.column("body").to_pylist()]
    rows = [_row(number, message) for number, message in enumerate(messages)]
    names = sorted({name for row in rows for name in row})
    schema = pa.schema([message_schema().field(name) for name in names])
    if rows:
        batch = checked(pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema), (*SENT, "enqueued_at"))  # a test may set the time
        table.append([batch], "test", clock.now())
    return [row["body"] for row in rows]


def _row(number: int, message: object) -> dict[str, Any]:
    """Return a message's columns; what is None gets the queue's default. Raises InputError."""
    match message:
        case bytes() | str() | dict() | list():
            return {"body": body_of(message, f"messages[{number}]")}
        case Message():
            return {"body": message.body, "properties": list(message.properties.items())} | {
                name: getattr(message, name) or None if name == "message_id" else getattr(message, name) for name in _AS_SENT
            }
        case _:
            raise InputError(f"messages[{number}] is {type(message).__name__}; expected bytes, text, a dict, a list or a Message.")


# Conversations for unit tests of handlers: no queue, no partner; what a handler sends is there to be looked at.


_ID = "a-conversation"


def conversation(
    sends: Sequence[str] = (),
    *,
    contract: Contract | None = None,
    state: ConversationState | str = ConversationState.CONVERSING,
    is_initiator: bool = False,
    failures: int = 0,
    now: datetime | None = None,
) -> Conversation:
    """Return a conversation for ``Message(..., conversation=conversation())``: its verbs and errors are the same as in a real one.

    :param sends: the message types that this side may send; empty: the types of ``contract``, and without one ``DEFAULT``.
    :param state: of this side, for example ``DI``: the partner has ended it.
    :param failures: what was tracked before.
    :param now: for timers; None: the present.
    """
    given = contract or (Contract("Contract", dict.fromkeys(sends, SentBy.ANY)) if sends else DEFAULT_CONTRACT)
    handle = _ID if is_initiator else target_handle(_ID)
    endpoint = ConversationEndpoint(
        conversation_id=_ID,
        is_initiator=is_initiator,
        service="Service",
        far_service="FarService",
        contract=given.name,
        group_id=handle,
        initiator_group=_ID,
        state=ConversationState(state),
        failures=failures,
    )
    return Conversation(BegunDelivery(endpoint, endpoint, now or datetime.now(UTC)), {"Service": Service("Service", [given])})
