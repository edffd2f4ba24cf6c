"""What another writer can do to a queue table: what the table refuses, what changes nothing, and that our next verb notices the rest."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, TableFeatures, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from airflow_poison.fsck.check import check_store
from airflow_poison.fsck.files import Kind
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.files import Replacement
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import QueueNotFoundError, StoreUnreachableError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.schema import CONVERSATION, TRANSMISSION_QUEUE, SubQueue, table_schema
from tests.given import dialogs
from tests.given.children import start
from tests.given.tables import CONTROL, LATER, LEASE, NOW, batch, claim, ids, park_all, put, rows_of, seal, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake.table import TableMerger

    from airflow_poison.store.files import Claim, DataFile, Manifest
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

ROW = dict.fromkeys(table_schema().names) | {"lookup_id": 7, "sub_queue": "main", "move_count": 0}
RETRY: dict[str, str | None] = {"sub_queue": "retry", "move_count": "1"}
ROWS = pa.Table.from_pylist([ROW], schema=table_schema())


@dataclass(frozen=True)
class Given:
    """A queue with messages in main and retry, and a pass over those in main that is sealed and not finished."""

    root: str
    table: QueueTable
    claim: Claim
    manifest: Manifest

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.table.uri)

    def versions(self) -> list[str]:
        return sorted(path.name for path in Path(self.table.uri, "_delta_log").glob("*.json"))

    def file(self, place: SubQueue = SubQueue.MAIN) -> DataFile:
        return next(file for file in self.table.snapshot().files if file.sub_queue == place)


@pytest.fixture
def given(delta_root: str) -> Given:
    table = DeltaStore(delta_root, durable=False).create("orders", CONTROL)
    send(table, 3, "1")
    park_all(table)
    send(table, 4, "2")
    claimed = claim(table)
    table.stage_table(claimed, put(rows_of(table, claimed), "retry", 1, LATER))
    manifest = seal(table, claimed)
    send(table, 2, "3")
    return Given(delta_root, table, claimed, manifest)


# Refused by the table's constraint ------------------------------------------------------------------------------------

REFUSED: dict[str, Callable[[DeltaTable], object]] = {
    "append": lambda table: write_deltalake(table, ROWS, mode="append"),
    "overwrite": lambda table: write_deltalake(table, ROWS, mode="overwrite"),
    "overwrite a partition": lambda table: write_deltalake(table, ROWS, mode="overwrite", predicate="sub_queue = 'main'"),
    "update": lambda table: table.update(updates={"reason": "'mine'"}, predicate="sub_queue = 'main'"),
    "merge that updates": lambda table: _merge(table).when_matched_update_all().execute(),
    "merge that inserts": lambda table: _merge(table, "s.lookup_id = t.lookup_id + 100").when_not_matched_insert_all().execute(),
}


def _merge(table: DeltaTable, on: str = "s.lookup_id = t.lookup_id") -> TableMerger:
    return table.merge(ROWS, on, source_alias="s", target_alias="t")


@pytest.mark.parametrize("act", REFUSED.values(), ids=REFUSED)
def test_the_table_refuses(given: Given, act: Callable[[DeltaTable], object]) -> None:
    before, messages = given.versions(), ids(given.table)
    with pytest.raises(DeltaError, match="failed validation"):
        act(given.delta)
    assert given.versions() == before
    assert ids(given.table) == messages


# What changes nothing -------------------------------------------------------------------------------------------------

HARMLESS: dict[str, Callable[[DeltaTable], object]] = {
    "compact": lambda table: table.optimize.compact(),
    "vacuum of everything": lambda table: table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True),
    "checkpoint": lambda table: table.create_checkpoint(),
    "clean the log up": lambda table: table.cleanup_metadata(),
    "look for files that are gone": lambda table: table.repair(),
    "append nothing": lambda table: write_deltalake(table, ROWS.slice(0, 0), mode="append"),
    "describe the table": lambda table: table.alter.set_table_description("ours"),
    "delete and restore": lambda table: (table.delete("sub_queue = 'main'"), table.restore(table.version() - 1)),
}


@pytest.mark.parametrize("act", HARMLESS.values(), ids=HARMLESS)
def test_what_changes_nothing_stops_nobody(given: Given, act: Callable[[DeltaTable], object]) -> None:
    messages = ids(given.table)
    act(given.delta)
    assert ids(DeltaStore(given.root).open("orders")) == messages
    assert given.table.finish(given.claim, given.manifest, now=NOW)
    assert ids(given.table) == messages
    assert send(given.table, 1, "more").first_lookup_id == 10


# Noticed by the next verb, whichever it is ----------------------------------------------------------------------------


def _raw(table: DeltaTable, actions: list[AddAction | RemoveAction], **numbers: int) -> None:
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        partition_by=["sub_queue", "move_count"],
        commit_properties=CommitProperties(app_transactions=[Transaction(name, number) for name, number in numbers.items()]),
    )


def _raw_add(table: DeltaTable) -> None:
    path = "sub_queue=main/move_count=0/mine.parquet"
    root = Path(table.table_uri.removeprefix("file://"))
    pq.write_table(ROWS.drop_columns(["sub_queue", "move_count"]), root / path)
    size = (root / path).stat().st_size
    _raw(table, [AddAction(path, size, {"sub_queue": "main", "move_count": "0"}, 0, data_change=True, stats='{"numRecords": 1}')])


def _raw_remove(table: DeltaTable) -> None:
    path = next(uri for uri in table.file_uris() if "sub_queue=retry" in uri)
    _raw(table, [RemoveAction(path[path.index("sub_queue=") :], data_change=True, deletion_timestamp=0, size=1, partition_values=RETRY)])


COMMITS: dict[str, tuple[Callable[[DeltaTable], object], str]] = {
    "delete messages": (lambda table: table.delete("lookup_id = 1"), r"\(DELETE, .* removed 1 file\(s\) with 3 row\(s\) of 'retry'"),
    "delete a partition": (lambda table: table.delete("sub_queue = 'main'"), r"\(DELETE, .* removed 2 file\(s\) with 6 row\(s\) of 'main', such as"),
    "delete everything": (lambda table: table.delete(), r"removed 1 file\(s\) with 1 row\(s\) of '_claim'"),
    "delete the claim": (lambda table: table.delete("sub_queue = '_claim'"), "of '_claim'"),
    "delete the control row": (lambda table: table.delete("sub_queue = '_ctl'"), "of '_ctl'"),
    "overwrite by nothing": (lambda table: write_deltalake(table, ROWS.slice(0, 0), mode="overwrite"), r"\(WRITE, "),
    "merge that deletes": (
        lambda table: _merge(table, "s.lookup_id < t.lookup_id").when_matched_delete().execute(),
        r"\(MERGE, .* removed 1 file\(s\) with 2 row\(s\) of 'main'",
    ),
    "compact into big files": (
        lambda table: table.optimize.compact(target_size=10**9),
        r"\(OPTIMIZE, .* removed 2 file\(s\) with 6 row\(s\) of 'main'",
    ),
    "z-order": (lambda table: table.optimize.z_order(["lookup_id"]), r"\(OPTIMIZE, .* added 1 file\(s\)"),
    "restore of an older version": (lambda table: table.restore(table.version() - 1), r"\(RESTORE, .* removed 1 file\(s\) with 2 row\(s\) of 'main'"),
    "a new column": (lambda table: table.alter.add_columns([Field("mine", PrimitiveType("string"))]), "changed the columns"),
    "other properties": (
        lambda table: table.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 1 hours"}),
        "changed the table's properties delta.deletedFileRetentionDuration",
    ),
    "without the constraint": (lambda table: table.alter.drop_constraint("queue_verbs_only"), "properties delta.constraints.queue_verbs_only"),
    "a feature": (
        lambda table: table.alter.add_feature(TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True),
        "changed the protocol",
    ),
    "a raw commit that adds": (_raw_add, r"added 1 file\(s\) with 1 row\(s\) of 'main', such as sub_queue=main/move_count=0/mine.parquet"),
    "a raw commit that removes": (_raw_remove, r"removed 1 file\(s\) with 3 row\(s\) of 'retry'"),
    "a raw commit of the last lookup id": (lambda table: _raw(table, [], seq=1_000), "changed the last lookup id"),
}


def _replace(given: Given) -> None:
    file = given.table.snapshot().files[0]
    given.table.replace_files([Replacement(file, given.table.read(file))], [])


VERBS: dict[str, Callable[[Given], object]] = {
    "open": lambda given: DeltaStore(given.root).open("orders"),
    "create": lambda given: DeltaStore(given.root).create("orders", CONTROL),
    "look": lambda given: given.table.snapshot(),
    "send": lambda given: send(given.table, 1, "late"),
    "alter": lambda given: given.table.alter(lambda control: control.halted(SubQueue.MAIN, control.state, "x"), lambda _, __: []),
    "claim": lambda given: given.table.claim("another", lease=LEASE, now=NOW, max_messages=10),
    "take over": lambda given: given.table.take_over(given.claim, lease=LEASE, now=NOW),
    "renew": lambda given: given.table.renew(given.claim, lease=LEASE, now=NOW),
    "release": lambda given: given.table.release(given.claim),
    "finish": lambda given: given.table.finish(given.claim, given.manifest, now=NOW),
    "return": lambda given: given.table.move_files(lambda snapshot: snapshot.files, SubQueue.MAIN, LATER),
    "replace": _replace,
    "transact": lambda given: dialogs.act(given.table, "late", dialogs.endpoint("a", 1)),
    "merge": lambda given: given.table.merge_conversations(lambda rows: rows, min_files=2),
    "remove transmissions": lambda given: given.table.remove_transmissions([]),
    "result": lambda given: given.table.result("park"),
    "events": lambda given: list(given.table.events()),
}


@pytest.mark.parametrize(("act", "told"), COMMITS.values(), ids=COMMITS)
def test_the_next_look_notices_a_commit_by_somebody_else(given: Given, act: Callable[[DeltaTable], object], told: str) -> None:
    own = given.delta.version()
    act(given.delta)
    before = given.versions()
    expected = rf"to the queue table {given.table.uri}: version {own + 1}.*{told}"
    with pytest.raises(TableChangedError, match=expected) as known:
        given.table.snapshot()
    with pytest.raises(TableChangedError, match=expected):
        DeltaStore(given.root).open("orders")
    assert "Expected: commits of airflow-poison alone" in str(known.value)
    assert f"RESTORE the table to version {own}" in str(known.value)
    assert given.versions() == before


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_notices_and_commits_nothing(given: Given, verb: Callable[[Given], object]) -> None:
    given.delta.delete("lookup_id = 1")
    before = given.versions()
    with pytest.raises(TableChangedError, match=r"DELETE.*Nothing was committed"):
        verb(given)
    with pytest.raises(TableChangedError, match="DELETE"):  # and again, and not only once
        verb(given)
    assert given.versions() == before


@pytest.mark.parametrize("verb", ["send", "claim", "finish", "renew", "transact"])
def test_a_commit_that_comes_in_between_is_noticed(given: Given, at_point: AtPoint, verb: str) -> None:
    """The verb had looked at the table before."""
    points = {"send": "store.append.before_commit", "claim": "store.claim.before_commit", "finish": "store.finish.after_links"}
    at_point.do(points.get(verb, f"store.{verb}.before_commit"), lambda: given.delta.delete("sub_queue = 'retry'"))
    with pytest.raises(TableChangedError, match="DELETE"):
        VERBS[verb](given)
    assert given.delta.history(1)[0]["operation"] == "DELETE"


def test_a_pass_goes_on_when_what_others_did_was_undone(given: Given) -> None:
    own = given.delta.version()
    given.delta.delete("sub_queue = 'main'")
    given.delta.delete()
    with pytest.raises(TableChangedError, match=rf"version {own + 1} .*version {own + 2} "):
        given.table.finish(given.claim, given.manifest, now=NOW)
    given.delta.restore(own)
    assert given.table.finish(given.claim, given.manifest, now=NOW)
    assert ids(given.table) == list(range(1, 10))


def test_an_older_copy_that_was_put_back_is_noticed_by_who_knew_the_newer(given: Given) -> None:
    newest = Path(given.table.uri, "_delta_log", given.versions()[-1])
    newest.rename(given.root + "/aside")
    max(Path(given.table.uri, "_acknowledged").iterdir()).unlink()
    with pytest.raises(TableChangedError, match=r"was at version \d+ and is at \d+ now"):
        send(given.table, 1, "late")


# Files, without a commit ----------------------------------------------------------------------------------------------


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _spoil_footer(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-40] + b"\0" * 36 + content[-4:])


def _spoil_magic(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-4] + b"....")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(Path.unlink, "is gone", id="rm"),
        pytest.param(_cut, r"bytes; expected \d+", id="truncated"),
        pytest.param(lambda path: path.write_bytes(b""), r"it has 0 bytes; expected \d+", id="emptied"),
        pytest.param(_grow, r"bytes; expected \d+", id="grown"),
    ],
)
@pytest.mark.parametrize("place", [SubQueue.MAIN, SubQueue.RETRY])
def test_opening_notices_a_file_that_is_not_what_was_committed(given: Given, place: SubQueue, damage: Callable[[Path], object], told: str) -> None:
    file = given.file(place)
    damage(Path(given.table.uri, file.path))
    with pytest.raises(TableChangedError, match=rf"{file.path} of the queue table {given.table.uri} .*{told}"):
        DeltaStore(given.root).open("orders")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(Path.unlink, "is gone", id="rm"),
        pytest.param(_cut, r"bytes; expected \d+", id="truncated"),
        pytest.param(_spoil_footer, "its footer cannot be read", id="footer"),
        pytest.param(_spoil_magic, "its footer cannot be read", id="magic"),
    ],
)
def test_a_claim_notices_before_anything_is_delivered(given: Given, damage: Callable[[Path], object], told: str) -> None:
    file = next(file for file in given.table.snapshot().files if file.min_lookup_id == 8)
    damage(Path(given.table.uri, file.path))
    before = given.versions()
    with pytest.raises(TableChangedError, match=rf"{file.path} of .*{told}"):
        given.table.claim("another", lease=LEASE, now=NOW, max_messages=10)
    assert given.versions() == before


@pytest.mark.parametrize("place", [CONVERSATION, TRANSMISSION_QUEUE])
def test_what_is_done_to_conversations_is_noticed_when_the_queue_is_opened(given: Given, place: str) -> None:
    dialogs.act(given.table, "begin", dialogs.endpoint("a", 1), dialogs.letter("hello"))
    version = given.table.snapshot().version
    given.delta.delete(f"sub_queue = '{place}'")
    with pytest.raises(TableChangedError, match=rf"removed 1 file\(s\) with 1 row\(s\) of '{place}'"):
        DeltaStore(given.root).open("orders")
    given.delta.restore(version)
    [path] = Path(given.table.uri).glob(f"sub_queue={place}/*/*.parquet")
    path.unlink()
    with pytest.raises(TableChangedError, match=rf"{path.name} of the queue table {given.table.uri} is gone"):
        DeltaStore(given.root).open("orders")


def test_a_claim_notices_a_file_of_the_same_size_with_other_messages(given: Given) -> None:
    """Of what the footer says: how many, and which."""
    alike: list[str | None] = ["alike"]
    for key in ("4", "5"):
        given.table.append([batch(b"alike", message_id=alike)], key, NOW)
    files = {file.min_lookup_id: Path(given.table.uri, file.path) for file in given.table.snapshot().files}
    assert files[10].stat().st_size == files[11].stat().st_size
    shutil.copyfile(files[11], files[10])
    with pytest.raises(TableChangedError, match="its footer says min lookup id 11; expected 10"):
        given.table.claim("another", lease=LEASE, now=NOW, max_messages=10)


def test_a_return_notices_a_file_that_is_gone(given: Given) -> None:
    Path(given.table.uri, given.file(SubQueue.RETRY).path).unlink()
    with pytest.raises(TableChangedError, match="is gone"):
        given.table.move_files(lambda snapshot: [file for file in snapshot.files if file.sub_queue == "retry"], SubQueue.MAIN, LATER)


def test_a_control_row_that_is_gone_is_told(given: Given) -> None:
    for path in Path(given.table.uri, "sub_queue=_ctl").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(TableChangedError, match=r"sub_queue=_ctl/.* is gone"):
        DeltaStore(given.root).open("orders")


def test_a_table_that_was_moved_away_is_told_by_name(given: Given) -> None:
    moved = Path(given.root, "renamed")
    Path(given.table.uri).rename(moved)
    with pytest.raises(QueueNotFoundError, match=r"no queue 'orders' in .*Queues there: renamed"):
        DeltaStore(given.root).open("orders")
    with pytest.raises(TableChangedError, match="cannot be read"):
        given.table.finish(given.claim, given.manifest, now=NOW)
    there = DeltaStore(given.root).open("renamed")
    assert there.finish(given.claim, given.manifest, now=NOW)
    assert ids(there) == list(range(1, 10))


def _open_to_all(root: str) -> None:
    for place in (Path(root), *Path(root).rglob("*")):
        place.chmod(0o777)
    for parent in Path(root).parents:
        if parent.stat().st_uid == os.getuid() and len(parent.parts) > 2:
            parent.chmod(0o755)


def _be_another_user() -> None:
    """The superuser may everything."""
    os.setgid(65534)
    os.setuid(65534)


def _without_rights(root: str, verb: str) -> None:
    _be_another_user()
    act: Callable[[QueueTable], object] = (lambda table: claim(table, "late")) if verb == "claim" else lambda table: send(table, 1, "late")
    with pytest.raises(StoreUnreachableError, match=r"(?i)cannot be (read|written).*permission denied.*Give this user the right"):
        act(DeltaStore(root, durable=False).open("orders"))


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user's place")
@pytest.mark.parametrize(
    ("path", "mode", "verb"),
    [
        pytest.param("_delta_log", 0o000, "send", id="log hidden"),
        pytest.param("_delta_log", 0o555, "send", id="log read only"),
        pytest.param("sub_queue=main/move_count=0", 0o555, "send", id="folder read only"),
        pytest.param("sub_queue=main/move_count=0", 0o000, "claim", id="folder hidden"),
        pytest.param("file", 0o000, "claim", id="file hidden"),
    ],
)
def test_rights_that_were_taken_away_are_told(given: Given, path: str, mode: int, verb: str) -> None:
    _open_to_all(given.root)
    file = next(file.path for file in given.table.snapshot().files if file.min_lookup_id == 8)
    Path(given.table.uri, file if path == "file" else path).chmod(mode)
    child = start(_without_rights, given.root, verb)
    child.join()
    assert child.exitcode == 0


def _checks_all_but(root: str, hidden: str) -> None:
    _be_another_user()
    found = {each.queue: [finding.kind for finding in each.findings] for each in check_store(DeltaStore(root, durable=False), SystemClock())}
    assert found.pop(hidden) == [Kind.QUEUE_UNREADABLE]
    assert found.pop("") == [Kind.OTHER_TABLE]
    assert [*found] == ["bills"], found
    assert Kind.QUEUE_UNREADABLE not in found["bills"]


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user's place")
@pytest.mark.parametrize("hidden", ["orders", "orders/_delta_log"])
def test_a_queue_without_rights_keeps_no_check_from_the_others(given: Given, hidden: str) -> None:
    DeltaStore(given.root).create("bills", CONTROL)
    write_deltalake(str(Path(given.root, "output")), pa.table({"a": [1]}))
    _open_to_all(given.root)
    Path(given.root, hidden).chmod(0o000)
    child = start(_checks_all_but, given.root, "orders")
    child.join()
    assert child.exitcode == 0


# What cannot be noticed -----------------------------------------------------------------------------------------------


def test_a_body_that_was_changed_in_place_is_not_noticed(given: Given) -> None:
    """Files have no checksum: size and footer are as they were."""
    send_secret = given.table.append([batch(b"a body of some length")], "secret", NOW)
    file = next(file for file in given.table.snapshot().files if file.min_lookup_id == send_secret.first_lookup_id)
    path = Path(given.table.uri, file.path)
    path.write_bytes(path.read_bytes().replace(b"a body of some length", b"a BODY of some length"))
    assert given.table.claim("another", lease=LEASE, now=NOW, max_messages=10) is not None


def test_a_commit_that_bears_our_mark_is_not_noticed(given: Given) -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": '{"operation": "finish", "mark": "forged"}'})
    given.delta.delete("lookup_id = 2", commit_properties=properties)
    assert 2 not in ids(given.table)


def test_events_are_as_safe_as_messages(given: Given) -> None:
    given.table.alter(lambda control: control.halted(SubQueue.MAIN, control.state, "x"), lambda _, __: [Event(EventType.STOPPED, NOW)])
    given.delta.delete("sub_queue = '_event'")
    with pytest.raises(TableChangedError, match="of '_event'"):
        list(given.table.events())
