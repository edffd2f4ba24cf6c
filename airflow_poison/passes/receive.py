"""Receive: one pass over a queue. Claim, deliver, one final commit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Self, cast

from airflow_poison.delivery.handlers import Transformation, check_alone, check_policy, load_types, refuse_dialogs, resolve_handler
from airflow_poison.delivery.session import check_isolation
from airflow_poison.delivery.stage import KEPT, LEFT_THE_QUEUE, SENT_ON, BlockRecord, OutageRecord, Tally
from airflow_poison.passes.declaration import Receive
from airflow_poison.passes.delivering import INTERRUPTS, ClaimKeeper, Delivering, released_on_error
from airflow_poison.passes.dialogs import notify
from airflow_poison.passes.due import return_held, return_postponed
from airflow_poison.passes.engines import Engine, SupervisedEngine
from airflow_poison.passes.halts import WHEN_ENABLED, halt_event, halted_row
from airflow_poison.passes.in_place import check_in_place, take_in_place, with_columns_of
from airflow_poison.passes.land import land, prepared
from airflow_poison.passes.relay import pull, refresh, relay, tick, transmit
from airflow_poison.passes.runs import ReceiveResult, check_key, combined, finished, pass_key
from airflow_poison.passes.spans import check_spans, follow, rollback_counts, spread
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.policy import Access, Opening, Policy, Restart
from airflow_poison.rules.service_broker import of_queue
from airflow_poison.store.control import NOT_BEFORE_RESTART, Control, OutageState, QueueState
from airflow_poison.store.parking import Behind, check_parking, parks, parts
from airflow_poison.values.errors import ClaimLostError, ConservationError, QueueHaltedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.masking import Masking
from airflow_poison.values.schema import CONVERSATION, EVENT, LANDING, TRANSMISSION_QUEUE, SubQueue, place_name
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from airflow_poison.delivery.handlers import HandlerLike, HandlerRef
    from airflow_poison.delivery.outage import OutageVerdict
    from airflow_poison.delivery.recovered import RecoveredAttempts
    from airflow_poison.outputs.output import Output
    from airflow_poison.store import QueueStore
    from airflow_poison.store.files import Claim, DataFile, Manifest, Snapshot
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

LEASE = timedelta(minutes=2)
SMALL_BYTES = 64 * 1024 * 1024
"""A claim with larger files is not small, however few messages it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivePass(Receive):
    """A receive on one queue: its settings, and the parts that stay the same for all its claims.

    :param policy: the rules that the queue has.
    :param engine: makes the pass's engine when there is something to deliver; never called otherwise, so an empty pass starts no JVM.
    :param interrupts: what is no Exception and may end a pass, which then gives its claim up as after an error.
    :param check_stopped: called whenever the claim is kept alive; what it raises ends the delivery.
    :param small_pass: a claim of so many messages (and 64 MiB) is delivered in this process, without the engine; 0: none is.
    :param before_claim: called before anything is claimed, by a pass that is about to look for messages of the application queue.
    :param store: where rejected messages go to their dead-letter queues; without it they wait in the queue's outbox for the next pass that has one.
        Its options serve outputs in an object store of the same kind.
    """

    table: QueueTable
    policy: Policy
    handler: HandlerLike | Transformation
    engine: Callable[[], Engine]
    clock: Clock
    lease: timedelta = LEASE
    record_all: bool = False
    progress: Callable[[str], None] = field(default=lambda _line: None)
    store: QueueStore | None = None
    interrupts: tuple[type[BaseException], ...] = INTERRUPTS
    check_stopped: Callable[[], object] = lambda: None
    small_pass: int = 0
    before_claim: Callable[[], object] = lambda: None

    @classmethod
    def of_table(cls, table: QueueTable, receive: Receive, **parts: Any) -> Self:
        """Return the pass of checked settings on a table; without a policy by the recorded one."""
        policy = receive.policy or policy_from_dict(table.snapshot().control.policy)
        return cls(**{**receive.settings(), "policy": policy}, table=table, **parts)

    def run(self, key: str) -> ReceiveResult:
        """Receive what is in the queue now, once.

        :param key: the run key; running it again finishes an unfinished claim of its own, or receives what is there then.
        Raises HandlerNotFoundError and SettingError before anything is claimed, QueueHaltedError when the queue is not enabled,
        ConservationError, ClaimLostError and TableChangedError with nothing committed.
        """
        check_key(key)
        handler = self._resolved()
        check_isolation(self.isolation)
        load_types(self.unprocessable)
        started = time.monotonic()
        snapshot = self.table.snapshot()
        if self.store is not None and snapshot.control.event_notifications:  # of a pass that has died, also when the queue is disabled
            notify(self.store, self.table, self.clock)
        landed = Counter(self._land()) if snapshot.landings else Counter[str]()
        if self.store is not None and follow(self.store, self.table, snapshot.control, self.clock):
            snapshot = self.table.snapshot()
        self._refuse_halted(snapshot)
        if self.spans:
            self.policy.check_spans(self.spans)
            check_spans(self.store, self.table, self.spans, self.clock)
        self._check_batches(snapshot)
        self._check_transformation(snapshot)
        self._check_parking(snapshot)
        if not self.policy.server_sessions:  # no reader (spec SB-23)
            return ReceiveResult(self.table.name, key, landed=dict(landed))
        if (until := snapshot.control.blocked_until(self.clock.now())) is not None:
            by, obstacle = snapshot.control.blocked_by, self.policy.obstacle
            return ReceiveResult(self.table.name, key, blocked_until=_instant(until), blocked_by=by, obstacle=obstacle, landed=dict(landed))
        if (waits := self._probed(snapshot.control)) is not None and waits.next_probe_at > self.clock.now():
            return ReceiveResult(self.table.name, key, outage=_record(waits), landed=dict(landed))
        outputs = prepared(self.outputs, self.store) if self.outputs else ()
        handler, in_place = self._in_place(handler, outputs, key)
        self._let_in(snapshot)
        try:
            tallies = self._finish_all(key, handler, outputs)
        except QueueHaltedError:  # it was halted meanwhile; rows that claims of dead runs have settled land all the same
            self._land()
            raise
        reach("pass.receive.before_relay")
        after = self.table.snapshot()
        sent_on = self._send_on(after)
        if after.landings:
            landed.update(self._land())
        behind = self.table.behind() if parks(after.control.desk, self.policy.reads) else Behind()
        total = combined(self.table.name, key, tallies, sent_on, time.monotonic() - started)
        held = [claim for claim in after.claims if claim.sub_queue == self.policy.reads]
        result = replace(
            total,
            landed=dict(landed),
            behind=behind.messages,
            behind_groups=behind.groups,
            held=sum(claim.messages for claim in held),
            held_until=max((_instant(claim.expires_at) for claim in held), default=None),
            in_place=in_place,
        )
        if result.not_landed:
            who = counted(result.not_landed, "delivery", "deliveries")
            self.progress(
                f"queue {self.table.name}: {who} returned rows, which are dropped: no output is declared. "
                "Declare output='/path/of/a/table' to keep them."
            )
        return result

    def _in_place(
        self, handler: HandlerRef | Transformation, outputs: Sequence[Output], key: str
    ) -> tuple[HandlerRef | Transformation, Mapping[str, int]]:
        """Transform what is new in the source where it is; return the transformation of rows that have become messages, and the counts of rows."""
        if not isinstance(handler, Transformation):
            return handler, {}
        did, named = ({}, {}) if self.source is None else take_in_place(self, self.source, handler, outputs, key)
        return replace(with_columns_of(self.table, handler), named=named), did

    def _land(self) -> Mapping[str, int]:
        return land(self.table, self.clock, self.deliver, self.store, self.progress)

    def _finish_all(self, key: str, handler: HandlerRef | Transformation, outputs: tuple[Output, ...]) -> list[Tally]:
        """Finish the claims of dead runs, then one of this run, unless a claim has ended receiving; return what was counted of each.

        A probe that succeeds ends the outage, and the run claims once more.
        """
        tallies, engine, claim_key = list[Tally](), cache(self.engine), pass_key(key, finished(self.table, key))
        waiting = self._waiting(claim_key)
        if waiting and not self._is_small(waiting):
            engine().prepare(self.table, handler, outputs)
        tallies += (self._finish(mine, engine, handler, outputs, crashed=True) for mine in self._taken_over(claim_key))
        while not any(tally.halt or tally.block or tally.outage for tally in tallies):
            snapshot = self.table.snapshot()
            probing = self._probed(snapshot.control)
            own = self._claimed(claim_key, probing, exclusive=self._exclusive(snapshot))
            if own is not None:
                tallies.append(self._finish(own, engine, handler, outputs, crashed=bool(own.earlier)))
            if own is None or probing is None or self._probed(self.table.snapshot().control) is not None:
                break
            self.progress("the probe has succeeded: the outage is over")
            claim_key = pass_key(key, finished(self.table, key))
        return tallies

    def _taken_over(self, own: str) -> Iterator[Claim]:
        """Take the claims of dead runs over, one after the other."""
        for claim in self._expired_claims(own):
            self.progress(f"taking over the claim of a dead run: {counted(claim.messages, 'message')}")
            mine = self.table.take_over(claim, lease=self.lease, now=self.clock.now())
            if mine is not None:
                yield mine

    def _claimed(self, key: str, probing: OutageState | None, *, exclusive: bool) -> Claim | None:
        """Claim what is there, or as much of it as a probe takes."""
        return self.table.claim(
            key,
            lease=self.lease,
            now=self.clock.now(),
            max_messages=self.max_messages if self.outage is None or probing is None else min(self.max_messages, self.outage.probe),
            exclusive=exclusive,
            sub_queue=self.policy.reads,
            probe=probing is not None,
        )

    def _probed(self, control: Control) -> OutageState | None:
        """Return the outage that this pass is to probe; None: there is none, or the pass looks for none and receives normally."""
        return None if self.outage is None else control.outage(self.policy.reads)

    def _check_batches(self, snapshot: Snapshot) -> None:
        """Raise SettingError where the handler takes batches, and this policy, this queue or this machine has none."""
        if self.batching is not None:
            self.batching.check_policy(self.policy)
            self.batching.check_here()
            if self._converses(snapshot):
                refuse_dialogs(self.batching, self.table.name)

    def _resolved(self) -> HandlerRef | Transformation:
        """Return what takes the messages, checked and ready to travel. Raises HandlerNotFoundError."""
        if isinstance(self.handler, Transformation):
            return self.handler.resolved()
        return resolve_handler(self.handler, returns_rows=bool(self.outputs))

    def _check_transformation(self, snapshot: Snapshot) -> None:
        """Raise SettingError for a transformation of messages whose deliveries have an order, and for settings of a handler."""
        if self.source is not None:
            check_in_place(self, snapshot, converses=self._converses(snapshot))
        if isinstance(self.handler, Transformation):
            kind = None if self.batching is None else self.batching.kind
            check_alone(batch=kind, isolation=self.isolation, unprocessable=self.unprocessable)
            check_policy(self.policy, self.handler, converses=self._converses(snapshot))

    def _check_parking(self, snapshot: Snapshot) -> None:
        """Raise SettingError where messages are to wait behind earlier ones of their groups, and cannot."""
        if parks(snapshot.control.desk, self.policy.reads):
            transforms = isinstance(self.handler, Transformation)
            check_parking(self.table.name, self.policy, converses=self._converses(snapshot), transforms=transforms)

    def _let_in(self, snapshot: Snapshot) -> None:
        """Let in what partners hold for the queue, what its timers and lifetimes have made (spec SB-19, SB-22), and what was kept for later."""
        if self.policy.reads is SubQueue.MAIN:
            self.before_claim()
        if self._converses(snapshot):
            if self.store is not None:
                pull(self.store, self.table, self.clock)
            tick(self.table, self.clock)
            snapshot = self.table.snapshot()
        there = {file.sub_queue for file in snapshot.files}
        if SubQueue.TRANSMISSION in there:
            return_held(self.table, self.clock.now())
        if SubQueue.POSTPONED in there:
            return_postponed(self.table, self.clock.now())

    def _send_on(self, snapshot: Snapshot) -> Mapping[str, int]:
        """Send on what the pass, or a dead one, has left for other queues; return how many messages have arrived in each."""
        sent_on = Counter[str]()

        def arrived(queue: str, messages: int) -> None:
            sent_on[queue] += messages

        if self.store is not None and snapshot.outbox:
            relay(self.store, self.table, self.clock, arrived)
        if self.store is not None and snapshot.transmissions:
            transmit(self.store, self.table, self.clock, arrived)
        if self.store is not None and snapshot.control.event_notifications:
            notify(self.store, self.table, self.clock, arrived)
        if snapshot.conversations:
            refresh(self.table, self.clock)
        return sent_on

    def _waiting(self, key: str) -> list[DataFile]:
        """Return the files that this pass would deliver: those of claims that it would resume, else unclaimed ones. Empty: nothing to do."""
        snapshot, reads, now = self.table.snapshot(), self.policy.reads, self.clock.now()
        claims = [claim for claim in snapshot.claims if claim.sub_queue == reads]
        if left := [claim for claim in claims if (claim.key == key or claim.expires_at <= now) and not self._is_sealed(claim)]:
            return [file for claim in left for file in claim.files]
        exclusive = self._exclusive(snapshot)
        if any(claim.key == key or (claim.expires_at > now and (claim.exclusive or exclusive)) for claim in claims):
            return []
        if parks(snapshot.control.desk, reads):
            return [part.file for part in parts(self.table, snapshot) if not part.waits.all()]
        claimed = snapshot.claimed_paths
        return [file for file in snapshot.files if file.sub_queue == reads and file.path not in claimed]

    def _is_small(self, files: Sequence[DataFile]) -> bool:
        """Whether these messages are delivered in this process."""
        few = min(sum(file.rows for file in files), self.max_messages) <= self.small_pass
        return few and sum(file.size for file in files) <= SMALL_BYTES and not isinstance(self.handler, Transformation)

    def _is_sealed(self, claim: Claim) -> bool:
        """Whether a claim of any holder wants no more than its commit; a loss of power may have taken its folder."""
        try:
            return self.table.manifest(claim) is not None
        except ClaimLostError:
            return False

    def _exclusive(self, snapshot: Snapshot) -> bool:
        return self.policy.halting or self.policy.locks_groups or self._converses(snapshot) or parks(snapshot.control.desk, self.policy.reads)

    def _converses(self, snapshot: Snapshot) -> bool:
        return self.policy.reads is SubQueue.MAIN and snapshot.has_conversations

    def _refuse_halted(self, snapshot: Snapshot) -> None:
        state, reason = snapshot.control.endpoint(self.policy.reads)
        if state is not QueueState.ENABLED:
            error = f"Error {QueueHaltedError.number}: " if self.policy.locks_groups else ""  # Service Broker's (spec SB-18)
            raise QueueHaltedError(
                f"{error}Queue {self.endpoint!r} is {state.value}: {reason or 'it was set so by hand'}. "
                f"Look at the message, remove it or mend its cause, then enable the queue; nothing is received until then. {WHEN_ENABLED}"
            )

    def _expired_claims(self, own: str) -> list[Claim]:
        """Return the expired claims of other runs of this endpoint; claims of another endpoint want its policy and its handler."""
        expired = self.table.expired(self.clock.now())
        return [claim for claim in expired if claim.key != own and claim.sub_queue == self.policy.reads]

    def _finish(
        self,
        claim: Claim,
        engine: Callable[[], Engine],
        handler: HandlerRef | Transformation,
        outputs: Sequence[Output],
        *,
        crashed: bool,
    ) -> Tally:
        """Deliver what the claim leaves open and commit; resumes where an earlier holder stopped.

        :param crashed: there was an earlier holder: what its endpoint had in memory is lost.
        """
        reach("pass.receive.before_delivery")
        manifest = self.table.manifest(claim)
        keeper = ClaimKeeper(self, claim)
        if manifest is None:
            snapshot = self.table.snapshot()
            others = rollback_counts(self._others())
            found = {**snapshot.control.endpoint_counters, **others}
            waits, opening = snapshot.control.outage(self.policy.reads), self._opening(found, crashed=crashed)
            expects = "" if self.outage is None or waits is None else waits.fingerprint
            with released_on_error(keeper):
                here = SupervisedEngine() if self._is_small(claim.files) else engine()
                ended = Delivering(
                    here,
                    keeper,
                    handler,
                    opening,
                    converses=self._converses(snapshot),
                    outputs=outputs,
                    expects=expects,
                    masking=Masking.recorded(snapshot.control.desk),
                    parks=parks(snapshot.control.desk, self.policy.reads),
                ).run()
            outage = None if ended.verdict is None else self._outage(ended.verdict, ended.given_back, waits)
            manifest = self.table.seal(
                keeper.claim, lambda staged: _account(keeper.claim, staged, found, ended.known, outage, probed=waits is not None)
            )
        tally = Tally.from_record(manifest.result)
        self.table.finish(
            keeper.claim,
            manifest,
            change=lambda control: self._after(control, tally),
            events=lambda control: [*self._halted(tally), *self._of_outage(control, tally)],
            now=self.clock.now(),
        )
        spread(self.store, self._others(), tally, self.clock)
        return tally

    def _others(self) -> Mapping[str, QueueTable]:
        """Return the other queues that the handler's transaction receives from."""
        return {} if self.store is None else {name: self.store.open(name) for name in self.spans}

    def _outage(self, verdict: OutageVerdict, given_back: int, before: OutageState | None) -> OutageRecord:
        every = timedelta(0) if self.outage is None else self.outage.every
        since = verdict.at if before is None else before.since.isoformat()
        next_at = self.clock.now() + every
        return OutageRecord(
            fingerprint=verdict.fingerprint, error=verdict.error, at=verdict.at, since=since, next_probe_at=next_at.isoformat(), given_back=given_back
        )

    def _halted(self, tally: Tally) -> Sequence[Event]:
        return () if tally.halt is None else (halt_event(tally.halt, self.endpoint, self.policy.system),)

    def _of_outage(self, control: Control, tally: Tally) -> Sequence[Event]:
        """Return the event of an outage that begins or is over with this commit: once, whatever the number of tasks and passes that met it."""
        known, endpoint = control.outage(self.policy.reads), {"place": "", "endpoint": self.endpoint, "system": self.policy.system}
        if tally.outage is not None:
            details = {name: tally.outage[name] for name in ("fingerprint", "error", "next_probe_at")}
            given_back = {"given_back": str(tally.outage["given_back"])}
            at = datetime.fromisoformat(tally.outage["at"])
            return () if known is not None else (Event(EventType.OUTAGE_BEGAN, at, details=endpoint | details | given_back),)
        if known is None or not _is_over(tally):
            return ()
        facts = {"since": known.since.isoformat(), "fingerprint": known.fingerprint}
        return (Event(EventType.OUTAGE_OVER, self.clock.now(), details=endpoint | facts),)

    def _opening(self, found: Mapping[str, int], *, crashed: bool) -> Opening:
        kept = self.policy.counters_after(found, Restart.SERVER) if crashed else found
        spans = tuple(name for name in self.spans if of_queue(name) in found)
        return Opening(self.table.name, dict(kept), _access(self.store, self.policy), spans)

    def _after(self, control: Control, tally: Tally) -> Control:
        if self.policy.reads is SubQueue.MAIN:
            kept = tally.counters_over(control.endpoint_counters)
            own = {name: number for name, number in kept.items() if name not in map(of_queue, self.spans)}
            control = _blocked(control.with_endpoint_counters(own), tally.block)
        if (found := tally.outage) is not None:
            since, next_at = (datetime.fromisoformat(found[name]) for name in ("since", "next_probe_at"))
            known = control.outage(self.policy.reads)
            control = control.with_outage(self.policy.reads, OutageState(known.since if known else since, next_at, found["fingerprint"]))
        elif _is_over(tally):
            control = control.with_outage(self.policy.reads, None)
        if tally.halt is None:
            return control
        return halted_row(control, self.policy.reads, tally.halt, self.endpoint)

    @property
    def endpoint(self) -> str:
        """The name of the place that is read, as people write it: ``orders`` or ``orders;poison``."""
        return place_name(self.table.name, self.policy.reads)


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


def _record(outage: OutageState) -> OutageRecord:
    """Return an outage for the result of a pass that has not delivered anything."""
    since, next_at = outage.since.isoformat(), outage.next_probe_at.isoformat()
    return OutageRecord(fingerprint=outage.fingerprint, error="", at=since, since=since, next_probe_at=next_at, given_back=0)


def _is_over(tally: Tally) -> bool:
    """Whether a pass that began in an outage has delivered without finding one."""
    return tally.probed and tally.outage is None and tally.counts["deliveries"] > 0


_BESIDE = frozenset({EVENT, CONVERSATION, LANDING, TRANSMISSION_QUEUE})
"""Partitions of rows that are staged beside the messages, and count for none of them."""


def _account(
    claim: Claim,
    staged: Manifest,
    found: Mapping[str, int],
    earlier: RecoveredAttempts,
    outage: OutageRecord | None = None,
    *,
    probed: bool = False,
) -> Mapping[str, object]:
    """Add the tasks' tallies up and hold them against the claim. Raises ConservationError.

    :param found: the endpoint's counters that the pass has found in the queue; what a crash has lost of them is lost.
    :param earlier: what had happened before the tasks began: their words know all its attempts, but not which of them took too long.
    :param outage: has ended the pass. The endpoint's counters are of failures in a row: they are as they were found, and begin anew where something
        has committed since.
    :param probed: an outage was known when the pass began.
    """
    total = Tally(Counter(timeouts=earlier.timeouts), outage=outage, probed=probed)
    for record in staged.tallies:
        total.add(Tally.from_record(record))
    if total.opened_with is not None:
        total.opened_with = dict(found)
    if outage is not None:
        total.close(found, {} if total.counts["committed"] else found)
    counts = total.counts
    rows = sum(file.rows for _, file in staged.files if file.sub_queue not in _BESIDE)
    wanted = sum(counts[name] for name in (*KEPT, *SENT_ON, "reports"))
    ends = sum(counts[name] for name in ("committed", *KEPT, *LEFT_THE_QUEUE))
    beside = {place: sum(file.rows for _, file in staged.files if file.sub_queue == place) for place in (CONVERSATION, LANDING, TRANSMISSION_QUEUE)}
    counted_rows = {CONVERSATION: counts["conversations"], LANDING: counts["landings"], TRANSMISSION_QUEUE: counts["transmissions"]}
    if not (claim.messages == counts["received"] == ends and rows == wanted and beside == counted_rows):
        raise ConservationError(
            f"The pass {claim.key} claimed {claim.messages} messages, received {counts['received']}, accounted for {ends} "
            f"and staged {rows} rows where {wanted} were expected, beside them {beside} where {counted_rows} were. Nothing was committed; "
            "the stage is kept for inspection."
        )
    return cast("Mapping[str, object]", total.to_record())
