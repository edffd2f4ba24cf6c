"""In place: rows of a source are transformed where they are; good ones land, and those that fail become messages, in one commit with the position.

What has become a message is uncharged: the pass that goes on delivers it as all others, so the rules are the same. Where a job fails as a whole, or
has taken its process with it, all rows become messages, and the pass finds which of them do it.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from airflow_poison.delivery.handlers import InPlaceOrder, Transformation
from airflow_poison.delivery.landing_rows import landing_files, landings_of
from airflow_poison.outputs.row_files import HIDDEN, FileOfRows, Place, files_in
from airflow_poison.passes.land import options_of
from airflow_poison.passes.send import masking_of
from airflow_poison.passes.take import Messages, acknowledged, advance_of, begin
from airflow_poison.sources.bodies import decoded
from airflow_poison.sources.frames import Frame
from airflow_poison.sources.rows import columns_of_bodies, like_columns
from airflow_poison.sources.source import ERROR
from airflow_poison.store.data_files import STAGE
from airflow_poison.store.files import COUNTS
from airflow_poison.store.objects import side_by_side
from airflow_poison.store.parking import parks
from airflow_poison.values.ddl import column_names, parse_ddl, retyped, united
from airflow_poison.values.errors import (
    ExecutorError,
    InputError,
    OutputError,
    SettingError,
    SourceError,
    SourceTakenError,
    StoreUnreachableError,
    TransformError,
)
from airflow_poison.values.fault_points import reach
from airflow_poison.values.masking import Masking
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import counted, on_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.outputs.output import Output
    from airflow_poison.passes.receive import ReceivePass
    from airflow_poison.sources.source import Source, Take
    from airflow_poison.store.files import Sent, Snapshot
    from airflow_poison.store.plans import StoredSource
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.failures import Failure

_log = logging.getLogger(__name__)

COLUMNS = "columns"
"""The setting of a queue that says what columns rows had that became messages in place, as DDL."""
EARLIER = "earlier_columns"
"""The setting that says which of them had other types in messages up to a lookup id: a list of such ids, ascending, each with the columns as DDL."""
_TRIES, _DEATHS = 20, 2
_KEPT_FOR = timedelta(days=2)
_MOST_NAMED = 250_000
"""Of more messages it is not kept in memory why the transformation has named them: it does so again."""
_NO_DEATHS = (ExecutorError, InputError, OutputError, SourceError, SourceTakenError, StoreUnreachableError, TransformError)
"""Errors that are not caused by a row which ends Spark or the process."""
_HOW = "or send what is new (QueueTakeOperator, Queue.take), and receive without source="


def with_columns_of(table: QueueTable, transformation: Transformation) -> Transformation:
    """Return a transformation with the columns that rows had, where it says none itself, and rows of this queue became messages in place."""
    desk = table.snapshot().control.desk
    if transformation.schema is not None or not desk.get(COLUMNS):
        return transformation
    return replace(transformation, schema=str(desk[COLUMNS]), earlier=_earlier(desk))


def _earlier(desk: Mapping[str, Any]) -> list[tuple[int, str]]:
    return [(int(last), str(columns)) for last, columns in desk.get(EARLIER, ())]


def check_in_place(receiving: ReceivePass, snapshot: Snapshot, *, converses: bool) -> None:
    """Raise SettingError for a pass that takes a source, and needs all messages in the queue."""
    source, policy = receiving.source, receiving.policy
    if not isinstance(receiving.handler, Transformation):
        raise SettingError("source", source, f"transform=, a function of a DataFrame, in place of a handler; {_HOW}")
    if receiving.handler.mixes_rows:
        raise SettingError("source", source, f"a transformation without mixes_rows: each row lands, or fails, by itself; {_HOW}")
    if not receiving.outputs:
        raise SettingError("source", source, f"output=, the table where rows land; {_HOW}")
    if source is not None and (own := next((output.uri for output in receiving.outputs if output.uri and source.takes_from(output.uri)), None)):
        raise SettingError("output", own, f"another table than those that source={source.name!r} takes: each run would take the rows of the last one")
    if any(output.provenance for output in receiving.outputs):
        raise SettingError("source", source, f"outputs without provenance=True: rows that land are no messages; {_HOW}")
    keeps_order = policy.halting or policy.locks_groups or policy.reads is not SubQueue.MAIN or converses
    if keeps_order or parks(snapshot.control.desk, policy.reads):
        raise SettingError(
            "source",
            source,
            f"a policy that neither halts nor keeps an order: {policy.system} here would need the rows before one that fails; {_HOW}",
        )


def take_in_place(
    receiving: ReceivePass, source: Source, transformation: Transformation, outputs: Sequence[Output], key: str
) -> tuple[Mapping[str, int], Mapping[int, Failure]]:
    """Transform what is new in a source: what succeeds is on its way to the outputs, and what fails is in the queue, in one commit.

    :param key: a second run with the same key takes nothing.
    Returns ``ReceiveResult.in_place``, of a second run what the first one did, and the failures of messages that the transformation has named.
    Raises SourceError, SettingError, InputError, TransformError, SparkJobError; then nothing was taken.
    """
    table = receiving.table
    if (done := table.sent_before(key)) is not None:
        receiving.progress(f"queue {table.name}: an earlier run with this key has taken {source.name}: nothing more is taken")
        if isinstance(source, Frame):
            _check_same(source, _ledger(done)["read"], table.name)
        return _ledger(done), {}
    for _ in range(_TRIES):
        known = table.stored_source(source.name)
        if known is not None:
            source.acknowledge(begin(table, known))
        planned = source.plan(begin(table, known), limit=None)
        for sentence in () if planned is None else planned.passed_over:
            receiving.progress(f"queue {table.name}: passed over: {sentence}")
        if planned is None or not planned.what:
            return {}, {}
        try:
            sent, named = _taken(receiving, source, known, planned, transformation, outputs, key)
        except SourceTakenError:
            continue
        if not isinstance(source, Frame):
            acknowledged(table, source)
        return _ledger(sent), named
    raise SourceError(
        f"Source {source.name!r} was taken into queue {table.name!r} by others {_TRIES} times while this run worked. Nothing was taken. Run fewer "
        "tasks that take it at once; a pool of one slot does that."
    )


def _check_same(source: Frame, taken: int, queue: str) -> None:
    """Look whether a DataFrame has as many rows as an earlier run with its key has taken: others would be left out.

    Raises InputError for a micro-batch, which Spark never changes; there is a warning for other ones, which may have grown.
    """
    if (rows := source.number()) is None or rows == taken:
        return
    name = f"{source.name[:1].upper()}{source.name[1:]}"
    text = (
        f"{name} has {counted(rows, 'row')}, and an earlier run with its key has put {taken:,} into queue {queue!r} or its output: nothing more is "
        "taken with this key. Give rows that are left out another key"
    )
    if source.fixed:
        raise InputError(f"{text}: protect(<these rows>, {queue!r}, key=...).")
    _log.warning("%s.", text)


def _ledger(sent: Sent) -> Mapping[str, int]:
    return {**dict.fromkeys(COUNTS, 0), **(sent.counts or {"read": sent.messages}), "messages": sent.messages}


def _taken(  # noqa: PLR0917  (the parts of one commit)
    receiving: ReceivePass,
    source: Source,
    known: StoredSource | None,
    planned: Take,
    transformation: Transformation,
    outputs: Sequence[Output],
    key: str,
) -> tuple[Sent, Mapping[int, Failure]]:
    """Take what was planned behind a known position. Raises SourceTakenError when another run has gone on from it."""
    table, now = receiving.table, receiving.clock.now()
    messages = Messages(source, None, now, partial(masking_of, table))
    advance = None if isinstance(source, Frame) else advance_of(source, known, planned, messages, now)
    needs_schema = transformation.schema is None and not source.columns
    if planned.rows is None or needs_schema:
        reason = "declare schema=, the columns of its bodies" if needs_schema and planned.rows is not None else planned.why
        receiving.progress(f"queue {table.name}: all of {source.name} becomes messages: {reason}")
        batches = _recognized(receiving, planned.batches(), "", transformation) if source.columns else planned.batches()
        return table.append(messages.of(batches), key, now, advance, of_source=True), {}
    mark, rows = _Mark(table, key), _Rows.of(receiving, outputs)
    work = receiving.engine().in_place(_order(receiving, source, planned, transformation, outputs, rows))
    if work.schema:
        _recorded(receiving, work.schema)
    rows.sweep(table, now)
    receiving.progress(f"queue {table.name}: transforming {planned.what} in place")
    reach("pass.in_place.before_job")
    deaths = mark.begun()
    try:
        why = "two earlier runs have ended while their jobs ran" if deaths >= _DEATHS else work.run()
        landings = None if why or not work.landed else landing_files(outputs[0], rows.landed(work.landed, are_there=work.is_there), now)
        every = partial(work.all_rows, rows.here / "all") if planned.alone else planned.batches
        details = {"poured": why} if why else {}
        reach("pass.in_place.before_commit")
        rows.check_there()
        found = every() if why else work.failing()
        found = _recognized(receiving, found, work.schema, transformation) if source.columns else found
        sent = table.append(messages.of(found), key, now, advance, of_source=True, landings=landings, details=details, counts=work.counts)
    except _NO_DEATHS as error:
        mark.note(deaths)
        if isinstance(error, SourceTakenError):  # else the commit may have happened
            rows.discard()
        raise
    finally:
        rows.forget()
    if sent.repeated or landings is None:  # repeated: by a run with this key, which has written its own
        rows.discard()
    mark.remove()
    reach("pass.in_place.after_commit")
    did = _ledger(sent)
    messages_text = f"{did['messages']:,} became messages"
    if why:
        messages_text = f"{why}: all of them, {messages_text}, to see which of them fail"
    receiving.progress(
        f"queue {table.name}: {counted(did['read'], 'row')} read = {did['landed']:,} land + {did['filtered']:,} filtered + {messages_text}"
    )
    return sent, _named(sent, work.named)


def _order(  # noqa: PLR0917  (what is taken, and where it goes)
    receiving: ReceivePass, source: Source, planned: Take, transformation: Transformation, outputs: Sequence[Output], rows: _Rows
) -> InPlaceOrder:
    table, snapshot = receiving.table, receiving.table.snapshot()
    assert planned.rows is not None, "all of it becomes messages"
    return InPlaceOrder(
        rows=planned.rows,
        transformation=transformation,
        outputs=outputs,
        place=rows.place,
        there=rows.there,
        check_stopped=receiving.check_stopped,
        limit=receiving.policy.effective_transaction_timeout.total_seconds(),
        decode=None if source.schema is None else partial(decoded, schema=source.schema),
        queue=table.folder,
        careful=bool(snapshot.files),
        checked=planned.checked,
        progress=lambda line: receiving.progress(f"queue {table.name}: {line}"),
        hides=Masking.recorded(snapshot.control.desk) is not None,
        finds_outages=receiving.outage is not None,
    )


def _named(sent: Sent, failures: Sequence[Failure | None]) -> Mapping[int, Failure]:
    """Return the failures of messages by their lookup ids: those of this commit follow each other as their rows did, unless some went elsewhere."""
    if sent.repeated or sent.malformed or sent.messages != len(failures) or len(failures) > _MOST_NAMED:
        return {}
    return {number: failure for number, failure in enumerate(failures, sent.first_lookup_id) if failure is not None}


class _Rows:
    """Where a job writes rows: below the output. For one in an object store a job on this machine writes here, and the files that land are uploaded.

    :ivar place: where the job writes on this machine.
    :ivar there: where executors write for an output in an object store.
    :ivar here: a folder of this machine, as a send has: what a run that has died leaves there is removed by maintenance.
    """

    def __init__(self, output: Output, options: Mapping[str, str], queue: str, here: Path) -> None:
        self.here, self._queue, self._run = here, f"{HIDDEN}/{queue}", f"{HIDDEN}/{queue}/{token_hex(8)}"
        is_far, run = "://" in output.uri, f"{output.uri.rstrip('/')}/{self._run}"
        self.place = here / "rows" if is_far or not output.uri else Path(output.uri, self._run)
        self.there = Place(on_spark(run), files_in(run, options)) if is_far else None
        self._below = files_in(output.uri, options) if output.uri else None
        self._landed = list[FileOfRows]()

    @classmethod
    def of(cls, receiving: ReceivePass, outputs: Sequence[Output]) -> _Rows:
        """Return those of a pass."""
        table = receiving.table
        here = Path(table.root, STAGE, f"send-in-place-{token_hex(8)}")
        return cls(outputs[0], options_of(outputs[0], receiving.store), f"{table.name}-{table.identity()}", here)

    def landed(self, files: Sequence[FileOfRows], *, are_there: bool) -> Sequence[FileOfRows]:
        """Have files below the output, and return them as they are called there."""
        assert self._below is not None, "a job without an output writes no rows"
        below = self._below
        self._landed = [FileOfRows(f"{self._run}/{file.path}", file.rows) for file in files]
        if not are_there:
            side_by_side(lambda file: below.put(f"{self._run}/{file.path}", self.place / file.path), files)
        return self._landed

    def check_there(self) -> None:
        """Raise OutputError for a file that was removed meanwhile."""
        below = self._below
        if below is None:
            return
        there = side_by_side(below.is_there, [file.path for file in self._landed])
        if (gone := next((file.path for file, is_there in zip(self._landed, there, strict=True) if not is_there), None)) is not None:
            raise OutputError(f"{gone} of the output was removed before it was committed. Nothing was taken; run the task again.")

    def forget(self) -> None:
        """Remove what is on this machine alone."""
        shutil.rmtree(self.here, ignore_errors=True)

    def discard(self) -> None:
        """Remove what was written, to which nothing refers."""
        if self._below is not None:
            self._below.remove(self._run)

    def sweep(self, table: QueueTable, now: datetime) -> None:
        """Remove what dead runs have written below the output, when nothing refers to it."""
        if self._below is None or not (old := self._below.runs(self._queue, now - _KEPT_FOR)):
            return
        waiting = [landing for stored in table.snapshot().landings for landing in landings_of(table.read(stored))]
        needed = {file.path.split("/")[2] for landing in waiting for file in landing.files}
        for each in old:
            if each not in needed:
                self._below.remove(f"{self._queue}/{each}")


class _Mark:
    """Counts the runs of a key that have ended while their jobs ran: what ends the process may be a row."""

    def __init__(self, table: QueueTable, key: str) -> None:
        self.path = Path(table.root, STAGE, f"in-place-{hashlib.sha256(key.encode()).hexdigest()[:32]}")

    def begun(self) -> int:
        """Return how many there are, and count this one."""
        before = 0
        with suppress(OSError, ValueError):
            before = int(self.path.read_text("utf-8"))
        self.note(before + 1)
        return before

    def note(self, deaths: int) -> None:
        """Write how many there are."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(str(deaths), "utf-8")

    def remove(self) -> None:
        """Forget them."""
        self.path.unlink(missing_ok=True)


def _recorded(receiving: ReceivePass, columns: str) -> pa.Schema | None:
    """Record the columns of rows, before one becomes a message, and keep the columns of messages that are in the queue, or that another run adds now.

    :param columns: empty: they are not known. Returns the recorded ones.
    """
    table = receiving.table
    if not columns:
        return None

    def together(desk: Mapping[str, Any]) -> Mapping[str, Any]:
        older = str(desk.get(COLUMNS, columns))
        both = united(columns, older)
        changed, known = retyped(both, older) if last else "", _earlier(desk)
        known_names = {name for at, others in known if at == last for name in column_names(others)}
        return {COLUMNS: both} | ({EARLIER: [*known, (last, changed)]} if changed and {*column_names(changed)} - known_names else {})

    snapshot = table.snapshot()
    control, last = snapshot.control, max((file.max_lookup_id for file in snapshot.files), default=0)
    if control.desk != {**control.desk, **together(control.desk)}:
        table.alter(lambda row: replace(row, desk={**row.desk, **together(row.desk)}))
        control = table.snapshot().control
    return parse_ddl(str(control.desk[COLUMNS]))


def _recognized(receiving: ReceivePass, batches: Iterable[pa.RecordBatch], columns: str, transformation: Transformation) -> Iterator[pa.RecordBatch]:
    """Yield rows with the names of the recorded columns, by which bodies are read.

    :param columns: of the rows; empty: what the rows themselves have, which is recorded before they become messages.
    Raises SourceError for columns that no transformation can have, where none are declared.
    """
    seen: pa.Schema | None = None
    known: pa.Schema | None = None
    for batch in batches:
        if ERROR in batch.schema.names:
            yield batch
            continue
        if seen is None or not (columns or batch.schema == seen):
            seen = batch.schema
            try:
                known = _recorded(receiving, columns or columns_of_bodies(seen))
            except SettingError as error:
                if transformation.schema is None:
                    raise SourceError(
                        f"Rows with the columns {', '.join(map(repr, seen.names))} cannot be transformed: Spark wants each name once. "
                        "Declare the columns that the transformation needs, schema='id bigint, ...'. Nothing was taken."
                    ) from error
        yield batch if known is None else like_columns(batch, known)
