"""Alerts: which events give an alert after their commit, their texts (of halts: halts.py), and messages that wait for too long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_poison.dialogs.arrivals import BY_CONVERSATION
from airflow_poison.passes.halts import halt_of, what_halted, what_to_do_when_halted
from airflow_poison.passes.history import BY_HAND, ENDED, Cursor, Subscription
from airflow_poison.passes.runs import run_key
from airflow_poison.rules.decisions import HALTS
from airflow_poison.rules.settings import put
from airflow_poison.values.clock import Clock, show_instant, show_recorded
from airflow_poison.values.errors import AlertError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa, pc
from airflow_poison.values.schema import OUTBOX, SubQueue
from airflow_poison.values.texts import Plain, counted, visible

if TYPE_CHECKING:
    from airflow_poison.store.control import Control
    from airflow_poison.store.files import DataFile, Snapshot
    from airflow_poison.store.queue_table import QueueTable


NAMED = 20
NOT_ALERTED = frozenset({BY_HAND, ENDED, BY_CONVERSATION})
"""Values of ``by`` in events that give no alert: acts by hand, and the regular end of dialogs."""


class AlertKind(StrEnum):
    """What people can be alerted of."""

    QUEUE_DISABLED = "queue_disabled"  # the endpoint is disabled, stopped or faulted: nothing goes on until it is enabled
    POISON = "poison"  # messages went to poison or to another queue, or were dropped or rejected
    BLOCKED = "blocked"  # messages wait at their place, and perhaps the whole queue with them: it goes on by itself, or after a restart
    OUTAGE = "outage"  # what the handler needs is away: nothing is charged, and only probes are delivered
    OUTAGE_OVER = "outage_over"  # it is there again
    DESK = "desk"  # a rule reports poison or proposes something, or a redrive for a new handler has ended
    BACKLOG = "backlog"  # what waits has become too old; no event of the queue makes it, see ``send_backlog_alert``


EVENTS: Mapping[EventType, AlertKind] = {
    **dict.fromkeys(HALTS, AlertKind.QUEUE_DISABLED),
    EventType.MOVED_POISON: AlertKind.POISON,
    EventType.DROPPED: AlertKind.POISON,
    EventType.REJECTED: AlertKind.POISON,
    EventType.DEAD_LETTERED: AlertKind.POISON,
    EventType.REQUEUED: AlertKind.POISON,
    EventType.EXCEPTIONED: AlertKind.POISON,
    EventType.BLOCKED: AlertKind.BLOCKED,
    EventType.OUTAGE_BEGAN: AlertKind.OUTAGE,
    EventType.OUTAGE_OVER: AlertKind.OUTAGE_OVER,
    EventType.TOLD: AlertKind.DESK,
    EventType.PLANNED: AlertKind.DESK,
    EventType.PLAN_CHANGED: AlertKind.DESK,
}


@dataclass(frozen=True, slots=True)
class Alert(Plain):
    """One alert.

    :param key: the same when the alert is repeated; a receiver drops keys that it has seen.
    :param event: the event's name (spec 0.3), or ``BACKLOG_TOO_OLD``.
    :param lookup_ids: the messages, at most 20; ``count`` is how many there are.
    :param details: what is recorded of the event, as text; where the alert is about several events, of the first one. For example
        ``document``, the event document of a disabled queue (spec SB-17), ``warning`` (CWSIP0291), or the exception properties
        (``JMS_IBM_ExceptionReason``, spec DMP-18).
    """

    key: str
    kind: AlertKind
    queue: str
    event: str
    lookup_ids: tuple[int, ...]
    count: int
    reason: str
    what_to_do: str
    details: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Show each sign of what it quotes."""
        put(self, reason=visible(self.reason), details={name: visible(fact, "\n\t") for name, fact in self.details.items()})


def send_alerts(
    table: QueueTable,
    subscriber: str,
    targets: Mapping[str, Callable[[Alert], None]],
    clock: Clock,
    *,
    kinds: Iterable[AlertKind] = tuple(AlertKind),
) -> list[Alert]:
    """Send alerts for the queue's events since the subscriber's last call to its targets; return those that were sent to one at least.

    A target that fails keeps no alert from the others. What it owes is noted in a cursor of its own: next time it gets the same range again, with the
    same keys, and all that has followed, while the others get only what is new to them. Then it goes on with the others. What a target owes that is
    not there any more, or has another name now, goes to all that are there.

    :param subscriber: its name, the same in every run; a new one gets all events that the queue has recorded, unless it has begun before.
    :param targets: by their names, which are the same in every run; each is called once for each alert, also after an error.
    Raises AlertError when an alert failed.
    """
    main, sent, errors = alert_subscription(table, subscriber, clock, kinds), dict[str, Alert](), list[AlertError]()
    readers = {name: replace(main, reader=f"#{name}") for name in targets}
    behind, current, ended, until = set[str](), list[str](), False, -1
    while not ended:  # behind a range that a dead run has left lies what has happened since
        with main.range() as found:
            if until < 0:  # the first
                control = _hand_on(main, readers.values(), found.control)
                behind |= {name for name, reader in readers.items() if reader.cursor.read(control)[0] is not None}
                current += [name for name in targets if name not in behind]
            alerts = _alerts(table, found.key, found.events)
            for name in tuple(current):
                try:
                    sent |= _send_all(table, alerts, targets[name])
                except AlertError as error:
                    errors.append(error)
                    current.remove(name)
                    readers[name].cursor.write((None, None), done=found.since, sending=found.until)
        ended, until = not found.repeated, found.until
    for name in behind:
        try:
            sent |= _catch_up(readers[name], targets[name], until)
        except AlertError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return list(sent.values())


def _hand_on(main: Subscription, readers: Collection[Subscription], control: Control) -> Control:
    """Let all targets owe, too, what is owed by those that are not there any more; return the queue's control row."""
    prefix, there = main.cursor.names[0] + "#", {reader.cursor.names[0] for reader in readers}

    def gone(control: Control) -> list[Cursor]:
        names = [name for name in control.counters if name.startswith(prefix) and name not in there]
        return [replace(main, reader=f"#{name.removeprefix(prefix)}").cursor for name in names]

    def change(control: Control) -> Control:
        changed = dict[str, int | None]()
        for reader in readers if (debts := [cursor.read(control) for cursor in gone(control)]) else ():
            owed = [(done, sending) for done, sending in (*debts, reader.cursor.read(control)) if done is not None]
            first = min(owed, key=lambda each: each[0])
            changed |= zip(reader.cursor.names, first, strict=True)
        for cursor in gone(control):
            changed |= dict.fromkeys(cursor.names)
        return control.with_counters(changed)

    return main.table.alter(change) if readers and gone(control) else control


def _catch_up(reader: Subscription, notify: Callable[[Alert], None], until: int) -> dict[str, Alert]:
    """Send a target what it owes, up to a version, and let it go on with the others; return the alerts by their keys."""
    ended, sent = False, dict[str, Alert]()
    while not ended:
        with reader.range(until) as found:
            sent |= _send_all(reader.table, _alerts(reader.table, found.key, found.events), notify)
        ended = not found.repeated
    reader.cursor.write(reader.cursor.read(reader.table.snapshot().control), done=None, sending=None)
    return sent


def _send_all(table: QueueTable, alerts: Sequence[Alert], notify: Callable[[Alert], None]) -> dict[str, Alert]:
    """Send every alert, also after one has failed; return them by their keys. Raises AlertError when one failed."""
    failed = list[str]()
    for alert in alerts:
        try:
            notify(alert)
        except Exception as error:  # noqa: BLE001  (any notifier's error; the others must still hear of it)
            failed.append(f"{alert.event} ({type(error).__name__}: {error})")
        reach("pass.alert.after_one")
    if failed:
        raise AlertError(
            f"{len(failed)} of {len(alerts)} alerts of queue {table.name!r} failed: {'; '.join(failed)}. What the passes did is committed. "
            "Mend the notifier and run the task again: the alerts are repeated with the same keys."
        )
    return {alert.key: alert for alert in alerts}


def alert_subscription(table: QueueTable, subscriber: str, clock: Clock, kinds: Iterable[AlertKind] = tuple(AlertKind)) -> Subscription:
    """Return the subscription behind a subscriber's alerts."""
    wanted = set(kinds)
    return Subscription(table, f"alert:{subscriber}", frozenset(event for event, kind in EVENTS.items() if kind in wanted), clock)


@dataclass(slots=True)
class _Group:
    first: Event
    count: int = 0
    lookup_ids: list[int] = field(default_factory=list)

    def add(self, event: Event) -> None:
        self.count += 1
        if event.lookup_id is not None and len(self.lookup_ids) < NAMED:
            self.lookup_ids.append(event.lookup_id)


def _alerts(table: QueueTable, range_key: str, events: Iterable[Event]) -> list[Alert]:
    """Return one alert for each halt, and one for each other type of event."""
    groups: dict[str, _Group] = {}
    halts = 0
    for event in events:
        if event.details.get("by") in NOT_ALERTED or not _is_news(event):
            continue
        name = event.type.value
        if EVENTS[event.type] is AlertKind.DESK:
            name = "-".join(filter(None, (name, event.details.get("rule"), event.details.get("plan"))))
        if event.type in HALTS:
            halts += 1
            name = f"{name}-{halts}"
        groups.setdefault(name, _Group(event)).add(event)
    return [_alert(table, _key(table, range_key, name), about) for name, about in groups.items()]


def _key(table: QueueTable, *parts: object) -> str:
    """Return the key of an alert. A queue that was made anew in the same place is another one: receivers must not drop its alerts."""
    return run_key(table.uri, table.identity(), *parts)


def _is_news(event: Event) -> bool:
    """Whether a plan gives an alert: one that a rule proposes, and the end of one for a new handler."""
    facts = event.details
    match event.type:
        case EventType.PLANNED:
            return "rule" in facts and facts.get("state") == "paused"
        case EventType.PLAN_CHANGED:
            return "handler" in facts and facts.get("state") in {"stopped", "done"}
        case _:
            return True


def _alert(table: QueueTable, key: str, group: _Group) -> Alert:
    event, queue = group.first, table.name
    details = {name: fact for name, fact in event.details.items() if fact}
    return Alert(
        key=key,
        kind=EVENTS[event.type],
        queue=queue,
        event=event.type.value,
        lookup_ids=tuple(group.lookup_ids),
        count=int(details["messages"]) if "messages" in details else group.count,
        reason=reason(queue, event, group.count),
        what_to_do=what_to_do(queue, event),
        details=details,
    )


# What an alert says ----------------------------------------------------------------------------------------------------

_BECAME: Mapping[EventType, str] = {
    EventType.MOVED_POISON: "moved to the poison sub-queue",
    EventType.DROPPED: "dropped",
    EventType.REJECTED: "rejected to the sender's dead-letter queue",
    EventType.DEAD_LETTERED: "moved to the dead-letter queue",
    EventType.REQUEUED: "moved to the backout queue",
    EventType.EXCEPTIONED: "moved to the exception destination",
}
_WHAT_TO_DO = {
    EventType.DROPPED: "They are gone from the queue; only their sender can send them again.",
    EventType.OUTAGE_BEGAN: "Mend what the handler needs: a probe finds out, and all goes on by itself. If the messages are at fault, run one pass "
    "without outage=: it charges them, and what was charged so is no evidence of an outage any more.",
    EventType.OUTAGE_OVER: "Nothing: passes deliver everything again.",
}
_SENT_ON = {EventType.DEAD_LETTERED, EventType.REQUEUED, EventType.EXCEPTIONED}
RESTART = "restart"
"""Until when a message is blocked that only a restart of the broker lets go on."""


def reason(queue: str, event: Event, count: int) -> str:
    """Say what happened.

    :param event: the first of the ``count`` events of its type.
    """
    facts = event.details
    if event.type in HALTS:
        return what_halted(halt_of(event), facts.get("endpoint", queue))
    if event.type in {EventType.OUTAGE_BEGAN, EventType.OUTAGE_OVER}:
        return _of_outage(queue, event)
    if EVENTS[event.type] is AlertKind.DESK:
        return _of_desk(queue, event, count)
    became = _blocked(facts) if event.type is EventType.BLOCKED else _BECAME[event.type]
    if place := _destination(event):
        became = f"{became} {place!r}"
    sentences = [f"{counted(count, 'message')} of queue {queue!r}: {became}"]
    sentences += [facts[name].rstrip(".") for name in ("reason", "obstacle", "warning") if facts.get(name)]
    return f"{'. '.join(sentences)}."


def what_to_do(queue: str, event: Event) -> str:
    """Say the next step after the event."""
    match event.type:
        case _ if event.type in _WHAT_TO_DO:
            return _WHAT_TO_DO[event.type]
        case EventType.MOVED_POISON:
            return f"Mend the cause, then put them back for one more cycle: QueueHook().queue({queue!r}).put_back()."
        case _ if place := _destination(event):
            return f"Mend the cause, then receive them from queue {place!r}, or send them back: QueueHook().queue({place!r}).send_to(lookup_ids)."
        case EventType.REJECTED | EventType.DEAD_LETTERED:
            return f"Look at queue '{queue}.dead-letter', or the one that the sender named."
        case EventType.BLOCKED | EventType.TOLD | EventType.PLANNED | EventType.PLAN_CHANGED:
            return (_what_to_do_when_blocked if event.type is EventType.BLOCKED else _what_to_do_at_the_desk)(queue, event)
        case _:
            return what_to_do_when_halted(halt_of(event), queue, event.details.get("system", ""))


def _of_desk(queue: str, event: Event, count: int) -> str:
    facts = event.details
    if event.type is EventType.TOLD:
        return f"{counted(count, 'message')} of queue {queue!r} wait in poison; rule {facts['rule']!r} tells of them."
    if event.type is EventType.PLANNED:
        messages, verb = counted(int(facts["messages"]), "message"), facts["verb"].replace("_", " ")
        return f"Rule {facts['rule']!r} of queue {queue!r} proposes to {verb} {messages}."
    group, seen = facts.get("group", ""), {name: counted(int(facts.get(name, "0")), "message") for name in ("settled", "failed")}
    outcome = "has ended" if facts["state"] == "done" else f"was stopped: of its canary {seen['settled']} settled, {seen['failed']} failed"
    return f"The redrive of queue {queue!r} for a new handler, error group {group!r}, {outcome}."


def _what_to_do_at_the_desk(queue: str, event: Event) -> str:
    plan = event.details.get("plan", "")
    if event.type is EventType.TOLD:
        return "Look at them, and put them back, remove them or leave them: a rule that tells leaves them where they are."
    if event.type is EventType.PLANNED:
        return f"Answer in the Airflow UI where a task asks, or resume plan {plan!r} of queue {queue!r}, or cancel it."
    if event.details.get("state") == "done":
        return "Nothing: the others of the group were put back, too."
    return f"The others stay in poison. Mend the handler, or go on all the same: resume plan {plan!r} of queue {queue!r}."


def _of_outage(queue: str, event: Event) -> str:
    facts = event.details
    endpoint = facts.get("endpoint", queue)
    if event.type is EventType.OUTAGE_OVER:
        return f"The outage of queue {endpoint!r} since {show_recorded(facts['since']) if 'since' in facts else '?'} is over."
    back = counted(int(facts.get("given_back", "0")), "message was", "messages were")
    error = facts.get("error", "").rstrip(".")
    return f"Queue {endpoint!r} has an outage since {show_instant(event.at)}, no poison: {error}. {back} given back uncounted."


def _destination(event: Event) -> str:
    """Return the queue that the messages went to, where the event names it."""
    place = event.details.get("place", "")
    return place if event.type in _SENT_ON and place != OUTBOX else ""


def _blocked(facts: Mapping[str, str]) -> str:
    until = facts.get("until", RESTART)
    waits = "the whole queue waits" if facts.get("blocks") == "queue" else "waiting at their place"
    return f"blocked, {waits} until {'the broker is restarted' if until == RESTART else show_recorded(until)}"


def _what_to_do_when_blocked(queue: str, event: Event) -> str:
    remove = f"take the message out with QueueHook().queue({queue!r}).remove({event.lookup_id})"
    if event.details.get("until", RESTART) == RESTART:
        return f"It does not go on by itself: mend the cause and call QueueHook().queue({queue!r}).restart('broker'), or {remove}."
    return f"It goes on by itself then. Mend the cause, or {remove}."


# What waits too long ---------------------------------------------------------------------------------------------------


TOO_OLD = "BACKLOG_TOO_OLD"
"""The ``event`` of the alert. It is no event of the queue: nothing happens when a message comes of age."""
PLACES = (SubQueue.MAIN, SubQueue.RETRY)
"""Where messages wait to be received."""


@dataclass(frozen=True, slots=True)
class Oldest:
    """The message that has waited longest."""

    lookup_id: int
    enqueued_at: datetime
    sub_queue: SubQueue


def oldest(table: QueueTable, snapshot: Snapshot, before: datetime, *, other_than: int | None = None) -> Oldest | None:
    """Return the message of ``main`` and ``retry`` that was sent first, until then; None when there is none. Reads one file, in general."""
    found: Oldest | None = None
    for earliest, file in sorted(_old_files(snapshot, before), key=lambda each: each[0]):
        if found is not None and earliest > found.enqueued_at:
            break
        first = _first(table, file, other_than)
        if first is not None and first.enqueued_at <= before:
            found = first if found is None else min(found, first, key=lambda each: (each.enqueued_at, each.lookup_id))
    return found


def _old_files(snapshot: Snapshot, before: datetime) -> list[tuple[datetime, DataFile]]:
    dated = [(file.min_enqueued_at, file) for file in snapshot.files if file.sub_queue in PLACES]
    return [(earliest, file) for earliest, file in dated if earliest is not None and earliest <= before]


def _first(table: QueueTable, file: DataFile, other_than: int | None) -> Oldest | None:
    rows = table.read(file, ["enqueued_at", "lookup_id"])
    if other_than is not None:
        rows = rows.filter(pc.not_equal(rows["lookup_id"], pa.scalar(other_than, pa.int64())))
    first = pc.min(rows["enqueued_at"]).as_py()
    if first is None:
        return None
    number = pc.min(rows.filter(pc.equal(rows["enqueued_at"], pc.min(rows["enqueued_at"])))["lookup_id"]).as_py()
    return Oldest(number, first, SubQueue(file.sub_queue))


def send_backlog_alert(table: QueueTable, subscriber: str, older_than: timedelta, notify: Callable[[Alert], None], clock: Clock) -> list[Alert]:
    """Send an alert when a message of ``main`` or ``retry`` was sent longer ago than that; return the alerts.

    The cursor counts messages: its ``done`` is the lookup id of the message in the last alert; below 0: since then everything too old has gone.
    One alert for each backlog, whose key names its oldest message. It is over when nothing is too old any more; then another message that becomes
    too old gives an alert, and the one of the last alert does not.

    Raises AlertError when a target failed: the alert is sent again next time, with the same key.
    """
    state, now, snapshot = Cursor(table, subscriber, clock, "backlog:"), clock.now(), table.snapshot()
    seen = done, sending = state.read(snapshot.control)
    if done is not None and done > 0:
        if not _old_files(snapshot, now - older_than):
            state.write(seen, done=-done, sending=None)
        return []
    first = oldest(table, snapshot, now - older_than, other_than=None if done is None else -done)
    if first is None:
        if sending is not None:  # it has gone before anybody heard of it
            state.write(seen, done=done, sending=None)
        return []
    about = first.lookup_id if sending is None else sending
    if sending is None and not state.write(seen, done=done, sending=about):
        return []  # another run sends it
    alert = _backlog_alert(table, snapshot, first, about, now)
    reach("pass.backlog.before_telling")
    try:
        notify(alert)
    except Exception as error:
        raise AlertError(
            f"The alert that queue {table.name!r} has a backlog failed ({type(error).__name__}: {error}). "
            "Mend the notifier and run the task again: the alert is repeated with the same key."
        ) from error
    reach("pass.backlog.after_telling")
    state.write((done, about), done=about, sending=None)
    return [alert]


def _backlog_alert(table: QueueTable, snapshot: Snapshot, first: Oldest, about: int, now: datetime) -> Alert:
    """Return the alert; its key is the one of the message in the backlog's first alert."""
    waiting = {place: snapshot.depth(place, now).messages for place in PLACES}
    depths = ", ".join(f"{number:,} in {place.value}" for place, number in waiting.items())
    longest = f"message {first.lookup_id} in {first.sub_queue.value} was sent at {show_instant(first.enqueued_at)}"
    return Alert(
        key=_key(table, TOO_OLD, about),
        kind=AlertKind.BACKLOG,
        queue=table.name,
        event=TOO_OLD,
        lookup_ids=(first.lookup_id,),
        count=sum(waiting.values()),
        reason=f"Queue {table.name!r} has a backlog: {longest}; {depths} wait.",
        what_to_do="See whether its receive tasks run and succeed, whether the queue is halted or blocked, and whether they keep up.",
        details={"oldest_enqueued_at": first.enqueued_at.isoformat(), "sub_queue": first.sub_queue.value},
    )
