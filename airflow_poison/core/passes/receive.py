"""Receive: one pass over a queue. Claim, deliver, one final commit."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from airflow_poison.core.delivery.ends import HALT_EVENTS
from airflow_poison.core.delivery.handlers import resolve_handler
from airflow_poison.core.delivery.sessions import platform
from airflow_poison.core.delivery.sessions.begun import Begun, Forced
from airflow_poison.core.delivery.sessions.blame import read_journals, read_story
from airflow_poison.core.delivery.sessions.child import load_types
from airflow_poison.core.delivery.sessions.session import check_isolation
from airflow_poison.core.delivery.sessions.tries import BEGUN
from airflow_poison.core.delivery.stage import Order, StageJob
from airflow_poison.core.delivery.tally import KEPT, LEFT, SENT_ON, Tally
from airflow_poison.core.errors import ConservationError, QueueHaltedError
from airflow_poison.core.events import Event
from airflow_poison.core.fault_points import reach
from airflow_poison.core.message import EVENT, SubQueue
from airflow_poison.core.passes.giving_up import INTERRUPTS, given_up
from airflow_poison.core.passes.keys import check_key
from airflow_poison.core.passes.relay import relay
from airflow_poison.core.passes.return_due import return_held, return_postponed
from airflow_poison.core.passes.telling import Telling
from airflow_poison.core.policies.decisions import Halted
from airflow_poison.core.policies.opening import Access, Opening
from airflow_poison.core.policies.restarts import Restart
from airflow_poison.core.store.seam import NOT_BEFORE_RESTART, QueueState
from airflow_poison.core.store.unreachable import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.delivery.handlers import HandlerLike, HandlerRef
    from airflow_poison.core.delivery.sessions.carry import Carry
    from airflow_poison.core.delivery.tally import BlockRecord, HaltRecord
    from airflow_poison.core.passes.engine import Engine
    from airflow_poison.core.policies.seam import Policy
    from airflow_poison.core.store.seam import Claim, Control, Manifest, QueueStore, QueueTable

LEASE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class ReceiveResult:
    """What a pass did. All numbers are messages unless they say otherwise.

    ``received = settled + parked + poisoned + postponed + dropped + rejected + dead_lettered + requeued + exceptioned + untouched + blocked +
    halted_messages``.

    :param requeued: sent to the backout queue (spec WMQ-10); ``exceptioned``: to the exception destination (spec DMP-7).
    :param deliveries: calls of the handler.
    :param rollbacks: deliveries that were rolled back and counted; ``crashes`` and ``timeouts`` are among them.
    :param untouched: not reached before the endpoint halted; they are where they were.
    :param halted: what halted the endpoint: ``{"how", "lookup_id", "error", "details", ...}``, or None.
    :param blocked_until: the queue is blocked until then, ISO 8601 in UTC, or ``restart``: until the broker restarts or the message is removed.
    :param counters: what the endpoint leaves behind for the next one.
    :param sent_on: messages that have arrived in other queues, by queue; those of an earlier run that was killed before it could send them, too.
    :param errors: the commonest failures: ``{"error", "messages", "fingerprint"}``.
    :param passes: claims that this run finished; more than one when it also finished the claim of a dead run.
    """

    queue: str
    key: str
    received: int = 0
    settled: int = 0
    parked: int = 0
    poisoned: int = 0
    postponed: int = 0
    dropped: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    requeued: int = 0
    exceptioned: int = 0
    untouched: int = 0
    blocked: int = 0
    halted_messages: int = 0
    deliveries: int = 0
    rollbacks: int = 0
    crashes: int = 0
    timeouts: int = 0
    halted: HaltRecord | None = None
    blocked_until: str | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    sent_on: Mapping[str, int] = field(default_factory=dict)
    errors: tuple[Mapping[str, object], ...] = ()
    passes: int = 0
    seconds: float = 0.0

    @property
    def messages_per_second(self) -> float:
        """Received messages in each second of the pass."""
        return self.received / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self) | {"errors": [dict(error) for error in self.errors], "messages_per_second": round(self.messages_per_second, 1)}


@dataclass(frozen=True, slots=True)
class ReceivePass:
    """The parts of a pass that stay the same for all its claims.

    :param table: the queue.
    :param policy: its rules.
    :param handler: an importable name (``"shop.arrivals:land"``) or a callable.
    :param engine: makes the engine when there is something to deliver; never called otherwise, so an empty pass starts no JVM.
    :param max_messages: how many messages a pass claims at most.
    :param isolation: ``process`` or ``none``.
    :param unprocessable: exception types (``"module:Type"``) that go to the final disposition at once.
    :param progress: told one line now and then.
    :param interrupts: what is no Exception and may end a pass, which then gives its claim up as after an error.
    :param store: where rejected messages go to their dead-letter queues; without it they wait in the queue's outbox for the next pass that has one.
    """

    table: QueueTable
    policy: Policy
    handler: HandlerLike
    engine: Callable[[], Engine]
    clock: Clock
    max_messages: int = 10_000_000
    isolation: str = "process"
    unprocessable: tuple[str, ...] = ()
    lease: timedelta = LEASE
    record_all: bool = False
    progress: Callable[[str], None] = field(default=lambda _line: None)
    store: QueueStore | None = None
    interrupts: tuple[type[BaseException], ...] = INTERRUPTS

    def run(self, key: str) -> ReceiveResult:
        """Receive what is in the queue now, once.

        :param key: the run key; running it again finishes an unfinished claim of its own, or receives what is there then.
        Raises HandlerNotFoundError and SettingError before anything is claimed, QueueHaltedError when the queue is not enabled,
        ConservationError, ClaimLostError and TableChangedError with nothing committed.
        """
        check_key(key)
        handler = resolve_handler(self.handler)
        check_isolation(self.isolation)
        load_types(self.unprocessable)
        started = time.monotonic()
        self._refuse_halted()
        if not self.policy.server_sessions:  # nobody reads (spec SB-23)
            return ReceiveResult(self.table.name, key)
        if (until := self.table.snapshot().control.blocked_until(self.clock.now())) is not None:
            return ReceiveResult(self.table.name, key, blocked_until=_instant(until))
        return_held(self.table, self.clock.now())
        return_postponed(self.table, self.clock.now())
        self._prepare(handler)
        tallies, sent_on = list[Tally](), Counter[str]()
        claim_key = self._next_key(key)
        for claim in self._of_the_dead(claim_key):
            self.progress(f"taking over the claim of a dead run: {claim.messages} messages")
            mine = self.table.take_over(claim, lease=self.lease, now=self.clock.now())
            if mine is not None:
                tallies.append(self._finish(mine, handler, crashed=True))
        if not any(tally.halt or tally.block for tally in tallies):
            own = self.table.claim(
                claim_key,
                lease=self.lease,
                now=self.clock.now(),
                max_messages=self.max_messages,
                exclusive=self._exclusive,
                sub_queue=self.policy.reads,
            )
            if own is not None:
                tallies.append(self._finish(own, handler, crashed=bool(own.earlier)))
        reach("pass.receive.before_relay")
        if self.store is not None:
            relay(self.store, self.table, self.clock, lambda queue, messages: sent_on.update({queue: messages}))
        return combined(self.table.name, key, tallies, sent_on, time.monotonic() - started)

    def _prepare(self, handler: HandlerRef) -> None:
        """When there is something to claim, have the engine see whether it can deliver it, before it is claimed. Raises ExecutorError."""
        snapshot, reads = self.table.snapshot(), self.policy.reads
        others = [claim for claim in snapshot.claims if claim.files[0].sub_queue == reads]
        claimed = {file.path for claim in others for file in claim.files}
        if any(claim.exclusive or self._exclusive for claim in others):
            return
        if any(file.sub_queue == reads and file.path not in claimed for file in snapshot.files):
            prepare = getattr(self.engine(), "prepare", None)
            if prepare is not None:
                prepare(self.table, handler)

    @property
    def _exclusive(self) -> bool:
        return self.policy.halting or self.policy.locks_groups

    def _refuse_halted(self) -> None:
        state, reason = self.table.snapshot().control.endpoint(self.policy.reads)
        if state is not QueueState.ENABLED:
            raise QueueHaltedError(
                f"Queue {self._endpoint!r} is {state.value}: {reason or 'somebody set it so'}. "
                "Look at the message, remove it or mend its cause, then enable the queue; nothing is received until then."
            )

    def _of_the_dead(self, own: str) -> list[Claim]:
        """Return the expired claims of other runs of this endpoint; those of another endpoint want its policy and its handler."""
        expired = self.table.expired(self.clock.now())
        return [claim for claim in expired if claim.key != own and claim.files[0].sub_queue == self.policy.reads]

    def _next_key(self, key: str) -> str:
        """Return the key of the first pass of this run that has not finished."""
        ordinal = 0
        while self.table.result(f"{key}-{ordinal}") is not None:
            ordinal += 1
        return f"{key}-{ordinal}"

    def _finish(self, claim: Claim, handler: HandlerRef, *, crashed: bool) -> Tally:
        """Deliver what the claim leaves open and commit; resumes where an earlier holder stopped.

        :param crashed: there was an earlier holder: what its endpoint had in memory is lost.
        """
        reach("pass.receive.before_delivery")
        manifest = self.table.manifest(claim)
        held = _Held(self.table, claim, self.lease, self.clock)
        if manifest is None:
            found = self.table.snapshot().control.endpoint_counters
            with given_up(self.table, lambda: held.claim, self.clock, self.progress, self.interrupts):
                earlier = self._deliver(held, handler, self._opening(found, crashed=crashed))
            manifest = self.table.seal(held.claim, lambda staged: _account(held.claim, staged, found, earlier))
        tally = Tally.from_record(manifest.result)
        events = () if tally.halt is None else (self._halt_event(tally.halt),)
        self.table.finish(held.claim, manifest, change=lambda control: self._after(control, tally), events=events, now=self.clock.now())
        return tally

    def _opening(self, found: Mapping[str, int], *, crashed: bool) -> Opening:
        """Return what the endpoint finds when it opens."""
        kept = self.policy.counters_after(found, Restart.SERVER) if crashed else found
        return Opening(self.table.name, dict(kept), _access(self.store, self.policy))

    def _after(self, control: Control, tally: Tally) -> Control:
        """Return what the queue's control row says after the pass."""
        if self.policy.reads is SubQueue.MAIN:
            control = _blocked(control.with_endpoint_counters(tally.counters_over(control.endpoint_counters)), tally.block)
        if tally.halt is None:
            return control
        halt = tally.halt
        cause = f"message {halt['lookup_id']} of queue {self._endpoint!r} halted it" if halt["lookup_id"] is not None else "it was halted"
        reason = f"{cause}: {halt['error'] or halt['details'].get('text') or 'its delivery attempts are exhausted'}"
        return control.halted(self.policy.reads, QueueState(halt["how"]), reason[:500], halt["lookup_id"])

    def _halt_event(self, halt: HaltRecord) -> Event:
        """Return the endpoint's own event, one for each halt, whatever the number of tasks that met it."""
        at, how = datetime.fromisoformat(halt["at"]), Halted(halt["how"])
        facts = {"place": "", "endpoint": self._endpoint, "system": self.policy.system} | ({"error": halt["error"]} if halt["error"] else {})
        return Event(HALT_EVENTS[how], at, halt["lookup_id"], halt["abort_count"], halt["move_count"], {**facts, **halt["details"]})

    @property
    def _endpoint(self) -> str:
        """The name of what is read, as people write it: ``orders`` or ``orders;poison``."""
        reads = self.policy.reads
        return self.table.name if reads is SubQueue.MAIN else f"{self.table.name};{reads}"

    def _deliver(self, held: _Held, handler: HandlerRef, opening: Opening) -> Carry:
        """Deliver what earlier tries have left open; return what they, and the messages that were delivered alone, had come to."""
        claim, order = held.claim, _order(self.policy)
        stage = Path(self.table.stage(claim))
        folder = stage / "journal"  # made with the claim: a holder that was shut out must not make it anew
        story = read_story([Path(path) for path in self.table.journals(claim)])
        ordered = order is not Order.NONE
        forced = story.careful or (ordered and bool(story.alone) and story.outdated)
        singly = forced or (ordered and bool(story.alone))
        job = StageJob(
            queue=self.table.name,
            policy=self.policy,
            handler=handler,
            journal_folder=str(folder),
            clock=self.clock,
            read_from=self.policy.reads,
            isolation=self.isolation,
            unprocessable=self.unprocessable,
            record_all=self.record_all,
            opening=opening,
            order=Order.QUEUE if ordered and singly else order,
            stop_file=str(stage / "halted") if self.policy.spreads_groups else None,
            alone=story.alone,
            singly=singly,
            forced=forced,
        )
        engine, telling = self.engine(), Telling(job.journal_folder, self._endpoint, claim.messages, self.progress)
        with self._begun(claim, engine, job), telling:
            keep_alive = telling.beating(held.keep_alive)
            carry = story.carry
            if story.alone and not ordered:
                self.progress(f"delivering {len(story.alone)} messages alone that were with their handlers when everything died")
                alone = replace(job, only=story.alone, singly=True, forced=True, carry=_saved(carry, stage))
                engine.run(self.table, claim, alone, keep_alive=keep_alive)
                carry = carry.merged(read_journals([folder]))
                reach("pass.receive.after_alone")
            engine.run(self.table, claim, replace(job, carry=_saved(carry, stage)), keep_alive=keep_alive)
        return carry

    @contextmanager
    def _begun(self, claim: Claim, engine: Engine, job: StageJob) -> Iterator[None]:
        """Write down that a delivery begins, before it does; take that back where this process lives to see that no journal was lost."""
        folder, local = Path(job.journal_folder), getattr(engine, "local", False)
        machine = platform.machine() if local else ""
        forced = (Forced.SECTIONS if job.policy.stateless else Forced.MARKS) if job.forced else Forced.NOTHING
        self.table.begin(claim, Begun(machine, forced).told())
        try:
            yield
        except BaseException:
            journals = [*folder.glob("*.journal")]
            if local or not journals:
                with suppress(OSError):  # it stays then, and others ask themselves what became of this try
                    platform.force_files(folder, journals)
                    (folder.parent / BEGUN).unlink()
            raise


def _saved(carry: Carry, stage: Path) -> str | None:
    """Write what tasks have to know into the stage; return where, None when there is nothing."""
    if not len(carry.lookup_ids):
        return None
    path = stage / "carry.npy"
    with named(str(stage)):
        carry.save(path)
    reach("pass.receive.after_carry")
    return str(path)


def _order(policy: Policy) -> Order:
    if policy.spreads_groups:
        return Order.GROUPS
    return Order.QUEUE if policy.halting else Order.NONE


def _access(store: QueueStore | None, policy: Policy) -> Mapping[str, Access]:
    """Return which of the queues that the policy wants to exist do not."""
    if store is None or not policy.destinations:
        return {}
    there = set(store.names())
    return {name: Access.MISSING for name in policy.destinations if name not in there}


def _blocked(control: Control, block: BlockRecord | None) -> Control:
    if block is None:
        return control.unblocked()
    until = datetime.fromisoformat(block["until"]) if block["until"] else NOT_BEFORE_RESTART
    return control.blocked(block["lookup_id"], until)


def _instant(until: datetime) -> str:
    return "restart" if until == NOT_BEFORE_RESTART else until.isoformat()


class _Held:
    """A claim that is renewed when a third of its lease is over."""

    def __init__(self, table: QueueTable, claim: Claim, lease: timedelta, clock: Clock) -> None:
        self.claim = claim
        self._table, self._lease, self._clock = table, lease, clock

    def keep_alive(self) -> None:
        now = self._clock.now()
        if self.claim.expires_at - now < self._lease * 2 / 3:
            self.claim = self._table.renew(self.claim, lease=self._lease, now=now)


def _account(claim: Claim, staged: Manifest, found: Mapping[str, int], earlier: Carry) -> Mapping[str, object]:
    """Add the tasks' tallies up and hold them against the claim. Raises ConservationError.

    :param found: the endpoint's counters that the pass has found in the queue; what a crash has lost of them is lost.
    :param earlier: what had happened before the tasks began: their words know all its attempts, but not which of them took too long.
    """
    total = Tally(Counter(timeouts=earlier.timeouts))
    for record in staged.tallies:
        total.add(Tally.from_record(record))
    if total.opened_with is not None:
        total.opened_with = dict(found)
    counts = total.counts
    rows = sum(file.rows for _, file in staged.files if file.sub_queue != EVENT)
    wanted = sum(counts[name] for name in (*KEPT, *SENT_ON, "reports"))
    ends = sum(counts[name] for name in ("committed", *KEPT, *LEFT))
    if not (claim.messages == counts["received"] == ends and rows == wanted):
        raise ConservationError(
            f"The pass {claim.key} claimed {claim.messages} messages, received {counts['received']}, accounted for {ends} "
            f"and staged {rows} rows where {wanted} were expected. Nothing was committed; the stage is kept for inspection."
        )
    return cast("Mapping[str, object]", total.to_record())


def combined(queue: str, key: str, tallies: Sequence[Tally], sent_on: Mapping[str, int], seconds: float) -> ReceiveResult:
    """Return the sum of the claims that a run finished.

    :param sent_on: messages that have arrived in other queues, by queue.
    """
    total = Tally()
    for tally in tallies:
        total.add(tally)
    counts = total.counts
    return ReceiveResult(
        queue=queue,
        key=key,
        received=counts["received"],
        settled=counts["committed"],
        parked=counts["parked"],
        poisoned=counts["poisoned"],
        postponed=counts["postponed"],
        dropped=counts["dropped"],
        rejected=counts["rejected"],
        dead_lettered=counts["dead_lettered"],
        requeued=counts["requeued"],
        exceptioned=counts["exceptioned"],
        blocked=counts["blocked"],
        untouched=counts["untouched"],
        halted_messages=counts["halted"],
        deliveries=counts["deliveries"],
        rollbacks=counts["rollbacks"],
        crashes=counts["crashes"],
        timeouts=counts["timeouts"],
        halted=total.halt,
        blocked_until=None if total.block is None else total.block["until"] or "restart",
        counters=total.counters,
        sent_on=dict(sent_on),
        errors=tuple({"fingerprint": fingerprint, "error": text, "messages": number} for fingerprint, text, number in total.commonest_errors(5)),
        passes=len(tallies),
        seconds=seconds,
    )
