"""Check and repair: a queue that only the package has touched is clean, and each kind of damage is found."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from airflow_poison.core.clock import VirtualClock
from airflow_poison.core.errors import InputError, TableChangedError
from airflow_poison.core.message import CONVERSATION, TRANSMISSION_QUEUE, SubQueue, table_schema
from airflow_poison.core.passes.alter import disable, enable
from airflow_poison.core.passes.check import CheckResult, check, check_folder, check_store
from airflow_poison.core.passes.checking.findings import Finding, Kind, Severity
from airflow_poison.core.passes.declare import declare
from airflow_poison.core.passes.mend import repair, repair_store
from airflow_poison.core.passes.move import move, put_back
from airflow_poison.core.passes.remove import remove
from airflow_poison.core.passes.restart import restart
from airflow_poison.core.passes.return_due import return_due
from airflow_poison.core.passes.send_to import send_to
from airflow_poison.core.policies.msmq4 import Msmq4
from airflow_poison.core.policies.restarts import Restart
from airflow_poison.core.store.control import BLOCKED_BY, BLOCKED_UNTIL
from airflow_poison.core.store.delta.store import DeltaStore
from airflow_poison.core.store.files import Claim, DataFile, Replacement, Transaction
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.memory import MemoryStore
from airflow_poison.core.store.table import claiming, files
from airflow_poison.core.store.table.layout import commit_prefix
from tests.unit.passes.given import LEASE, DiedError, DyingEngine, Handler, Queue, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable

POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=30), receive_error_handling="Reject")
NOW = timedelta(0)
AN_HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """A queue with a history: every verb was used, and messages are in main, retry, postponed and poison."""
    folder = tmp_path_factory.mktemp("history")
    store = DeltaStore(str(folder / "store"), durable=False)
    queue = a_queue(store, folder, POLICY)
    queue.sent("ok 1", "bad 2", "later 3", "never 4").receive("one")
    queue.clock.advance(AN_HOUR)
    return_due(queue.table, queue.clock)
    queue.receive("two")
    disable(queue.table, queue.clock)
    queue.sent("ok 5", "bad 6", "bad 7")
    enable(queue.table, queue.clock)
    queue.receive("three")
    move(queue.table, queue.clock, [6], SubQueue.POISON)
    put_back(queue.table, queue.clock, [6])
    move(queue.table, queue.clock, [6], SubQueue.POISON)
    queue.sent("ok 8", "ok 9", "ok 10", "ok 11", "ok 12")
    remove(queue.table, 8, queue.clock)
    declare(store, "elsewhere", POLICY, queue.clock)
    send_to(queue.table, store, queue.clock, [9], "elsewhere")
    restart(queue.table, queue.clock, Restart.BROKER)
    queue.receive("four", max_messages=2)
    queue.sent("ok 13", "ok 14", "ok 15")
    return queue


@pytest.fixture
def worked(history: Queue, tmp_path: Path) -> Queue:
    """A copy of it."""
    shutil.copytree(history.store.uri, tmp_path / "store")
    store = DeltaStore(str(tmp_path / "store"), durable=False)
    clock = VirtualClock()
    clock.advance(history.clock.now() - clock.now())
    return history.having(store=store, table=store.open("orders"), clock=clock, handler=Handler(str(tmp_path / "calls")))


def checked(queue: Queue, safe_age: timedelta = NOW) -> CheckResult:
    return check_folder(queue.table.name, queue.table.uri, queue.clock, safe_age=safe_age)


def kinds(queue: Queue) -> set[Kind]:
    return {finding.kind for finding in checked(queue).findings}


# A clean queue --------------------------------------------------------------------------------------------------------


def test_a_queue_that_only_the_package_has_touched_is_clean(worked: Queue) -> None:
    found = checked(worked)
    assert found.findings == ()
    account = found.account
    assert (account.sent, account.waiting, account.removed, account.unaccounted, account.foreign) == (15, 9, 1, 0, 0)
    assert account.settled + account.dropped + account.sent_on + account.removed + account.waiting == 15


def test_every_queue_of_a_store_is_checked(worked: Queue) -> None:
    assert [(result.queue, result.findings) for result in check_store(worked.store, worked.clock, safe_age=NOW)] == [
        ("elsewhere", ()),
        ("orders", ()),
        ("orders.dead-letter", ()),
    ]


def test_a_queue_stays_clean_when_its_log_is_shortened_and_its_files_are_cleaned(worked: Queue) -> None:
    for number in range(45):
        worked.sent(f"ok {number}")
    worked.receive("all")
    worked.table.compact(min_files=2)
    worked.table.clean(retention=NOW, safe_age=NOW)
    worked.table.shorten_log(retention=NOW)
    found = checked(worked)
    assert found.findings == ()
    assert (found.account.sent, found.account.unaccounted) == (60, 0)
    assert found.account.before > 0


def test_a_living_claim_is_no_finding(worked: Queue) -> None:
    assert worked.table.claim("alive", lease=LEASE, now=worked.clock.now(), max_messages=10)
    assert checked(worked).findings == ()


def test_a_check_changes_nothing(worked: Queue) -> None:
    _tear_last_commit(worked)
    before = {path: path.stat().st_mtime_ns for path in Path(worked.table.uri).rglob("*") if path.is_file()}
    checked(worked)
    assert {path: path.stat().st_mtime_ns for path in Path(worked.table.uri).rglob("*") if path.is_file()} == before


def test_bodies_are_never_read(worked: Queue) -> None:
    """Every byte of them may be wrong."""
    for path in Path(worked.table.uri).rglob("sub_queue=main/*/*.parquet"):
        content = path.read_bytes()
        path.write_bytes(content.replace(b"ok 1", b"ko 1"))
    assert checked(worked).findings == ()


def test_a_store_in_memory_has_nothing_to_check(tmp_path: Path) -> None:
    queue = a_queue(MemoryStore(), tmp_path)
    with pytest.raises(InputError, match="store in memory keeps no log"):
        check(queue.table, queue.clock)


# Damage ---------------------------------------------------------------------------------------------------------------


def test_a_queue_that_takes_part_in_dialogs_is_clean(worked: Queue) -> None:
    before = checked(worked).account
    for number in range(3):
        _dialog(worked, str(number), number + 1)
    taken = a_file(worked)
    first, second, third = worked.table.snapshot().transmissions
    less = Replacement(taken, worked.table.read(taken).slice(1), removed=1)
    assert worked.table.transact(lambda _: Transaction(replacements=(less,), remove=(first, second)), "sent", worked.clock.now())
    worked.table.remove_transmissions([third], worked.clock.now())
    assert worked.table.merge_conversations(lambda rows: rows, min_files=2).files == 3
    found = checked(worked)
    assert found.findings == ()
    assert (found.account.removed, found.account.waiting) == (before.removed + 1, before.waiting - 1)


def a_file(queue: Queue, place: SubQueue = SubQueue.MAIN) -> DataFile:
    return next(file for file in queue.table.snapshot().files if file.sub_queue == place)


def path_of(queue: Queue, place: str = "main") -> Path:
    return next(Path(queue.table.uri, file.path) for file in _live(queue) if file.sub_queue == place)


def _live(queue: Queue) -> list[DataFile]:
    return list(queue.table.table.log.load().files)  # type: ignore[attr-defined]  # below the seam


def commit(queue: Queue, planned: Commit) -> None:
    """Commit as the package does, but something that no verb would."""
    log = queue.table.table.log  # type: ignore[attr-defined]  # below the seam
    assert log.commit(log.load(), planned)


def _log(queue: Queue) -> Path:
    return Path(queue.table.uri, "_delta_log")


def _newest(queue: Queue) -> Path:
    return max(_log(queue).glob("*.json"))


def _tear_last_commit(queue: Queue) -> None:
    Path(_log(queue), f"{int(_newest(queue).stem) + 1:020d}.json").touch()


def _tear_checkpoint(queue: Queue) -> None:
    DeltaTable(queue.table.uri).create_checkpoint()
    os.truncate(max(_log(queue).glob("*.checkpoint.parquet")), 20)


def _spoil_a_commit(queue: Queue) -> None:
    Path(_log(queue), f"{5:020d}.json").write_text("{")


def _hole(queue: Queue) -> None:
    Path(_log(queue), f"{5:020d}.json").unlink()


def _lying_checkpoint(queue: Queue) -> None:
    """A checkpoint of another table of this length."""
    DeltaTable(queue.table.uri).create_checkpoint()
    [checkpoint] = [path for path in _log(queue).glob("*.checkpoint.parquet") if int(path.name[:20]) == int(_newest(queue).stem)]
    rows = pq.read_table(checkpoint)
    kept = [row["add"] is None or "sub_queue=poison" not in row["add"]["path"] for row in rows.select(["add"]).to_pylist()]
    pq.write_table(rows.filter(pa.array(kept)), checkpoint)
    last = json.loads((_log(queue) / "_last_checkpoint").read_text())
    assert last["version"] == int(checkpoint.name[:20])


def _rows_again(queue: Queue, rows: pa.Table, place: str = "main", move_count: int = 0) -> DataFile:
    return files.write_new(queue.table.uri, place, move_count, rows)


def _with(rows: pa.Table, **cells: Any) -> pa.Table:
    return pa.Table.from_pylist([row | cells for row in rows.to_pylist()], schema=table_schema())


def _twice(queue: Queue) -> None:
    rows = queue.table.read(a_file(queue))
    commit(queue, Commit("append", add=[_rows_again(queue, rows)], numbers={"send:x": rows.num_rows}))


def _inside_twice(queue: Queue) -> None:
    old = a_file(queue)
    rows = queue.table.read(old)
    commit(queue, Commit("compact", add=[_rows_again(queue, pa.concat_tables([rows.slice(1), rows.slice(1, 1)]))], remove=[old]))


def _never_sent(queue: Queue) -> None:
    row = _with(queue.table.read(a_file(queue)).slice(0, 1), lookup_id=99)
    commit(queue, Commit("append", add=[_rows_again(queue, row)], numbers={"send:x": 1}))


def _swallow(queue: Queue) -> None:
    """A pass that takes more than it says."""
    result = {"counts": {"received": 1, "committed": 1}}
    commit(queue, Commit("finish", remove=[a_file(queue)], numbers={"run:x": 1}, details={"key": "x", "result": result}))


def _swallow_one(queue: Queue) -> None:
    """A pass whose files hold other messages than it took."""
    old = a_file(queue)
    rows = _with(queue.table.read(old), sub_queue="poison").slice(1)
    other = _with(queue.table.read(old).slice(0, 1), lookup_id=1)
    counts = {"received": old.rows, "poisoned": old.rows}
    new = _rows_again(queue, pa.concat_tables([rows, other]), "poison", 1)
    commit(queue, Commit("finish", add=[new], remove=[old], numbers={"run:x": 1}, details={"key": "x", "result": {"counts": counts}}))


def _fall(queue: Queue, **cells: int) -> None:
    old = a_file(queue, SubQueue.RETRY)
    first = _rows_again(queue, _with(queue.table.read(old), abort_count=3, crash_count=2), "retry", old.move_count)
    commit(queue, Commit("compact", add=[first], remove=[old]))
    move_count = cells.pop("move_count", old.move_count)
    row = _with(queue.table.read(first), **cells)
    commit(queue, Commit("compact", add=[_rows_again(queue, row, "retry", move_count)], remove=[first]))


def _stale_remove(queue: Queue) -> None:
    gone = a_file(queue)
    commit(queue, Commit("split", add=[_rows_again(queue, queue.table.read(gone))], remove=[gone]))
    commit(queue, Commit("split", add=[], remove=[gone]))


def _lose_by_hand(queue: Queue) -> None:
    commit(queue, Commit("replace", remove=[a_file(queue)], details={"removed": 1}))


def _misplace(queue: Queue) -> None:
    old = a_file(queue)
    commit(queue, Commit("split", add=[replace(old, path=_link(queue, old), sub_queue="poison")], remove=[old]))


def _wrong_event(queue: Queue) -> None:
    old = next(file for file in _live(queue) if file.sub_queue == "_event")
    path = f"sub_queue=_event/move_count=0/{1:020d}-000000-{uuid4().hex}.parquet"
    shutil.copyfile(Path(queue.table.uri, old.path), Path(queue.table.uri, path))
    commit(queue, Commit("alter", add=[replace(old, path=path)]))


def _dialog(queue: Queue, key: str, version: int) -> None:
    """A version of a conversation endpoint, and two messages to its partner."""
    cells: list[dict[str, Any]] = [{"conversation_id": "a", "move_count": 0, "sub_queue": TRANSMISSION_QUEUE}] * 2
    rows = [*cells, {"conversation_id": "b", "lookup_id": version, "move_count": 0, "sub_queue": CONVERSATION}]
    assert queue.table.transact(lambda _: Transaction(pa.Table.from_pylist(rows, schema=table_schema())), key, queue.clock.now())


def _version_twice(queue: Queue) -> None:
    _dialog(queue, "one", 1)
    _dialog(queue, "two", 1)


def _sent_out_of_order(queue: Queue) -> None:
    _dialog(queue, "one", 1)
    [waiting] = queue.table.snapshot().transmissions
    late = files.write_new(queue.table.uri, TRANSMISSION_QUEUE, 0, queue.table.read(waiting), commit_prefix(1))
    commit(queue, Commit("transact", add=[late]))


def _taken_by_a_split(queue: Queue) -> None:
    _dialog(queue, "one", 1)
    commit(queue, Commit("split", remove=queue.table.snapshot().transmissions))


def _claim_of(queue: Queue, *claimed: DataFile, key: str = "x") -> None:
    made = Claim(key, 1, "attempt", queue.clock.now() + LEASE, claimed)
    commit(queue, claiming._record(queue.table.table, made, replaced=None))  # type: ignore[attr-defined]  # below the seam


def _claim_what_is_gone(queue: Queue) -> None:
    _claim_of(queue, replace(a_file(queue), path="sub_queue=main/move_count=0/gone.parquet"))


def _claim_twice(queue: Queue) -> None:
    _claim_of(queue, a_file(queue))
    _claim_of(queue, a_file(queue), key="y")


def _spoil_claim(queue: Queue) -> None:
    _claim_of(queue, a_file(queue))
    _spoil_row(queue, "_claim")


def _spoil_row(queue: Queue, place: str) -> None:
    [old] = [file for file in _live(queue) if file.sub_queue == place]
    rows = pq.read_table(Path(queue.table.uri, old.path), partitioning=None)
    rows = rows.set_column(rows.schema.get_field_index("body"), "body", pa.array([b"no json"], pa.binary()))
    path = f"sub_queue={place}/move_count=0/{uuid4().hex}.parquet"
    commit(queue, Commit("alter", add=[files.write(queue.table.uri, path, rows)], remove=[old]))


def _claim_and_die(queue: Queue, *, late: timedelta = AN_HOUR) -> None:
    assert queue.table.claim("dead", lease=LEASE, now=queue.clock.now(), max_messages=10)
    queue.clock.advance(late)


def _deliver_and_die(queue: Queue) -> None:
    with pytest.raises(DiedError):
        queue.having(engine=DyingEngine).receive("dead")
    queue.clock.advance(AN_HOUR)


def _deliver_die_and(damage: Callable[[Path], object]) -> Callable[[Queue], None]:
    def act(queue: Queue) -> None:
        _deliver_and_die(queue)
        [journal] = Path(queue.table.uri).glob("_stage/dead-0/*/journal/*.journal")
        damage(journal)

    return act


def _seal_and(what: str, damage: Callable[[Path], object]) -> Callable[[Queue], None]:
    def act(queue: Queue) -> None:
        claim = queue.table.claim("dead", lease=LEASE, now=queue.clock.now(), max_messages=10)
        assert claim is not None
        rows = pa.concat_tables([queue.table.read(file) for file in claim.files])
        queue.table.stage_table(claim, _with(rows, sub_queue="poison"))
        queue.table.seal(claim, lambda _: {})
        damage(next(Path(queue.table.uri).glob(f"_stage/dead/*/{what}")))
        queue.clock.advance(AN_HOUR)

    return act


def _two_control_rows(queue: Queue) -> None:
    [old] = [file for file in _live(queue) if file.sub_queue == "_ctl"]
    path = f"sub_queue=_ctl/move_count=0/{uuid4().hex}.parquet"
    shutil.copyfile(Path(queue.table.uri, old.path), Path(queue.table.uri, path))
    commit(queue, Commit("alter", add=[replace(old, path=path)]))


def _no_control_row(queue: Queue) -> None:
    commit(queue, Commit("alter", remove=[file for file in _live(queue) if file.sub_queue == "_ctl"]))


def _alter(queue: Queue, **changes: Any) -> None:
    queue.table.alter(lambda control: replace(control, **changes), lambda _, __: [], queue.clock.now())


def _newer(queue: Queue) -> None:
    _alter(queue, format_version=99)


def _held(queue: Queue) -> None:
    queue.table.move_files(lambda snapshot: snapshot.files[:1], SubQueue.TRANSMISSION, queue.clock.now(), count_move=False)


def _outbox(queue: Queue) -> None:
    """What a pass leaves that dies before its relay."""
    queue.sent("ok 16")
    file = next(file for file in queue.table.snapshot().files if file.min_lookup_id == 16)
    queue.table.replace_files([Replacement(file, _with(queue.table.read(file), sub_queue="_outbox"))], [], queue.clock.now())


def _orphan(queue: Queue) -> None:
    shutil.copyfile(path_of(queue), path_of(queue).with_name("left.parquet"))


def _stage(queue: Queue) -> None:
    Path(queue.table.uri, "_stage", "nobody", "attempt", "journal").mkdir(parents=True)


def _forget_numbers(queue: Queue) -> None:
    commit(queue, Commit("alter", lasting={"seq": 20}))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _spoil_footer(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-40] + b"\0" * 36 + content[-4:])


def _other_priority(queue: Queue) -> None:
    """The log says what the file does not."""
    old = a_file(queue)
    commit(queue, Commit("split", add=[replace(old, path=_link(queue, old), min_priority=1)], remove=[old]))


def _other_due_time(queue: Queue) -> None:
    old = a_file(queue, SubQueue.RETRY)
    later = queue.clock.now()
    commit(queue, Commit("split", add=[replace(old, path=_link(queue, old), max_due_at=later)], remove=[old]))


def _link(queue: Queue, old: DataFile) -> str:
    path = f"{old.path.rpartition('/')[0]}/{uuid4().hex}.parquet"
    os.link(Path(queue.table.uri, old.path), Path(queue.table.uri, path))
    return path


def _by_hand(what: str) -> Callable[[Queue], None]:
    def delete(queue: Queue) -> None:
        DeltaTable(queue.table.uri).delete(what)

    return delete


def _unprotected(queue: Queue) -> None:
    DeltaTable(queue.table.uri).alter.drop_constraint("queue_verbs_only")


def _one_more_column(queue: Queue) -> None:
    DeltaTable(queue.table.uri).alter.add_columns([Field("mine", PrimitiveType("string"))])


DAMAGE: dict[str, tuple[Callable[[Queue], object], set[Kind], str]] = {
    # the log
    "last commit empty": (_tear_last_commit, {Kind.LAST_COMMIT_TORN}, "never acknowledged"),
    "checkpoint cut": (_tear_checkpoint, {Kind.CHECKPOINT_TORN}, "shortcut"),
    "checkpoint of something else": (_lying_checkpoint, {Kind.CHECKPOINT_DIFFERS}, "a checkpoint is wrong about sub_queue=poison"),
    "commit unreadable": (_spoil_a_commit, {Kind.LOG_DAMAGED}, "00005.json cannot be read"),
    "commit missing": (_hole, {Kind.LOG_DAMAGED}, "no commit of version 5, but later ones"),
    # somebody else
    "rows deleted": (_by_hand("lookup_id = 13"), {Kind.FOREIGN_COMMIT}, "DELETE by delta-rs"),
    "partition deleted": (_by_hand("sub_queue = 'poison'"), {Kind.FOREIGN_COMMIT}, "removed 1 file(s) with 1 row(s)"),
    "column added": (_one_more_column, {Kind.FOREIGN_COMMIT}, "changed the columns"),
    "constraint dropped": (_unprotected, {Kind.FOREIGN_COMMIT, Kind.PROTECTION_MISSING}, "queue_verbs_only is 'missing'"),
    # conservation
    "a pass took more than it says": (_swallow, {Kind.NOT_CONSERVED, Kind.MESSAGES_MISSING}, "took 3 messages and says received 1"),
    "a pass put others back": (_swallow_one, {Kind.NOT_CONSERVED, Kind.MESSAGE_UNKNOWN}, "that it had not taken, such as 1"),
    "people lost more than they say": (_lose_by_hand, {Kind.NOT_CONSERVED}, "took 3 messages out, and says 1"),
    "ids given to nobody": (_forget_numbers, {Kind.MESSAGES_MISSING}, "5 of 20 messages that were ever sent are missing"),
    "a message in two files": (_twice, {Kind.NOT_CONSERVED, Kind.MESSAGE_TWICE, Kind.MESSAGES_MISSING}, "in the queue twice, such as 10"),
    "a message twice in a file": (_inside_twice, {Kind.MESSAGE_TWICE}, "in the queue twice, such as 11"),
    "a message that nobody sent": (_never_sent, {Kind.NOT_CONSERVED, Kind.MESSAGE_UNKNOWN, Kind.MESSAGES_MISSING}, "expected 1 to 15"),
    "files removed twice": (_stale_remove, {Kind.HISTORY_IMPOSSIBLE}, "that were not there"),
    # counts
    "abort count fell": (lambda queue: _fall(queue, abort_count=2), {Kind.COUNT_FELL}, "lowered the abort count of 1 message(s), such as 7"),
    "crash count fell": (lambda queue: _fall(queue, crash_count=1), {Kind.COUNT_FELL}, "lowered the crash count"),
    "move count fell": (lambda queue: _fall(queue, move_count=0), {Kind.COUNT_FELL}, "lowered the move count"),
    # files
    "file gone": (lambda queue: path_of(queue).unlink(), {Kind.FILE_MISSING}, "is gone, and no commit removed it"),
    "file cut": (lambda queue: _cut(path_of(queue)), {Kind.FILE_CHANGED}, "bytes; expected"),
    "footer spoiled": (lambda queue: _spoil_footer(path_of(queue)), {Kind.FILE_CHANGED}, "its footer cannot be read"),
    "event file gone": (lambda queue: path_of(queue, "_event").unlink(), {Kind.FILE_MISSING}, "is gone"),
    "statistics of priority": (_other_priority, {Kind.FILE_CHANGED}, "min priority 5; expected 1"),
    "statistics of due time": (_other_due_time, {Kind.FILE_CHANGED}, "max due at"),
    "path and partition disagree": (_misplace, {Kind.FILE_MISPLACED}, "says something else"),
    "orphan": (_orphan, {Kind.ORPHANED_FILES}, "1 file(s) with"),
    "events out of order": (_wrong_event, {Kind.EVENT_ORDER}, "out of order"),
    # dialogs
    "an endpoint's version twice": (_version_twice, {Kind.ENDPOINT_TWICE}, "version 1 of the conversation endpoint b is there twice"),
    "dialog messages out of order": (_sent_out_of_order, {Kind.TRANSMISSION_ORDER}, "sent out of order"),
    "dialog messages taken by a split": (_taken_by_a_split, {Kind.HISTORY_IMPOSSIBLE}, "the commit 'split' removes sub_queue=_transmission"),
    # claims and stages
    "claim expired": (_claim_and_die, {Kind.CLAIM_EXPIRED}, "nothing of it was delivered"),
    "claim expired with a journal": (_deliver_and_die, {Kind.CLAIM_EXPIRED}, "1 journal(s) say what was delivered"),
    "claim of files that are gone": (_claim_what_is_gone, {Kind.CLAIM_FILES_GONE}, "its pass can never end"),
    "two claims of one file": (_claim_twice, {Kind.CLAIMS_OVERLAP}, "the other is"),
    "claim unreadable": (_spoil_claim, {Kind.CLAIM_UNREADABLE}, "a claim cannot be read"),
    "stage without a claim": (_stage, {Kind.STAGE_LEFT}, "that no claim names"),
    "journal cut": (_deliver_die_and(lambda path: os.truncate(path, 70)), {Kind.CLAIM_EXPIRED, Kind.JOURNAL_DAMAGED}, "it was cut short"),
    "journal gone": (_deliver_die_and(Path.unlink), {Kind.CLAIM_EXPIRED, Kind.JOURNAL_DAMAGED}, "the journal beside it is gone"),
    "manifest cut": (_seal_and("manifest.json", _cut), {Kind.CLAIM_EXPIRED, Kind.STAGE_DAMAGED}, "the sealed outcome of a pass cannot be read"),
    "outcome gone": (_seal_and("out/*/*/*.parquet", Path.unlink), {Kind.CLAIM_EXPIRED, Kind.STAGE_DAMAGED}, "it is gone"),
    "outcome cut": (_seal_and("out/*/*/*.parquet", _cut), {Kind.CLAIM_EXPIRED, Kind.STAGE_DAMAGED}, "is not what it was"),
    # state
    "two control rows": (_two_control_rows, {Kind.CONTROL_ROWS}, "2 control rows instead of one"),
    "no control row": (_no_control_row, {Kind.CONTROL_ROWS}, "0 control rows instead of one"),
    "control row unreadable": (lambda queue: _spoil_row(queue, "_ctl"), {Kind.CONTROL_UNREADABLE}, "JSONDecodeError"),
    "newer format": (_newer, {Kind.FORMAT_NEWER}, "table format 99"),
    "older format": (lambda queue: _alter(queue, format_version=1), {Kind.FORMAT_OLDER}, "format 1"),
    "unknown policy": (lambda queue: _alter(queue, policy={"system": "Msmq9"}), {Kind.POLICY_UNKNOWN}, "Msmq9"),
    "half a block": (lambda queue: _alter(queue, counters={BLOCKED_UNTIL: 9}), {Kind.BLOCK_INCONSISTENT}, "half a block"),
    "blocked by nobody": (
        lambda queue: _alter(queue, counters={BLOCKED_UNTIL: 2**52, BLOCKED_BY: 1}),
        {Kind.BLOCK_INCONSISTENT},
        "blocked by message 1, which is not in it",
    ),
    "told of the future": (lambda queue: _alter(queue, counters={"told:mail": 9_999}), {Kind.SUBSCRIPTION_AHEAD}, "told:mail says version 9999"),
    "held beside an enabled queue": (_held, {Kind.HELD_MESSAGES}, "wait in transmission although the queue is enabled"),
    "outbox left": (_outbox, {Kind.OUTBOX_LEFT}, "1 message(s) wait in the outbox"),
}


@pytest.mark.parametrize(("damage", "expected", "told"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_nothing_else(worked: Queue, damage: Callable[[Queue], object], expected: set[Kind], told: str) -> None:
    damage(worked)
    found = checked(worked).findings
    assert {finding.kind for finding in found} == expected
    assert any(told in f"{finding.where} {finding.what}" for finding in found), found
    assert all(finding.todo for finding in found)


def test_every_kind_of_finding_has_its_damage() -> None:
    tested = set().union(*(expected for _, expected, _ in DAMAGE.values()))
    assert set(Kind) - tested == {Kind.CREATION_LEFT, Kind.FILE_UNREADABLE}


def test_what_is_young_may_be_under_way(worked: Queue) -> None:
    _orphan(worked)
    _stage(worked)
    assert checked(worked, safe_age=AN_HOUR).findings == ()


def test_a_queue_that_was_never_made_is_found_and_removed(worked: Queue) -> None:
    left = Path(worked.store.uri, ".new-1")
    left.mkdir()
    os.utime(left, (time.time() - 90_000, time.time() - 90_000))
    first = check_store(worked.store, worked.clock)[0]
    assert [finding.kind for finding in first.findings] == [Kind.CREATION_LEFT]
    assert repair_store(worked.store) == ("removed .new-1, a queue that was never made",)
    assert all(result.queue for result in check_store(worked.store, worked.clock))


def test_the_worst_comes_first(worked: Queue) -> None:
    _orphan(worked)
    _outbox(worked)
    path_of(worked).unlink()
    assert [finding.severity for finding in checked(worked).findings] == [Severity.ERROR, Severity.WARNING, Severity.NOTE]


def test_a_finding_is_plain_values(worked: Queue) -> None:
    _orphan(worked)
    [finding] = checked(worked).findings
    assert json.loads(json.dumps(checked(worked).to_dict()))["findings"] == [finding.to_dict()]
    with pytest.raises(AttributeError):
        finding.what = ""  # type: ignore[misc]  # frozen


# Repair ---------------------------------------------------------------------------------------------------------------

MENDED = {
    "last commit empty": "loss of power",
    "checkpoint cut": "loss of power",
    "rows deleted": "went back to version",
    "partition deleted": "went back to version",
    "column added": "went back to version",
    "constraint dropped": "went back to version",
    "orphan": "removed 1 orphaned file(s)",
    "claim expired": "gave 6 message(s) of the expired claim dead back",
    "stage without a claim": "removed 1 stage folder(s)",
    "older format": "upgraded the table",
    "held beside an enabled queue": "brought 1 held message(s) to main",
    "outbox left": "sent 1 message(s) of the outbox on",
}


@pytest.mark.parametrize(("name", "told"), MENDED.items())
def test_repair_mends_it_and_loses_nothing(worked: Queue, name: str, told: str) -> None:
    before = set(worked.rows())
    DAMAGE[name][0](worked)
    result = repair(worked.store, "orders", worked.clock, safe_age=NOW)
    assert told in "; ".join(result.done)
    assert (result.failed, result.after.findings) == ((), ())
    assert set(worked.rows()) == before
    assert worked.sent("ok 99").receive("again").settled
    assert checked(worked).findings == ()


@pytest.mark.parametrize("name", sorted(DAMAGE.keys() - MENDED.keys()))
def test_repair_leaves_alone_what_needs_a_guess(worked: Queue, name: str) -> None:
    before = {path for path in Path(worked.table.uri).rglob("sub_queue=*/*/*.parquet") if path.is_file()}
    damage, expected, _ = DAMAGE[name]
    damage(worked)
    result = repair(worked.store, "orders", worked.clock, safe_age=AN_HOUR)
    assert {finding.kind for finding in result.after.findings} == expected
    lost = before - {path for path in Path(worked.table.uri).rglob("sub_queue=*/*/*.parquet") if path.is_file()}
    assert len(lost) == (1 if name.endswith("file gone") or name == "file gone" else 0)


def test_what_is_mendable_is_what_repair_mends() -> None:
    assert MENDED.keys() <= DAMAGE.keys()


def test_repair_gives_no_claim_back_of_which_something_was_delivered(worked: Queue) -> None:
    _deliver_and_die(worked)
    result = repair(worked.store, "orders", worked.clock, safe_age=NOW)
    [finding] = result.after.findings
    assert (finding.kind, finding.mendable) == (Kind.CLAIM_EXPIRED, False)
    assert "run the receive task" in finding.todo
    worked.receive("later")
    assert checked(worked).findings == ()


def test_repair_takes_no_foreign_messages_out(worked: Queue) -> None:
    from tests.store.test_foreign_hands import _raw_add

    _raw_add(DeltaTable(worked.table.uri))
    result = repair(worked.store, "orders", worked.clock, safe_age=NOW)
    assert result.done == ()
    assert "Somebody else has committed" in result.failed[0]
    [foreign] = [finding for finding in result.after.findings if finding.kind is Kind.FOREIGN_COMMIT]
    assert not foreign.mendable


def test_accepting_lets_what_others_did_stand(worked: Queue) -> None:
    DeltaTable(worked.table.uri).delete("sub_queue = 'poison'")
    with pytest.raises(TableChangedError):
        worked.sent("ok 16")
    result = repair(worked.store, "orders", worked.clock, accept=True, safe_age=NOW)
    assert result.done[0].startswith("accepted what somebody else has committed")
    assert result.after.findings == ()
    assert (result.after.account.foreign, result.after.account.unaccounted) == (1, 0)
    assert worked.sent("ok 16").receive("again").settled == 7


def test_a_repair_that_was_killed_is_finished_by_the_next(worked: Queue) -> None:
    _outbox(worked)
    _orphan(worked)
    DeltaTable(worked.table.uri).delete("sub_queue = 'poison'")
    for _ in range(2):
        result = repair(worked.store, "orders", worked.clock, safe_age=NOW)
    assert (result.done, result.after.findings) == ((), ())


def test_findings_are_equal_by_value() -> None:
    assert Finding(Kind.OUTBOX_LEFT, Severity.NOTE, "a", "b", "c") == Finding(Kind.OUTBOX_LEFT, Severity.NOTE, "a", "b", "c")
