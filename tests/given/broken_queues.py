"""Every damage of a queue that a check knows: what does it, which kinds of findings it makes, and what one of them tells."""

from __future__ import annotations

import json
import os
import shutil
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

from airflow_poison.fsck.check import CheckResult, check_folder
from airflow_poison.fsck.files import Kind
from airflow_poison.outputs.output import outputs_of
from airflow_poison.store import claiming, data_files
from airflow_poison.store.control import BLOCKED_BY, BLOCKED_UNTIL
from airflow_poison.store.data_files import commit_prefix
from airflow_poison.store.files import Claim, Commit, DataFile, Replacement, Transaction
from airflow_poison.values import fault_points
from airflow_poison.values.schema import CONVERSATION, TRANSMISSION_QUEUE, SubQueue, table_schema
from tests.given.passes import LEASE, DiedError, DyingEngine, Queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.values.message import Message

NOW = timedelta(0)
AN_HOUR = timedelta(hours=1)


def checked(queue: Queue, safe_age: timedelta = NOW) -> CheckResult:
    return check_folder(queue.table.name, queue.table.uri, queue.clock, safe_age=safe_age)


def a_file(queue: Queue, place: SubQueue = SubQueue.MAIN) -> DataFile:
    return next(file for file in queue.table.snapshot().files if file.sub_queue == place)


def path_of(queue: Queue, place: str = "main") -> Path:
    return next(Path(queue.table.uri, file.path) for file in _live(queue) if file.sub_queue == place)


def _live(queue: Queue) -> list[DataFile]:
    return list(queue.table.log.load().files)


def commit(queue: Queue, planned: Commit) -> None:
    """Commit as the package does, but something that no verb would."""
    log = queue.table.log
    assert log.commit(log.load(), planned)


def _log(queue: Queue) -> Path:
    return Path(queue.table.uri, "_delta_log")


def _newest(queue: Queue) -> Path:
    return max(_log(queue).glob("*.json"))


def tear_last_commit(queue: Queue) -> None:
    Path(_log(queue), f"{int(_newest(queue).stem) + 1:020d}.json").touch()


def marks_of(queue: Queue) -> dict[int, Path]:
    """The marks of acknowledged versions, by version."""
    return {int(path.name[:20]): path for path in Path(queue.table.uri, "_acknowledged").iterdir()}


def _cut_acknowledged(queue: Queue) -> None:
    _cut(_newest(queue))


def _cut_at_a_line(queue: Queue) -> None:
    """Cut where every line that is left is whole: a loss of power can do that, too."""
    queue.sent("ok 16")
    newest = _newest(queue)
    marks_of(queue)[int(newest.stem)].unlink()
    newest.write_text("\n".join(newest.read_text().splitlines()[:2]))


def _remove_newest(queue: Queue) -> None:
    for path in sorted(_log(queue).glob("*.json"))[-3:]:
        path.unlink()


def _remove_checkpoint(queue: Queue) -> None:
    DeltaTable(queue.table.uri).create_checkpoint()
    max(_log(queue).glob("*.checkpoint.parquet")).unlink()


def _remove_covered(queue: Queue) -> None:
    """Remove old entries that a checkpoint covers, and all that is kept of them."""
    assert any(int(path.name[:20]) > 5 for path in _log(queue).glob("*.checkpoint.parquet"))
    for version in (3, 4):
        Path(_log(queue), f"{version:020d}.json").unlink()
        marks_of(queue)[version].unlink()


def _remove_covered_and_copies(queue: Queue) -> None:
    """Remove old entries that a checkpoint covers, of whose copies a loss of power has left the names alone."""
    for version in (3, 4):
        Path(_log(queue), f"{version:020d}.json").unlink()
        marks_of(queue)[version].write_bytes(b"")


def _lose_what_a_checkpoint_covers(queue: Queue) -> None:
    """A commit of somebody else, and its checkpoint, of which a loss of power leaves the checkpoint alone."""
    DeltaTable(queue.table.uri).delete("sub_queue = 'poison'")
    DeltaTable(queue.table.uri).create_checkpoint()
    _newest(queue).unlink()


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
    return data_files.write_new(queue.table.folder, place, move_count, rows)


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


def dialog(queue: Queue, key: str, version: int) -> None:
    """A version of a conversation endpoint, and two messages to its partner."""
    cells: list[dict[str, Any]] = [{"conversation_id": "a", "move_count": 0, "sub_queue": TRANSMISSION_QUEUE}] * 2
    rows = [*cells, {"conversation_id": "b", "lookup_id": version, "move_count": 0, "sub_queue": CONVERSATION}]
    assert queue.table.transact(lambda _: Transaction(pa.Table.from_pylist(rows, schema=table_schema())), key, queue.clock.now())


def _version_twice(queue: Queue) -> None:
    dialog(queue, "one", 1)
    dialog(queue, "two", 1)


def _sent_out_of_order(queue: Queue) -> None:
    dialog(queue, "one", 1)
    [waiting] = queue.table.snapshot().transmissions
    late = data_files.write_new(queue.table.folder, TRANSMISSION_QUEUE, 0, queue.table.read(waiting), commit_prefix(1))
    commit(queue, Commit("transact", add=[late]))


def _taken_by_a_split(queue: Queue) -> None:
    dialog(queue, "one", 1)
    commit(queue, Commit("split", remove=queue.table.snapshot().transmissions))


def _claim_of(queue: Queue, *claimed: DataFile, key: str = "x") -> None:
    made = Claim(key, 1, "attempt", queue.clock.now() + LEASE, claimed)
    commit(queue, claiming._record(queue.table, made, replaced=None))


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
    commit(queue, Commit("alter", add=[data_files.write(queue.table.folder, path, rows)], remove=[old]))


def _claim_and_die(queue: Queue, *, late: timedelta = AN_HOUR) -> None:
    assert queue.table.claim("dead", lease=LEASE, now=queue.clock.now(), max_messages=10)
    queue.clock.advance(late)


def deliver_and_die(queue: Queue) -> None:
    with pytest.raises(DiedError):
        queue.having(engine=DyingEngine).receive("dead")
    queue.clock.advance(AN_HOUR)


def _deliver_die_and(damage: Callable[[Path], object]) -> Callable[[Queue], None]:
    def act(queue: Queue) -> None:
        deliver_and_die(queue)
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
    queue.table.alter(lambda control: replace(control, **changes), lambda _, __: [])


def _newer(queue: Queue) -> None:
    _alter(queue, format_version=99)


def _held(queue: Queue) -> None:
    queue.table.move_files(lambda snapshot: snapshot.files[:1], SubQueue.TRANSMISSION, queue.clock.now(), count_move=False)


def outbox(queue: Queue) -> None:
    """What a pass leaves that dies before its relay."""
    queue.sent("ok 16")
    file = next(file for file in queue.table.snapshot().files if file.min_lookup_id == 16)
    queue.table.replace_files([Replacement(file, _with(queue.table.read(file), sub_queue="_outbox"))], [])


def landing(queue: Queue, age: float = 0) -> None:
    """What a pass leaves that died so many seconds ago, before its rows were in their output."""
    queue.sent("ok 16")

    def die(point: str) -> None:
        if point == "pass.receive.before_relay":
            raise DiedError

    fault_points.install(die)
    try:
        queue.having(handler=_a_row).receive("died", outputs=outputs_of(f"{queue.table.uri}-landed"))
    except DiedError:
        pass
    finally:
        fault_points.install(None)
    for path in Path(queue.table.uri).glob("sub_queue=_output/*/*.parquet"):
        os.utime(path, (path.stat().st_mtime - age,) * 2)


def _a_row(_message: Message) -> dict[str, int]:
    return {"n": 1}


def orphan(queue: Queue) -> None:
    shutil.copyfile(path_of(queue), path_of(queue).with_name("left.parquet"))


def stage(queue: Queue) -> None:
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
    "last commit empty": (tear_last_commit, {Kind.LAST_COMMIT_TORN}, "never acknowledged"),
    "checkpoint cut": (_tear_checkpoint, {Kind.CHECKPOINT_TORN}, "shortcut"),
    "checkpoint of something else": (_lying_checkpoint, {Kind.CHECKPOINT_DIFFERS}, "a checkpoint is wrong about sub_queue=poison"),
    "last commit cut at the end of a line": (_cut_at_a_line, {Kind.LAST_COMMIT_TORN, Kind.ORPHANED_FILES}, "never acknowledged"),
    "acknowledged commit cut": (_cut_acknowledged, {Kind.LOG_DAMAGED}, "its copy is whole"),
    "acknowledged commits removed": (_remove_newest, {Kind.LOG_DAMAGED}, "its copy is whole"),
    "commit unreadable": (_spoil_a_commit, {Kind.LOG_DAMAGED}, "its copy is whole"),
    "commit missing": (_hole, {Kind.LOG_DAMAGED}, "its copy is whole"),
    "checkpoint gone": (_remove_checkpoint, {Kind.CHECKPOINT_TORN}, "shortcut"),
    "checkpoint of a version that was lost": (_lose_what_a_checkpoint_covers, {Kind.CHECKPOINT_TORN}, "that does not count"),
    "old commits gone": (_remove_covered, {Kind.LOG_GAP}, "no commit of version 3, but later ones: a checkpoint covers it"),
    "old commits and their copies gone": (_remove_covered_and_copies, {Kind.LOG_DAMAGED}, "a checkpoint covers it"),
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
    "orphan": (orphan, {Kind.ORPHANED_FILES}, "1 file(s) with"),
    "events out of order": (_wrong_event, {Kind.EVENT_ORDER}, "out of order"),
    # dialogs
    "an endpoint's version twice": (_version_twice, {Kind.ENDPOINT_TWICE}, "version 1 of the conversation endpoint b is there twice"),
    "dialog messages out of order": (_sent_out_of_order, {Kind.TRANSMISSION_ORDER}, "sent out of order"),
    "dialog messages taken by a split": (_taken_by_a_split, {Kind.HISTORY_IMPOSSIBLE}, "the commit 'split' removes sub_queue=_transmission"),
    # claims and stages
    "claim expired": (_claim_and_die, {Kind.CLAIM_EXPIRED}, "nothing of it was delivered"),
    "claim expired with a journal": (deliver_and_die, {Kind.CLAIM_EXPIRED}, "1 journal(s) say what was delivered"),
    "claim of files that are gone": (_claim_what_is_gone, {Kind.CLAIM_FILES_GONE}, "its pass can never end"),
    "two claims of one file": (_claim_twice, {Kind.CLAIMS_OVERLAP}, "the other is"),
    "claim unreadable": (_spoil_claim, {Kind.CLAIM_UNREADABLE}, "a claim cannot be read"),
    "stage without a claim": (stage, {Kind.STAGE_LEFT}, "that no claim names"),
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
    "unknown policy": (lambda queue: _alter(queue, policy={"system": "Msmq9"}), {Kind.POLICY_UNKNOWN}, "Msmq9"),
    "half a block": (lambda queue: _alter(queue, counters={BLOCKED_UNTIL: 9}), {Kind.BLOCK_INCONSISTENT}, "half a block"),
    "blocked by nobody": (
        lambda queue: _alter(queue, counters={BLOCKED_UNTIL: 2**52, BLOCKED_BY: 1}),
        {Kind.BLOCK_INCONSISTENT},
        "blocked by message 1, which is not in it",
    ),
    "told of the future": (lambda queue: _alter(queue, counters={"told:mail": 9_999}), {Kind.SUBSCRIPTION_AHEAD}, "told:mail says version 9999"),
    "held beside an enabled queue": (_held, {Kind.HELD_MESSAGES}, "wait in transmission although the queue is enabled"),
    "landing left": (lambda queue: landing(queue, 3_600), {Kind.LANDING_LEFT}, "rows of 1 file(s) that handlers returned are not in their outputs"),
    "outbox left": (outbox, {Kind.OUTBOX_LEFT}, "1 message(s) wait in the outbox"),
}
