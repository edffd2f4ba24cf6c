"""Restart: what a restart of the endpoint, of the application's host or of the broker does to what a queue remembers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from airflow_poison.core.errors import MessageClaimedError
from airflow_poison.core.failures import FailureKind
from airflow_poison.core.fault_points import reach
from airflow_poison.core.passes.alter import started
from airflow_poison.core.passes.halts import ENDPOINTS
from airflow_poison.core.passes.messages import planned_anew, with_columns
from airflow_poison.core.policies import policy_from_dict
from airflow_poison.core.policies.decisions import Counts
from airflow_poison.core.policies.opening import Restart
from airflow_poison.core.schema import SubQueue
from airflow_poison.core.store.control import Control, QueueState
from airflow_poison.core.store.files import Replacement
from airflow_poison.core.texts import Plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.policies.policy import Policy
    from airflow_poison.core.store.files import DataFile
    from airflow_poison.core.store.queue_table import QueueTable

_STARTS_AGAIN = frozenset({QueueState.STOPPED, QueueState.FAULTED})


@dataclass(frozen=True, slots=True)
class RestartResult(Plain):
    """What a restart did.

    :param what: what was restarted.
    :param before: the state of the queue's endpoint before; ``after``: now.
    :param counters: what the endpoint remembers now.
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
    return _restart_broker(table, clock) if what is Restart.BROKER else _restart_endpoint(table, clock, what)


def _restart_endpoint(table: QueueTable, clock: Clock, what: Restart) -> RestartResult:
    if any(claim.expires_at > clock.now() for claim in table.snapshot().claims):
        raise MessageClaimedError(_received(table.name))
    seen: list[Control] = []

    def change(control: Control) -> Control:
        seen.append(control)
        return _started(_forgetting(control, what))

    after = table.alter(change, lambda before, after: started(before, after, clock), clock.now())
    return RestartResult(table.name, what.value, seen[-1].state.value, after.state.value, dict(after.endpoint_counters))


def _restart_broker(table: QueueTable, clock: Clock) -> RestartResult:
    def act() -> RestartResult:
        snapshot = table.snapshot()
        if snapshot.claims:
            raise MessageClaimedError(_received(table.name))
        reach("pass.restart.before_change")
        policy, counted, rows = policy_from_dict(snapshot.control.policy), _Counted(), list[Control]()

        def change(control: Control) -> Control:
            rows.append(_forgetting(control, Restart.BROKER).unblocked())
            return rows[-1]

        table.replace_files(_changes(table, snapshot.files, policy, counted), [], clock.now(), change=change, alone=True)
        state, counters = rows[-1].state.value, dict(rows[-1].endpoint_counters)
        return RestartResult(table.name, Restart.BROKER.value, state, state, counters, counted.forgotten, counted.returned)

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
    """Return the row with every endpoint receiving that was stopped or faulted."""
    halted = {reads for reads in ENDPOINTS if control.endpoint(reads)[0] in _STARTS_AGAIN}
    if SubQueue.MAIN in halted:
        control = replace(control, state=QueueState.ENABLED, reason="")
    if SubQueue.POISON in halted:
        control = replace(control, poison_state=QueueState.ENABLED, poison_reason="")
    return control


@dataclass(slots=True)
class _Counted:
    forgotten: int = 0
    returned: int = 0


def _changes(table: QueueTable, files: tuple[DataFile, ...], policy: Policy, counted: _Counted) -> Iterator[Replacement]:
    """Yield the files whose messages have other counts or another place afterwards."""
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


def _restarted(rows: pa.Table, counts: Mapping[int, Counts], counted: _Counted) -> pa.Table:
    before = [number or 0 for number in rows["abort_count"].to_pylist()]
    after = [counts[number] for number in before]
    places = rows["sub_queue"].to_pylist()
    moves = rows["move_count"].to_pylist()
    if places[0] == SubQueue.POSTPONED:
        blocked = _blocked(rows)
        places = [SubQueue.MAIN.value if waits else place for waits, place in zip(blocked, places, strict=True)]
        counted.returned += sum(blocked)
    counted.forgotten += sum(new != Counts(old, move or 0) for new, old, move in zip(after, before, moves, strict=True))
    return with_columns(rows, abort_count=[one.abort_count for one in after], move_count=[one.move_count for one in after], sub_queue=places)
