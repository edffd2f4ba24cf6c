"""Alter: make a queue with its policy, change its settings at run time, let it receive or not, and restart its endpoint, host or broker."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow.compute as pc

from airflow_poison.passes.halts import ENDPOINTS, LONGEST_REASON, STARTED
from airflow_poison.passes.messages import planned_anew, signed, with_columns
from airflow_poison.passes.relay import tick
from airflow_poison.rules import SYSTEMS, checked_policy, policy_from_dict
from airflow_poison.rules.decisions import Counts
from airflow_poison.rules.policy import Policy, Restart
from airflow_poison.store.control import Control, QueueState
from airflow_poison.store.files import DataFile, Replacement
from airflow_poison.store.parking import SETTING as PARK_GROUP
from airflow_poison.store.parking import check_parking, parking, parks
from airflow_poison.values.errors import MessageClaimedError, QueueNotFoundError, SettingError, SystemChangeError
from airflow_poison.values.events import Event, EventType, is_anybody_acting
from airflow_poison.values.failures import FailureKind
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

log = logging.getLogger(__name__)


_BY_HAND = "it was switched off by hand"


@dataclass(frozen=True, slots=True)
class EnableResult(Plain):
    """What enabling did: the state before, which is ``enabled`` when there was nothing to do, and the reason that had halted the queue.

    When only the reader of the poison sub-queue had halted, they are that reader's.
    """

    queue: str
    before: str
    reason: str


@dataclass(frozen=True, slots=True)
class DisableResult(Plain):
    """What disabling did.

    :param before: the state before; there was nothing to do when it was ``disabled``, or not ``enabled`` and only the endpoint was to stop.
    :param receiving: messages that passes have claimed, which they still finish.
    """

    queue: str
    before: str
    receiving: int


@dataclass(frozen=True, slots=True)
class AlterResult(Plain):
    """What altering did.

    :param changed: the settings whose value is another now, as JSON values: before and after.
    """

    queue: str
    changed: Mapping[str, tuple[object, object]]


def enable(table: QueueTable, clock: Clock) -> EnableResult:
    """Let the queue's endpoints receive again: its own, and the reader of its poison sub-queue. What was sent to it meanwhile arrives.

    Where the system says so, the endpoint's counters begin anew, also when the queue was ON already (spec SB-7, section 11.1).
    A message that halted an endpoint keeps its counts (spec SB-24, WCF-21): remove it, or it may halt it again.
    """
    tick(table, clock)  # while it is still disabled: what the local broker has kept back comes before what partners send (spec section 11.1)
    seen: list[Control] = []

    def change(control: Control) -> Control:
        seen.append(control)
        after = control.enabled()
        counters, starts = after.endpoint_counters, control.state is not QueueState.ENABLED
        return after.with_endpoint_counters(policy_from_dict(after.policy).counters_when_enabled(counters, starts=starts)) if counters else after

    table.alter(change, lambda before, after: started(before, after, clock))
    endpoints = [seen[-1].endpoint(reads) for reads in ENDPOINTS]
    state, reason = next((endpoint for endpoint in endpoints if endpoint[0] is not QueueState.ENABLED), endpoints[0])
    return EnableResult(table.name, state.value, reason)


def disable(table: QueueTable, clock: Clock, reason: str = "", *, endpoint_only: bool = False) -> DisableResult:
    """Set the queue to OFF (spec SB-18, SB-19): no pass begins, and what is sent to it waits in ``transmission``.

    No event of the specification (its section 11, item 3); an act by name leaves ``POLICY_CHANGED``.

    A pass that runs finishes what it has claimed. The reader of the poison sub-queue goes on: it is an endpoint of its own.

    :param reason: why; people see its first 500 characters, as one line.
    :param endpoint_only: the endpoint alone is stopped (spec WMQ-27): no pass begins, and messages go on arriving in ``main``. One that is
        halted stays as it is.
    """
    off = QueueState.STOPPED if endpoint_only else QueueState.DISABLED
    why_off = " ".join(str(reason).encode("utf-8", "replace").decode().split()) or _BY_HAND
    seen: list[Control] = []

    def change(control: Control) -> Control:
        seen.append(control)
        if control.state is QueueState.DISABLED or (endpoint_only and control.state is not QueueState.ENABLED):
            return control
        why = why_off
        if control.state is not QueueState.ENABLED:
            why = f"{why}; it was {control.state.value} before: {control.reason}"
        return replace(control, state=off, reason=why[:LONGEST_REASON])

    def events(before: Control, after: Control) -> list[Event]:
        by_name = is_anybody_acting() and before.state is not after.state
        return [Event(EventType.POLICY_CHANGED, clock.now(), details={"state": after.state.value})] if by_name else []

    table.alter(change, events)
    return DisableResult(table.name, seen[-1].state.value, sum(claim.messages for claim in table.snapshot().claims))


def alter(
    table: QueueTable, clock: Clock, *, settings: Mapping[str, object], system: str | None = None, park_group: bool | None = None
) -> AlterResult:
    """Change some of the settings that are recorded in the queue, in one commit. They hold when an endpoint opens next (spec WMQ-23).

    A DAG that declares a policy for the queue records its own again at its next run.

    :param settings: values by name, in our words or the manual's, as JSON values: durations in seconds.
    :param system: the messaging system whose rules the queue has from now on, with these settings and its defaults for the others. The endpoint's
        counters begin anew and a block ends; messages keep their counts, and the queue its state. None: that which it has.
    :param park_group: whether messages wait behind earlier ones of their groups that have failed, from the next claim on. None: as it is recorded.
    Raises SettingError for a setting, a value or a system that is not allowed, also for a policy with which no group can be parked where they are,
    and MessageClaimedError for another system while a pass receives; then nothing has changed.
    """
    if not isinstance(park_group, bool | None):
        raise SettingError(PARK_GROUP, park_group, "True or False")
    snapshot = table.snapshot()
    replace(cast("Any", _altered(snapshot.control, settings, system)))  # made anew: one that is read from settings warns of nothing
    seen: list[Control] = []

    def change(control: Control) -> Control:
        seen.append(control)
        policy = _altered(control, settings, system)
        if policy.system != control.policy["system"]:
            _refuse_change_of_system(table, control, policy, clock)
            control = control.with_endpoint_counters({}).unblocked()
        desk = dict(control.desk) if park_group is None else parking(control.desk, park_group)
        if parks(desk):
            check_parking(table.name, policy, converses=snapshot.has_conversations or bool(control.services))
        kept = policy.counters_when_altered(control.endpoint_counters)
        return replace(control, policy=policy.to_dict(), desk=desk).with_endpoint_counters(kept)

    after = table.alter(change, lambda before, after: policy_changed(before, after, clock))
    return AlterResult(table.name, changed_settings(seen[-1], after))


def changed_settings(before: Control, after: Control) -> Mapping[str, tuple[object, object]]:
    """Return the settings whose value is another after a change, as JSON values: before and after."""
    changed: dict[str, tuple[object, object]] = {
        name: (before.policy.get(name), value) for name, value in after.policy.items() if before.policy.get(name) != value
    }
    parked = parks(before.desk), parks(after.desk)
    return changed if parked[0] is parked[1] else {**changed, PARK_GROUP: parked}


def set_park_group(table: QueueTable, clock: Clock, park_group: bool) -> bool:  # noqa: FBT001  (the setting's value)
    """Let messages of a queue wait behind earlier ones of their groups that have failed, or not any more, which is the default; return it.

    Raises what ``alter`` raises; nothing is written where it is recorded so.
    """
    if parks(table.snapshot().control.desk) is not park_group:
        alter(table, clock, settings={}, park_group=park_group)
    return park_group


def policy_changed(before: Control, after: Control, clock: Clock) -> Sequence[Event]:
    """Return the event of a change of the recorded policy; none when it is the same."""
    changed = changed_settings(before, after)
    text = "; ".join(f"{name}: {old} -> {new}" for name, (old, new) in changed.items())
    return [Event(EventType.POLICY_CHANGED, clock.now(), details={"system": str(after.policy["system"]), "changed": text})] if changed else []


def receiving(control: Control, reads: SubQueue) -> Control:
    """Return the row with one of the queue's endpoints enabled."""
    if reads is SubQueue.POISON:
        return replace(control, poison_state=QueueState.ENABLED, poison_reason="")
    return replace(control, state=QueueState.ENABLED, reason="")


def started(before: Control, after: Control, clock: Clock) -> Sequence[Event]:
    """Return an event for each endpoint that receives again."""
    states = [(before.endpoint(reads)[0], after.endpoint(reads)[0]) for reads in ENDPOINTS]
    return tuple(Event(STARTED[old], clock.now()) for old, new in states if new is QueueState.ENABLED and old is not new)


def _altered(control: Control, settings: Mapping[str, object], system: str | None) -> Policy:
    if not isinstance(settings, Mapping):
        raise SettingError("settings", settings, "values by name, for example {'max_retry_cycles': 2}")
    if settings.get("system", control.policy["system"]) != control.policy["system"] and system is None:
        raise SettingError(
            "system", settings["system"], f"{control.policy['system']}, the queue's; another one is given as system, beside the settings"
        )
    if system is None or system == control.policy["system"]:
        return policy_from_dict(control.policy).altered(settings)
    return policy_from_dict({**settings, "system": system})


def _refuse_change_of_system(table: QueueTable, control: Control, policy: Policy, clock: Clock) -> None:
    """Raise an error where another system would leave something without rules: a pass that runs, services, a queue without a reader."""
    if policy.reads is not SubQueue.MAIN:
        raise SettingError("system", policy.system, f"the system of a queue; {policy.system} reads the sub-queue {policy.reads}, and needs none")
    if control.services and not policy.locks_groups:
        raise SettingError(
            "system", policy.system, f"one with conversations, for the queue has the services {', '.join(control.services)}; drop them first"
        )
    if any(claim.expires_at > clock.now() for claim in table.snapshot().claims):
        raise MessageClaimedError(
            f"Queue {table.name!r} is being received under the rules of {control.policy['system']}. Try again when that pass has ended. "
            "Nothing has changed."
        )


# Declared by a DAG -----------------------------------------------------------------------------------------------------


def declare(store: QueueStore, queue: str, policy: Policy, clock: Clock, run: str | None = None) -> QueueTable:
    """Return the queue, made when it is missing; its control row names this policy.

    The state (enabled, faulted …) of a queue that exists is never touched: that is people's decision. A new one begins as its policy says
    (spec WMQ-27). Other settings than the recorded ones are recorded, with an event and a warning in the log.

    Raises SettingError for what is no policy, QueueNameError, StoreUnreachableError, NewerFormatError, and SystemChangeError for a policy of
    another messaging system.
    """
    checked_policy(policy)
    settings = policy.to_dict()
    control, halted = Control(settings), policy.starts_halted
    if halted is not None:
        control = Control(settings, QueueState(halted), f"its policy says that it begins {halted.value}: enable it to start receiving")
    table = store.create(queue, control)
    recorded: list[Event] = []

    def change(control: Control) -> Control:
        _refuse_other_system(queue, control, policy)
        return replace(control, policy=settings)

    def events(before: Control, after: Control) -> Sequence[Event]:
        recorded[:] = [signed(event, run) for event in policy_changed(before, after, clock)]
        return recorded

    if dict(table.snapshot().control.policy) != settings:
        table.alter(change, events)
    for event in recorded:
        log.warning("Queue %r has other settings now, which this run declares: %s", queue, event.details["changed"])
    return table


def open_declared(store: QueueStore, queue: str, policy: Policy | None, clock: Clock, run: str | None = None) -> QueueTable:
    """Return a queue that verbs work on.

    :param policy: makes the queue when it is missing and is recorded in it; a reader of a sub-queue does not rule the queue, so its policy is not.
    :param run: who declares the policy, for the event of a change.
    Raises QueueNotFoundError, SettingError for what is no policy, and SystemChangeError for a policy of another messaging system.
    """
    policy = checked_policy(policy)
    if policy is None:
        return store.open(queue)
    if policy.reads is not SubQueue.MAIN:
        try:
            return store.open(queue)
        except QueueNotFoundError as error:
            raise QueueNotFoundError(f"{error} {policy.system} reads the sub-queue {policy.reads} of a queue that exists, and makes none.") from error
    return declare(store, queue, policy, clock, run)


def _refuse_other_system(queue: str, control: Control, policy: Policy) -> None:
    recorded = control.policy.get("system")
    if recorded in SYSTEMS and recorded != policy.system:  # what no system of ours has recorded has no rules to keep
        raise SystemChangeError(
            f"Queue {queue!r} has the rules of {recorded}, and the policy given here has those of {policy.system}: its messages are counted by the "
            "rules of the first. Nothing was changed, received or sent. Correct the policy or the queue's name; if the queue is to change its "
            f"system, alter it first: 'airflow poison alter {queue} --system {policy.system}', or QueueAlterOperator(queue_name={queue!r}, "
            f"action='alter', system={policy.system!r})."
        )


# Restarts: what one of the endpoint, of the application's host or of the broker does to what a queue remembers --------

_STARTS_AGAIN = frozenset({QueueState.STOPPED, QueueState.FAULTED})


@dataclass(frozen=True, slots=True)
class RestartResult(Plain):
    """What a restart did.

    :param before: the state of the queue's endpoint before; ``after``: now.
    :param forgotten: messages whose counts are others now.
    :param returned: messages that waited because their destination was blocked, and that are in ``main`` now.
    """

    queue: str
    what: str
    before: str
    after: str
    counters: Mapping[str, int] = field(default_factory=dict)
    forgotten: int = 0
    returned: int = 0


def restart(table: QueueTable, clock: Clock, what: Restart) -> RestartResult:
    """Restart an endpoint, its host or the broker, as far as the queue is concerned. What each one forgets is the system's to say.

    ``ENDPOINT`` and ``SERVER`` start a stopped or faulted endpoint. ``BROKER`` (database engine, messaging engine, queue manager) starts none that
    was not open; it ends every block (spec DMP-10, section 11.1) and takes from messages the counts that were only in memory (spec DMP-19,
    ZOS-5), all in one commit. A disabled queue stays disabled: that is durable. Subscriptions, alerts among them, forget nothing.

    Raises MessageClaimedError while a pass receives: its endpoint is open, and would write over this what it remembers.
    """
    return _restart_broker(table) if what is Restart.BROKER else _restart_endpoint(table, clock, what)


def _restart_endpoint(table: QueueTable, clock: Clock, what: Restart) -> RestartResult:
    if any(claim.expires_at > clock.now() for claim in table.snapshot().claims):
        raise MessageClaimedError(_received(table.name))
    seen: list[Control] = []

    def change(control: Control) -> Control:
        seen.append(control)
        return _started(_forgetting(control, what))

    after = table.alter(change, lambda before, after: started(before, after, clock))
    return RestartResult(table.name, what.value, seen[-1].state.value, after.state.value, dict(after.endpoint_counters))


def _restart_broker(table: QueueTable) -> RestartResult:
    def act() -> RestartResult:
        snapshot = table.snapshot()
        if snapshot.claims:
            raise MessageClaimedError(_received(table.name))
        reach("pass.restart.before_change")
        policy, counted, rows = policy_from_dict(snapshot.control.policy), Counter[str](), list[Control]()

        def change(control: Control) -> Control:
            rows.append(_forgetting(control, Restart.BROKER).unblocked())
            return rows[-1]

        table.replace_files(_changes(table, snapshot.files, policy, counted), [], change=change, alone=True)
        state, counters = rows[-1].state.value, dict(rows[-1].endpoint_counters)
        return RestartResult(table.name, Restart.BROKER.value, state, state, counters, counted["forgotten"], counted["returned"])

    return planned_anew(act)


def _received(queue: str) -> str:
    return (
        f"Queue {queue!r} is being received: its endpoint is open and cannot be restarted from outside. Try again when that pass has ended; "
        "if its run was killed, run the receive task again first: it finishes what that one left. Nothing has changed."
    )


# What is forgotten ----------------------------------------------------------------------------------------------------


def _forgetting(control: Control, what: Restart) -> Control:
    counters = control.endpoint_counters
    return control.with_endpoint_counters(policy_from_dict(control.policy).counters_after(counters, what)) if counters else control


def _started(control: Control) -> Control:
    for reads in ENDPOINTS:
        if control.endpoint(reads)[0] in _STARTS_AGAIN:
            control = receiving(control, reads)
    return control


def _changes(table: QueueTable, files: tuple[DataFile, ...], policy: Policy, counted: Counter[str]) -> Iterator[Replacement]:
    """Yield the files whose messages have other counts or another place afterwards."""
    table.bring(files)
    for file in files:
        returns = file.sub_queue == SubQueue.POSTPONED
        rows = table.read(file, ["abort_count", "last_error"] if returns else ["abort_count"])
        counts = {number: policy.counts_after(before, Restart.BROKER) for number, before in _counts(rows, file).items()}
        forgotten = any(after != Counts(number, file.move_count) for number, after in counts.items())
        if forgotten or (returns and any(_blocked(rows))):
            yield Replacement(file, _restarted(table.read(file), counts, counted))


def _counts(rows: pa.Table, file: DataFile) -> dict[int, Counts]:
    return {number or 0: Counts(number or 0, file.move_count) for number in pc.unique(rows["abort_count"]).to_pylist()}


def _blocked(rows: pa.Table) -> list[bool]:
    """Return which messages of ``postponed`` wait because their destination is blocked; the others were given back by a handler."""
    return [error is None or error["kind"] != FailureKind.POSTPONED for error in rows["last_error"].to_pylist()]


def _restarted(rows: pa.Table, counts: Mapping[int, Counts], counted: Counter[str]) -> pa.Table:
    before = [number or 0 for number in rows["abort_count"].to_pylist()]
    after = [counts[number] for number in before]
    places = rows["sub_queue"].to_pylist()
    moves = rows["move_count"].to_pylist()
    if places[0] == SubQueue.POSTPONED:
        blocked = _blocked(rows)
        places = [SubQueue.MAIN.value if waits else place for waits, place in zip(blocked, places, strict=True)]
        counted["returned"] += sum(blocked)
    counted["forgotten"] += sum(new != Counts(old, move or 0) for new, old, move in zip(after, before, moves, strict=True))
    return with_columns(rows, abort_count=[one.abort_count for one in after], move_count=[one.move_count for one in after], sub_queue=places)
