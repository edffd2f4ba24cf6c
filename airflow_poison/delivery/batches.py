"""The delivering process's work on one batch for a handler of batches: all at once, and where that fails a search for the messages that are to blame.

A frame of several messages is one transaction. When the handler raises, it is rolled back uncounted and handed on in pieces, first of 100 to
1,000 messages, then in halves, until culprits stand alone; those go through the policy's ladder and the receive loop like any message. Where the
handler names the rows (PoisonRows), they are charged, and the rest is delivered again at once. What a process that ends was doing is in the
journal (``IN_BATCH``, ``SUSPECTED``, see journal.py); the next one goes on in smaller pieces.

Messages are handed over in row order, so that nothing behind a message that halts the endpoint is delivered. What is only put off until the others
are delivered (rows that were named, bodies that do not fit) are messages that cannot halt it.

Batches under policies that keep an order: messages that come next are one transaction, as if each had been delivered in its turn.

A copy of the receiver says which messages would be delivered one after the other if each of them commits. These go to the handler together. When it
returns, the decision is stored, and the receive loop takes their turns one by one, with nothing left to deliver. When it fails, the batch is
rolled back uncounted and its messages come again in smaller pieces; one that stands alone is the loop's, like any other.

Frames are what handlers see of the messages; bodies are parsed once, however often they are handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from airflow_poison.delivery.bodies import columns_of
from airflow_poison.delivery.culprits import OrderedSearch, unstable
from airflow_poison.delivery.journal import (
    COUNT_MASK,
    ONE_ATTEMPT,
    SETTLED,
    SMALL_BATCH,
    STATE_MASK,
    SUSPECTS,
    MessageState,
    Section,
    attempts_of,
    crashes_of,
    pending,
)
from airflow_poison.delivery.returned import NOTHING, keep_all, records_of
from airflow_poison.delivery.verdicts import MAX_TEXT, cut
from airflow_poison.delivery.wire import BatchCall, Call, Called, Handed
from airflow_poison.delivery.work import BatchDelivery, Endpoint, Ladder, Rung, Views, values_of
from airflow_poison.rules.decisions import Counts, Deliver, Halt
from airflow_poison.values.ddl import parse_ddl
from airflow_poison.values.failures import Failure, FailureKind, PoisonRows
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa
from airflow_poison.values.schema import FRAME_COLUMNS, LOOKUP_ID

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]  # its stubs are no dependency
    from numpy.typing import NDArray

    from airflow_poison.delivery.handlers import Batching
    from airflow_poison.delivery.host import BatchCallers, EndpointHost, EndpointSession
    from airflow_poison.delivery.rows import BatchEntry, Rows
    from airflow_poison.delivery.session import BatchRecord
    from airflow_poison.dialogs.services import Service
    from airflow_poison.rules.loop import ReceiveLoop
    from airflow_poison.values.errors import BodyError

_ORDER_DIED = {FailureKind.CRASH, FailureKind.TIMEOUT}


class OrderedBatches:
    """Receives the messages of one Arrow batch in order, many at once where that is the same."""

    def __init__(self, endpoint: EndpointSession, record: BatchRecord, host: EndpointHost, source: Rows, loop: ReceiveLoop[BatchEntry]) -> None:
        batching = endpoint.job.batching
        assert batching is not None, "its handler takes frames"
        self._endpoint, self._record, self._host, self._source, self._loop = endpoint, record, host, source, loop
        self.words, self._most = record.section.words, batching.size
        self._search = OrderedSearch(self._report_unstable)
        self._named: set[int] = set()
        suspects = {row: state for row, state in enumerate((record.initial & STATE_MASK).tolist()) if state in SUSPECTS}
        self._pieces = {row: SMALL_BATCH if state == MessageState.SUSPECTED else 1 for row, state in suspects.items()}

    def step(self) -> bool:
        """Carry out one transaction; False when there was nothing to receive, or the endpoint has halted."""
        if self._loop.halt is not None:
            return False
        now = self._host.now()
        entries, seen = self._ahead(now)
        if len(entries) > 1:
            self._several(entries, seen, now)
            return True
        return self._one()

    def _one(self) -> bool:
        """Have the loop carry out one transaction, and see whether it has charged a message."""
        following = self._source.ahead(1, lambda _entry: True)
        received = self._loop.step()
        for entry in following:
            self._search.over(entry.row)
            if attempts_of(self.words[entry.row]) or self.words[entry.row] & STATE_MASK in (MessageState.ENDED, MessageState.HALTED):
                self._search.charged()
        if not received:
            self._search.over(len(self.words))
        return received

    def _ahead(self, now: datetime) -> tuple[list[BatchEntry], list[Counts]]:
        """Return the messages that are delivered next, one after the other, if each of them commits, and the counts that they see."""
        receiver, seen, most, last = deepcopy(self._endpoint.receiver), list[Counts](), self._most, len(self.words)
        ended = False

        def fits(entry: BatchEntry) -> bool:
            nonlocal most, last, ended
            row = entry.row
            if not seen:
                most = min(self._search.most(row, most), self._pieces.get(row, most))
                last = self._search.last(last)
            if ended or len(seen) >= most or row > last or row in self._named or self.words[row] or self._pieces.get(row, most) < most:
                return False
            if self._host.unreadable(entry) is not None:
                return False
            imagined = copy(entry)
            decision = receiver.before(imagined, now)
            if not isinstance(decision, Deliver) or decision.at_most_once:
                return False
            imagined.counts = decision.counts
            seen.append(decision.counts)
            ended = receiver.transaction_committed([imagined]) is not None
            return True

        return self._source.ahead(self._most, fits), seen

    def _several(self, entries: Sequence[BatchEntry], seen: list[Counts], now: datetime) -> None:
        """Hand several messages over as one transaction."""
        rows = [entry.row for entry in entries]
        failure, named, returned = self._hand(rows, seen)
        if failure is None:
            if self._endpoint.keep is not None:
                records = records_of([entry.lookup_id for entry in entries], [0] * len(entries), returned)
                keep_all(self._endpoint.keep, records, partial(self._give_back, rows))
            self._commit(rows, now)
            return
        self._give_back(rows)
        if named:
            self._named |= {rows[place] for place in named}
            self._search.charged()
            return
        piece = (SMALL_BATCH if len(rows) > SMALL_BATCH else 1) if failure.kind in _ORDER_DIED else None
        self._search.failed(np.asarray(rows), f"{failure.type}: {failure.text}", piece)

    def _give_back(self, rows: list[int]) -> None:
        for row in rows:
            self.words[row] = MessageState.UNTOUCHED

    def _hand(self, rows: list[int], seen: list[Counts]) -> Handed:
        endpoint = self._endpoint
        endpoint.callers.prepare(0)
        endpoint.log.append_handed(self._record.section.number, len(rows), probe=bool(self._search) or rows[0] in self._pieces)
        for row in rows:
            self.words[row] = MessageState.IN_BATCH
        if endpoint.force is not None:
            endpoint.force()
        reach("delivery.batch.in_hand")
        return cast("BatchCallers", endpoint.callers).several(0, BatchCall(rows, seen))

    def _commit(self, rows: list[int], now: datetime) -> None:
        """Store that all are committed, then have the loop take their turns; it commits the last one last."""
        reach("delivery.batch.before_word")
        self.words[rows[-1]] = MessageState.DECIDED
        reach("delivery.batch.after_word")
        self._host.delivered, self._host.at = frozenset(rows), now
        try:
            for _ in rows:
                self._loop.step()
        finally:
            self._host.delivered, self._host.at = frozenset(), None
        self._search.over(rows[-1] + 1)

    def _report_unstable(self, rows: NDArray[np.intp], error: str) -> None:
        self._endpoint.log.append_unstable(self._record.section.number, unstable(self._record.lookup_ids[rows].tolist(), error))


_MOST: Mapping[int, int] = {MessageState.SUSPECTED: SMALL_BATCH, MessageState.SUSPECTED_ALONE: 1}
_DIED = "the process ended, or took longer than the transaction timeout"


class Frames:
    """Frames of one batch.

    :param rows: which rows may be asked for; no other body is parsed.
    :ivar failures: why bodies do not fit the schema, by row.
    """

    def __init__(self, batch: pa.RecordBatch, batching: Batching, rows: NDArray[np.intp]) -> None:
        self._batching = batching
        self.failures: dict[int, BodyError] = {}
        if batching.schema is None:
            self._table = pa.Table.from_batches([batch]).select(list(FRAME_COLUMNS))
            return
        is_all = len(rows) == batch.num_rows
        bodies = batch.column("body") if is_all else batch.column("body").take(rows)
        columns, failures = columns_of(bodies, parse_ddl(batching.schema))
        if not is_all:  # the others are null, so that a row has the same place everywhere
            places = np.full(batch.num_rows, -1)
            places[rows] = np.arange(len(rows))
            columns = columns.take(pa.array(places, pa.int64(), mask=places < 0))
            failures = {int(rows[place]): error for place, error in failures.items()}
        self._table, self.failures = columns.add_column(0, LOOKUP_ID, batch.column(LOOKUP_ID)).combine_chunks(), failures

    def frame(self, rows: NDArray[np.intp], counts: Callable[[], Sequence[Counts]]) -> Any:
        """Return the frame of some rows, ascending.

        :param counts: returns those that this delivery sees, where they are columns of the frame.
        """
        first, number = int(rows[0]), len(rows)
        table = self._table.slice(first, number) if int(rows[-1]) - first + 1 == number else self._table.take(rows)
        if self._batching.schema is None:
            seen = counts()
            for name in ("abort_count", "move_count"):
                column = pa.array([getattr(each, name) for each in seen], pa.int32())
                table = table.set_column(table.schema.get_field_index(name), name, column)
        return self._as_wanted(table)

    def lookup_ids(self, rows: NDArray[np.intp]) -> list[int]:
        """Return the lookup ids of some rows."""
        return cast("list[int]", self._table[LOOKUP_ID].take(rows).to_pylist())

    def _as_wanted(self, table: pa.Table) -> Any:
        if self._batching.kind == "pandas":
            return as_pandas(table)
        if self._batching.kind == "polars":
            import polars as pl

            return pl.from_arrow(table)
        return table


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """Return a table as a pandas DataFrame, each column of a dtype that its type decides, whether there is a null in it or not.

    Whole numbers, floats and booleans are of the nullable dtypes of pandas: a null is ``NA``, and no number goes through a float. What is nested is
    Python's own: lists, and dicts for structs and maps.
    """
    import pandas as pd

    dtypes = {
        pa.bool_(): pd.BooleanDtype(),
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.float32(): pd.Float32Dtype(),
        pa.float64(): pd.Float64Dtype(),
    }
    frame = table.to_pandas(types_mapper=dtypes.get, maps_as_pydicts="strict")
    for place, column in enumerate(table.columns):
        if pa.types.is_nested(column.type):
            values = [_plain(value, column.type) for value in column.to_pylist()]
            frame.isetitem(place, pd.Series(values, frame.index, object))
    return frame


def _plain(value: Any, kind: Any) -> Any:
    """Return a nested value with dicts for the maps in it, which Arrow has as lists of pairs."""
    of: Any = pa.types
    if value is None or not of.is_nested(kind):
        return value
    if of.is_map(kind):
        return {key: _plain(each, kind.item_type) for key, each in value}
    if of.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    return [_plain(each, kind.value_type) for each in value]


class Calls:
    """The messages of one batch, to be handed to a handler that is called with what an endpoint's loop asks for: in a child, and inline.

    :param services: of the queue; None: it has no conversations.
    """

    def __init__(self, endpoint: Endpoint, batch: pa.RecordBatch, services: Mapping[str, Service] | None) -> None:
        self._endpoint, self._services = endpoint, services
        self._views, self._frames = Views(batch, endpoint), None if endpoint.job.batching is None else FrameCalls(endpoint, batch)

    def one(self, call: Call, taken: Callable[[], object] = lambda: None) -> Called:
        """Call the handler with one message; the text of a failure is in the answer.

        :param taken: called when the message is there, right before its handler gets it.
        """
        endpoint, change = self._endpoint, None
        message = None if self._frames is not None else self._views.message(call.row, call.counts.abort_count, call.counts.move_count)
        taken()
        endpoint.at[0] = call.row  # noqa: PD008  (no DataFrame)
        if message is None:
            assert self._frames is not None, "its handler takes frames"
            failure = self._frames.one(call.row, call.counts)
        elif self._services is None or call.begun is None:
            failure = endpoint.call(message)
        else:
            failure, change = endpoint.call_in_dialog(message, call.begun, self._services)
        return Called(failure and endpoint.with_text(failure), change, NOTHING if failure else endpoint.rows)

    def several(self, call: BatchCall, taken: Callable[[], object] = lambda: None) -> Handed:
        """Call a handler of batches with several messages."""
        taken()
        assert self._frames is not None, "its handler takes frames"
        failure, named = self._frames.several(np.asarray(call.rows), lambda: call.counts)
        return Handed(failure, named, NOTHING if failure else self._frames.rows)


class FrameCalls:
    """The messages of one batch, each or several of them to be handed to a handler of batches.

    :ivar rows: what the messages of the last call have returned, as it travels, together or of each.
    """

    def __init__(self, endpoint: Endpoint, batch: pa.RecordBatch, rows: NDArray[np.intp] | None = None) -> None:
        batching = endpoint.job.batching
        assert batching is not None, "its handler takes frames"
        self._endpoint = endpoint
        self.rows: bytes | list[bytes] = NOTHING
        self.frames = Frames(batch, batching, np.arange(batch.num_rows) if rows is None else rows)

    def one(self, row: int, counts: Counts) -> Failure | None:
        """Hand over a frame of one message; a body that does not fit is its failure, without a call."""
        if (unfit := self.frames.failures.get(row)) is not None:
            return self._endpoint.failure(unfit)
        endpoint, rows = self._endpoint, np.asarray([row])
        self._begin(row)
        try:
            wrong = self._take(endpoint.handler(partial(self.frames.frame, rows, lambda: [counts])), rows)  # type: ignore[arg-type]  # makes a frame
        except BaseException as error:  # noqa: BLE001  (as in Endpoint.call)
            return endpoint.failure(error)
        if wrong:
            return endpoint.failure(wrong[0])
        endpoint.only_here()
        endpoint.rows = self.rows if isinstance(self.rows, bytes) else self.rows[0]
        return None

    def several(self, rows: NDArray[np.intp], counts: Callable[[], Sequence[Counts]]) -> tuple[Failure | None, dict[int, Failure]]:
        """Hand over a frame of several messages; return what the handler raised, and the failures of the rows that it named, by place.

        Bodies that do not fit are named, without a call, and so are messages whose returned rows do not fit their output.
        """
        endpoint = self._endpoint
        if unfit := [place for place, row in enumerate(rows.tolist()) if row in self.frames.failures] if self.frames.failures else []:
            return self._named({place: self.frames.failures[int(rows[place])] for place in unfit})
        self._begin(-1)
        try:
            wrong = self._take(endpoint.handler(partial(self.frames.frame, rows, counts)), rows)  # type: ignore[arg-type]  # makes a frame
        except BaseException as error:  # noqa: BLE001  (as in Endpoint.call)
            failure = endpoint.with_text(endpoint.failure(error))
            whys = error.named(self.frames.lookup_ids(rows)) if isinstance(error, PoisonRows) else {}
            return failure, {place: replace(failure, text=cut(why, MAX_TEXT)) for place, why in whys.items()}
        if wrong:
            return self._named(wrong)
        endpoint.only_here()
        return None, {}

    def _begin(self, at: int) -> None:
        self._endpoint.at[0] = at  # noqa: PD008  (no DataFrame)
        self._endpoint.rows = NOTHING
        if self._endpoint.last is not None:
            self._endpoint.last.forget()

    def _take(self, returned: object, rows: NDArray[np.intp]) -> Mapping[int, BaseException]:
        """Take what the handler has returned for these rows; return why rows of it do not fit, by the place of their message."""
        if self._endpoint.returned is None:
            self._endpoint.take(returned)
            self.rows = NOTHING
            return {}
        self.rows, wrong = self._endpoint.returned.of_several(returned, self.frames.lookup_ids(rows))
        return wrong

    def _named(self, errors: Mapping[int, BaseException]) -> tuple[Failure, dict[int, Failure]]:
        failures = {place: self._endpoint.with_text(self._endpoint.failure(error)) for place, error in sorted(errors.items())}
        return next(iter(failures.values())), failures


class FrameDelivery(BatchDelivery):
    """One batch in the hands of one endpoint whose handler takes many messages at once.

    :ivar _halted: a message has halted the endpoint.
    :ivar _charged: rows that the handler has named, so that attempts are in their words that this process has counted.
    :ivar _named: why the handler has named rows that are not charged yet: their turn is when the others have been delivered.
    :ivar _again_together: rows that have been charged so, and that are to be delivered again, all together.
    """

    def __init__(self, endpoint: Endpoint, batch: pa.RecordBatch, section: Section) -> None:
        super().__init__(endpoint, batch, section)
        self._array, self._number = section.as_array(), section.number
        self._unsettled = pending(self._array)
        self._unsettled = self._unsettled[
            self._unsettled < self._first_halted()
        ]  # a process may have died between a halt and what was put off before it
        self._calls = FrameCalls(endpoint, batch, self._unsettled)
        self._frames = self._calls.frames
        self._ladders_by_row = self._ladders_of_all()
        self._halted = False
        self._search = OrderedSearch(self._report_unstable)
        self._charged: set[int] = set()
        self._named: dict[int, Failure] = {}
        self._again_together: list[int] = []
        self._can_halt = cache(_may_halt)

    def run(self) -> bool:
        """Deliver until the batch is done, a message halts the endpoint, or an outage is found; return whether a message halted it."""
        if self._observer is not None:
            if self._observer.begin([row for row in self._unsettled.tolist() if row not in self._frames.failures]):
                return False
            self._unsettled = self._left(self._unsettled)
        suspects = self._unsettled[np.isin(self._array[self._unsettled] & STATE_MASK, SUSPECTS)]
        goes_together = self._goes_together()
        together, later, found = self._unsettled[goes_together], list[int](), 0
        for row in self._unsettled[~goes_together].tolist():
            if self._can_wait(row):
                later.append(row)
                continue
            before = int(np.searchsorted(together, row))
            found += self._all_of(together[:before])
            together = together[before:]
            self._deliver_alone(row)
        found += self._all_of(together)
        self._deliver_what_was_put_off(later)
        self._endpoint.pace(len(self._unsettled), found)
        if len(suspects) and (self._array[suspects] == MessageState.COMMITTED).all() and not crashes_of(self._array).any():
            self._report_unstable(suspects, _DIED)
        return self._first_halted() < len(self.words)

    def _deliver_what_was_put_off(self, later: list[int]) -> None:
        """Deliver what others have overtaken; in an outage only charge what the handler has named."""
        if not self._is_outage():
            self._deliver_later(later)
        if self._is_outage():
            self._charge_named()

    def _deliver_later(self, later: list[int]) -> None:
        """Deliver messages; when the endpoint has halted, only those whose turn was before that."""
        first, self._halted = self._first_halted(), False
        for row in later:
            if row < first:
                self._deliver_alone(row)
        while not self._halted:
            self._charge_named()
            if not (rows := sorted(self._again_together)):
                return
            self._again_together = []
            self._transaction(np.asarray(rows), probe=False)

    def _is_outage(self) -> bool:
        return self._observer is not None and self._observer.stopped()

    def _left(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Leave out what is settled: an observer has tried it out of turn."""
        return rows if self._observer is None else rows[~np.isin(self._array[rows] & STATE_MASK, SETTLED)]

    def _charge_named(self) -> None:
        """Charge what the handler has named, before what has halted the endpoint."""
        first, named, self._named = self._first_halted(), self._named, {}
        for row in sorted(row for row in named if row < first):
            self._roll_back(row, named[row])

    def _first_halted(self) -> int:
        """Return the first row that has halted the endpoint; behind all when none has."""
        halted = np.flatnonzero(self._array & STATE_MASK == MessageState.HALTED)
        return int(halted[0]) if len(halted) else len(self._array)

    def _goes_together(self) -> NDArray[np.bool_]:
        """Return which of the rows may be delivered with others: they are fresh, can be read, and their bodies fit."""
        words, ladders = self._array[self._unsettled], self._ladders_by_row
        found: NDArray[np.bool_] = (words == 0) | ((words & COUNT_MASK == 0) & np.isin(words & STATE_MASK, SUSPECTS))
        if isinstance(ladders, Ladder):
            found &= ladders.first is not None
        else:
            found &= np.fromiter(
                ((ladder := ladders[row]) is not None and ladder.first is not None for row in self._unsettled), bool, len(self._unsettled)
            )
        if self._frames.failures:
            found &= ~np.isin(self._unsettled, list(self._frames.failures))
        return found

    def _can_wait(self, row: int) -> bool:
        """Whether a message may be delivered after those behind it: nothing that can come of it concerns them."""
        ladder = self._ladder(row)
        return not self.policy.halting or (row in self._frames.failures and ladder is not None and not self._can_halt(ladder))

    # Several messages

    def _all_of(self, rows: NDArray[np.intp]) -> int:
        """Deliver rows in batches of the present size, suspected and failed ones in smaller ones; return how many culprits were found."""
        states = self._array[rows] & STATE_MASK
        ends = [*(np.flatnonzero(np.diff(states)) + 1).tolist(), len(rows)]
        found = start = 0
        for end in ends:
            while start < end and not self._halted:
                state = int(states[start])
                most = self._search.most(int(rows[start]), _MOST.get(state, self._endpoint.batch_size))
                found += self._transaction(rows[start : min(start + most, end)], probe=state in SUSPECTS or bool(self._search))
                start = min(start + most, end)
        return found

    def _transaction(self, rows: NDArray[np.intp], *, probe: bool) -> int:
        """Deliver rows as one transaction, and search where it fails; return how many culprits were found."""
        self._halted = self._halted or self._is_outage()
        rows = self._left(rows)
        while len(rows) > 1 and not self._halted:
            failure, named = self._hand(rows, probe=probe)
            if failure is None:
                return 0
            if not named:
                return self._failed(rows, failure)
            rows = self._charge(rows, {int(rows[place]): why for place, why in named.items()})
        return self._deliver_alone(int(rows[0])) if len(rows) else 0

    def _failed(self, rows: NDArray[np.intp], failure: Failure) -> int:
        """Find the culprits among rows that have failed together."""
        if self._observer is not None and self._observer.is_outage_of_batch(rows.tolist(), failure):
            self._halted = True
            return 0
        left = self._left(rows)
        rows = left if len(left) else rows
        self._search.failed(rows, f"{failure.type}: {failure.text}")
        found = self._all_of(rows)
        if self._halted:
            self._search.leave()
        self._search.over(int(rows[-1]) + 1)
        return found

    def _hand(self, rows: NDArray[np.intp], *, probe: bool) -> tuple[Failure | None, dict[int, Failure]]:
        """Call the handler with several messages; commit them when it returns, else give them back uncounted."""
        kept = self._array[rows] & COUNT_MASK
        self._log.append_handed(self._number, len(rows), probe=probe)
        self._array[rows] = kept | MessageState.IN_BATCH
        reach("delivery.batch.in_hand")
        failure, named = self._calls.several(rows, partial(self._seen, rows, kept))
        if failure is None:
            self._write_all_down(rows, kept)
            self._commit(rows, kept)
        else:
            self._give_back(rows, kept)
        return failure, named

    def _write_all_down(self, rows: NDArray[np.intp], kept: NDArray[np.int32]) -> None:
        if self._keep is not None:
            records = records_of([self._ids[row] for row in rows], attempts_of(kept).tolist(), self._calls.rows)
            keep_all(self._keep, records, partial(self._give_back, rows, kept))

    def _give_back(self, rows: NDArray[np.intp], kept: NDArray[np.int32]) -> None:
        """Store that rows are with no handler any more, with the attempts that they had."""
        self._array[rows] = kept | MessageState.UNTOUCHED

    def _commit(self, rows: NDArray[np.intp], kept: NDArray[np.int32]) -> None:
        """Store that all are committed: the store of the last one decides."""
        last = int(rows[-1])
        reach("delivery.batch.before_word")
        self.words[last] = int(kept[-1]) | MessageState.DECIDED
        reach("delivery.batch.after_word")
        self._array[rows[:-1]] = kept[:-1] | MessageState.COMMITTED
        reach("delivery.batch.before_last")
        self.words[last] = int(kept[-1]) | MessageState.COMMITTED
        if self._observer is not None:
            self._observer.succeeded(len(rows))

    def _seen(self, rows: NDArray[np.intp], kept: NDArray[np.int32]) -> list[Counts]:
        """Return the counts that the next delivery of each message sees."""
        ladders = self._ladders_by_row
        if isinstance(ladders, Ladder) and not kept.any() and ladders.first is not None:
            return [ladders.first.seen] * len(rows)
        rungs = [self._rung(int(row), attempts) for row, attempts in zip(rows, attempts_of(kept).tolist(), strict=True)]
        return [rung.seen for rung in rungs if rung is not None]

    def _charge(self, rows: NDArray[np.intp], named: dict[int, Failure]) -> NDArray[np.intp]:
        """Charge the messages that the handler has named; return the others, which are delivered again."""
        if not self.policy.halting or all(self._only_retried(row, why) for row, why in named.items()):
            self._named |= named
            return self._left(rows[~np.isin(rows, list(named))])
        first = min(named)
        self._transaction(rows[rows < first], probe=False)
        if not self._halted:
            self._roll_back(first, named[first])
            again, self._again_together = self._again_together, []
            for row in again:
                self._deliver_alone(row)
        return self._left(rows[rows > first])

    def _only_retried(self, row: int, why: Failure) -> bool:
        ladder = self._ladder(row)
        return ladder is not None and why.kind is FailureKind.EXCEPTION and not self._can_halt(ladder)

    def _roll_back(self, row: int, failure: Failure) -> None:
        """Count an attempt of a message that the handler has named; it is delivered again, or has ended. It is no outage's, however it ends."""
        if self._observer is not None:
            self._observer.named(row, failure)
            self._log_failure(self._entries.entry(row), failure)
        ladder, attempts = self._ladder(row), attempts_of(self.words[row])
        assert ladder is not None, "it was delivered"
        if failure.kind is FailureKind.EXCEPTION and ladder.rung(attempts + 1) is not None:
            self.words[row] = (attempts + 1) * ONE_ATTEMPT | MessageState.UNTOUCHED
            self._charged.add(row)
            self._again_together.append(row)
        else:
            self.words[row] = attempts * ONE_ATTEMPT | MessageState.IN_FLIGHT
            self._halted |= self._end_of_ladder(row, ladder, failure, attempts, is_named=True)

    def _report_unstable(self, rows: NDArray[np.intp], error: str) -> None:
        self._log.append_unstable(self._number, unstable(self._frames.lookup_ids(rows), error))

    # One message

    def _deliver_alone(self, row: int) -> int:
        """Deliver a message alone until it has ended; return whether its delivery failed, or something was known of it before."""
        if self._halted or self.is_settled(row):
            return 0
        failed = self._delivered_alone(row)
        if failed:
            self._search.charged()
        if self._observer is not None and self.words[row] & STATE_MASK == MessageState.COMMITTED:
            self._observer.committed(row)
        return failed

    def _delivered_alone(self, row: int) -> int:
        ladder, value = self._ladder(row), self.words[row]
        attempts, state = attempts_of(value), value & STATE_MASK
        climbs = (not attempts or row in self._charged) and state in (MessageState.UNTOUCHED, *SUSPECTS)
        rung = self._rung(row, attempts) if climbs else None
        if ladder is None or rung is None:
            if state in SUSPECTS:
                self.words[row] = value & COUNT_MASK
            self._halted = self._through_the_loop(self._entries.entry(row), None)
            return 1
        self.words[row] = attempts * ONE_ATTEMPT | MessageState.IN_FLIGHT
        failure = self._call(row, rung.seen)
        if failure is None:
            if self._keep is not None:
                self._write_down(row, self._endpoint.rows)
            self.words[row] = attempts * ONE_ATTEMPT | MessageState.COMMITTED
            return 0
        self._halted = self._again(row, ladder, failure, partial(self._call, row), attempts)
        return 1

    def may_be_tried(self, row: int) -> bool:
        """Whether a message was not received alone yet, and not named."""
        return (not self.words[row] or self.words[row] in SUSPECTS) and row not in self._named

    def _call(self, row: int, counts: Counts) -> Failure | None:
        return self._calls.one(row, counts)

    def _rung(self, row: int, attempts: int) -> Rung | None:
        ladder = self._ladder(row)
        return None if ladder is None else ladder.rung(attempts)

    def _ladder(self, row: int) -> Ladder | None:
        return self._ladders_by_row if isinstance(self._ladders_by_row, Ladder) else self._ladders_by_row[row]

    def _ladders_of_all(self) -> Ladder | list[Ladder | None]:
        """Return the ladder of each row, or the one that they share; None: the message cannot be read."""
        readable = self._ladders()
        if readable is not None and all(ladder is readable[0] for ladder in readable):
            return readable[0]
        if readable is not None:
            return list(readable)
        aborts, moves = (values_of(self._batch, name) for name in ("abort_count", "move_count"))
        ladder = cache(lambda abort, move: Ladder(self.policy, Counts(abort, move), self._now))
        entries = (self._entries.entry(row) for row in range(self._batch.num_rows))
        counts = zip(entries, aborts, moves, strict=False)
        return [None if self.unreadable(entry) is not None else ladder(abort, move) for entry, abort, move in counts]


def _may_halt(ladder: Ladder) -> bool:
    """Return whether exceptions alone can bring a message to halt the endpoint."""
    attempts = 0
    while ladder.rung(attempts) is not None:
        attempts += 1
    return ladder.end is None or isinstance(ladder.end, Halt)
