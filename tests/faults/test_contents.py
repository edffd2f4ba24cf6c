"""Bytes: the checker passes what is right, and names what is not, a case for each of its rules about bodies and properties."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply
from airflow_poison.desk.plans import id_of, plan, record
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.alter import declare
from airflow_poison.passes.relay import relay
from airflow_poison.passes.take import positions
from airflow_poison.values.json_text import patched
from airflow_poison.values.schema import DESTINATION, message_schema
from tests.faults import ledger, planted, workers
from tests.faults.actor import Actor, Place, Task
from tests.faults.actors import act_quietly
from tests.faults.by_hand import Hand
from tests.faults.checker import check
from tests.faults.exact import BYTES, JSON, MARK, digest, digest_as, digest_of_given, is_edited
from tests.faults.places import copied, entered
from tests.faults.redrivers import exports_in, marked
from tests.faults.takers import takes, takes_the_rest
from tests.faults.workers import send_as
from tests.faults.world import output_of, queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults.verdict import Verdict

_PLAN = "0123456789ab"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Messages of senders and takers in ``move``, of which the first have been received, and of a sender in ``reject``."""
    with entered(tmp_path_factory.mktemp("contents"), "move") as there, pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "bodies", lambda chance, _: chance.choices([b"ok", b"bad"], k=6))  # none that ends this process
        for name in ("move", "reject", "fault", "engine"):
            declare(there.store, name, queues()[name].policy, there.clock)
        for number in range(6):
            sends = Actor.of(Task("send", "move", f"send-{number}", number), there)
            send_as(sends, sends.task.run_key, sends.task.name)
        act_quietly(Task("receive", "move", "receive", 3), there)
        for number in range(100, 104):
            sends = Actor.of(Task("send", "move", f"send-{number}", number), there)
            send_as(sends, sends.task.run_key, sends.task.name)
        for number in range(6, 30):
            takes(Actor.of(Task("send", "engine", f"send-{number}", number), there))
        takes_the_rest(Actor.of(Task("send", "engine", "rest", 0), there))
        for name in ("move", "engine"):
            act_quietly(Task("alert", name, f"alert-{name}", 0), there)
        for number in range(6):
            sends = Actor.of(Task("send", "reject", f"send-reject-{number}", number), there)
            send_as(sends, sends.task.run_key, sends.task.name)
        yield there


@pytest.fixture
def place(history: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same in a folder of its own."""
    return copied(history, tmp_path, monkeypatch)


def found(place: Place) -> Verdict:
    return check(place.folder, {})


# What is changed, and what the checker must say -----------------------------------------------------------------------


def changed_row(place: Place, **columns: object) -> None:
    """Let a commit that changes no message change one."""
    hand = Hand(place, "reject")
    path = hand.live("main")[-1]
    first, *others = hand.rows(path)
    hand.commit("split", [hand.written([first | columns, *others], "main")], [path])


def edited(place: Place, action: dict[str, object], *contents: bytes, undone: bool = False) -> None:
    """Let commits say that a plan has edited a message, and the last one that this was undone."""
    ledger.note("will_plan", queue="reject", plan=_PLAN, action=action, export_to="")
    for number, body in enumerate(contents, 1):
        hand = Hand(place, "reject")
        path = hand.live("main")[-1]
        first, *others = hand.rows(path)
        says: dict[str, object] = {"undone": "true"} if undone and number == len(contents) else {}
        event = hand.event("EDITED", first["lookup_id"], 0, 0, lookup_ids=str(first["lookup_id"]), by="hand", plan=_PLAN, **says)
        hand.commit("replace", [hand.written([first | {"body": body}, *others], "main"), event], [path])


def with_a_mark(place: Place) -> bytes:
    hand = Hand(place, "reject")
    return bytes(hand.rows(hand.live("main")[-1])[0]["body"]) + MARK


def lines_with(place: Place, change: Callable[[ledger.Line], ledger.Line]) -> None:
    path = ledger.path_in(place.folder)
    path.write_text("".join(f"{json.dumps(change(json.loads(line)))}\n" for line in path.read_text().splitlines()))


def given_otherwise(place: Place) -> None:
    lines_with(place, lambda line: line | {"body": digest(b"other")} if line["kind"] == "call" else line)


def written_otherwise(place: Place, how: str) -> None:
    def change(line: ledger.Line) -> ledger.Line:
        wanted = {name: [each[0], digest(b"other"), *each[2:]] if each[0] == how else each for name, each in line.get("wanted", {}).items()}
        return line | {"wanted": wanted} if wanted else line

    lines_with(place, change)


def properties_otherwise(place: Place) -> None:
    def change(line: ledger.Line) -> ledger.Line:
        return line | {"wanted": {name: [*each[:2], digest_of_given([("a", "b")])] for name, each in line["wanted"].items()}}

    lines_with(place, lambda line: change(line) if line["kind"] == "wrote" else line)


def landed_otherwise(place: Place) -> None:
    output = output_of(place.folder, "move")
    rows = DeltaTable(output).to_pyarrow_table().select(["id", "body"])
    others = rows.set_column(1, "body", pa.array([b"other"] * rows.num_rows, pa.binary()))
    write_deltalake(output, others, mode="overwrite", schema_mode="overwrite")


def relayed_otherwise(place: Place) -> None:
    """A letter changes on its way to another queue."""
    hand = Hand(place, "reject")
    path = hand.live("main")[-1]
    rows = [row | {"properties": [(DESTINATION, "engine")]} for row in hand.rows(path)]
    events = [hand.event("REQUEUED", row["lookup_id"], place="engine") for row in rows]
    hand.commit("replace", [hand.written(rows, "_outbox"), *events], [path])
    letters, store = place.store.open("reject"), place.store
    relay(store, letters, place.clock)
    target = Hand(place, "engine")
    last = target.entries[-1]
    [added] = [json.loads(line)["add"]["path"] for line in last.read_text().splitlines() if '"add"' in line and "sub_queue=main" in line]
    changed = [row | {"body": b"other"} for row in target.rows(added)]
    pq.write_table(pa.Table.from_pylist(changed, schema=pq.read_schema(target.root / added)), target.root / added)


def exported(place: Place, change: Callable[[list[dict[str, object]]], list[dict[str, object]]]) -> None:
    """Let a plan edit a message that it has exported; with other rows than there were."""
    before = Hand(place, "reject").rows(Hand(place, "reject").live("main")[-1])[:1]
    edited(place, {"verb": "edit", "body": "new"}, b"new")
    lines_with(place, lambda line: line | {"export_to": "there"} if line["kind"] == "will_plan" else line)
    exports_in(place.folder).mkdir()
    rows = change([{name: row[name] for name in ("lookup_id", "body", "properties")} for row in before])
    kinds = [message_schema().field(name) for name in ("lookup_id", "body", "properties")]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(kinds)), exports_in(place.folder) / f"reject-{_PLAN}-0000.parquet")


def malformed_otherwise(place: Place, *, all_are: bool) -> None:
    def change(line: ledger.Line) -> ledger.Line:
        return line | {"malformed": [*line["wanted"]] if all_are else []}

    lines_with(place, lambda line: change(line) if line["kind"] == "put_down" else line)


WRONG: dict[str, tuple[str, str, Callable[[Place], None]]] = {
    "a body changes in a commit": ("changed", r"version \d+ \(split\)", lambda place: changed_row(place, body=b"other")),
    "a property changes in a commit": ("changed", r"version \d+ \(split\)", lambda place: changed_row(place, properties=[("kind", "other")])),
    "an edit makes something else": ("changed", "edited by", lambda place: edited(place, {"verb": "edit", "body": "new"}, b"newer")),
    "an edit changes no property that it should": (
        "changed",
        "edited by",
        lambda place: edited(place, {"verb": "edit", "body": "new", "properties": {"mended": "yes, again"}}, b"new"),
    ),
    "an edit is undone to something else": (
        "changed",
        "edited by",
        lambda place: edited(place, {"verb": "edit", "function": "any"}, with_a_mark(place), b"other", undone=True),
    ),
    "a message is not what was sent": ("changed", "not what was written", lambda place: written_otherwise(place, BYTES)),
    "a row is not what was written": ("changed", "not what was written", lambda place: written_otherwise(place, JSON)),
    "properties are not what was given": ("changed", "not what was given", properties_otherwise),
    "a record that can be read comes malformed": ("changed", "came malformed", lambda place: malformed_otherwise(place, all_are=False)),
    "a malformed record comes as a good one": ("changed", "came well", lambda place: malformed_otherwise(place, all_are=True)),
    "a handler is given other bytes": ("changed", "its handler was given", given_otherwise),
    "a message is settled with other bytes": ("changed", "was settled", given_otherwise),
    "a row lands with other bytes": ("changed", "landed as", landed_otherwise),
    "a letter has other bytes": ("changed", "and left otherwise", relayed_otherwise),
    "an export has other bytes": ("changed", "was exported", lambda place: exported(place, lambda rows: [row | {"body": b"other"} for row in rows])),
    "an export has a message twice": ("doubled", "in the export", lambda place: exported(place, lambda rows: rows * 2)),
    "an export lacks a message": ("lost", "not in the export", lambda place: exported(place, lambda _: [])),
    "a record that was put down did not come": (
        "lost",
        "came into engine 0 times",
        lambda _: ledger.note("put_down", queue="engine", wanted={"gone": [BYTES, ""]}, malformed=[]),
    ),
}


def test_a_history_without_faults_passes(place: Place) -> None:
    assert found(place).lines() == []


def test_the_history_has_sources_of_every_kind(place: Place) -> None:
    kinds = {each.kind for each in positions(place.store.open("engine"))}
    assert kinds == {"Files", "DeltaChanges", "Jdbc", "Outbox"}


@pytest.mark.parametrize(("kind", "words", "wrong"), WRONG.values(), ids=WRONG)
def test_what_is_changed_is_told(place: Place, kind: str, words: str, wrong: Callable[[Place], None]) -> None:
    wrong(place)
    verdict = found(place)
    assert [line for line in getattr(verdict, kind) if re.search(words, line)], verdict.lines()


def test_an_edit_and_its_undoing_pass(place: Place) -> None:
    with_mark = with_a_mark(place)
    edited(place, {"verb": "edit", "function": "any"}, with_mark, with_mark.removesuffix(MARK), undone=True)
    assert found(place).lines() == []


def test_an_export_that_is_right_passes(place: Place) -> None:
    exported(place, lambda rows: rows)
    assert found(place).lines() == []


# Bugs that are planted: found without any fault ------------------------------------------------------------------------


def takes_anew(place: Place) -> None:
    """Take into a queue that has taken nothing."""
    for number in range(6):
        takes(Actor.of(Task("send", "fault", f"send-{number}", number), place))
    takes_the_rest(Actor.of(Task("send", "fault", "rest", 0), place))


def receives(place: Place) -> None:
    act_quietly(Task("receive", "move", "receive-again", 3), place)


def patches(place: Place) -> None:
    table, clock, key = place.store.open("reject"), place.clock, "plan:a patch"
    action = PlanAction(verb=Verb.EDIT, patch={"mended": "yes"})
    ledger.note("will_plan", queue="reject", plan=id_of(key), action=action.to_dict(), export_to="")
    apply(table, record(table, plan(table, Selection(sub_queue=None), action, clock), clock, who="people", key=key), clock)


@pytest.mark.parametrize(
    ("bug", "act", "kind"),
    [
        ("skip-a-row", takes_anew, "lost"),
        ("patch-by-values", patches, "changed"),
        ("bodies-as-text", receives, "changed"),
        ("outcomes-as-text", receives, "changed"),
    ],
)
def test_a_planted_bug_is_found(place: Place, bug: str, act: Callable[[Place], None], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "replace", monkeypatch.setattr)
    monkeypatch.setenv(ledger.QUEUE, "move")
    planted.plant(bug)
    act(place)
    assert getattr(found(place), kind)


@pytest.mark.parametrize("act", [takes_anew, patches, receives])
def test_without_a_bug_the_same_passes(place: Place, act: Callable[[Place], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ledger.QUEUE, "move")
    act(place)
    verdict = found(place)
    verdict.alerts_missing.clear()
    assert verdict.lines() == []


# What an edit makes of a body -----------------------------------------------------------------------------------------

BODY = b'{"deed":"bad" , "n": 12345678901234567.890, "twice": 1, "twice": 1.0, "gone": 1e400}'


@pytest.mark.parametrize("patch", [{"mended": "yes"}, {"deed": "ok"}, {"gone": None}, {"missing": None}, {"more": {"a": "b"}}, {"n": {"a": "b"}}])
def test_a_patch_that_changes_its_field_alone_is_right(patch: dict[str, object]) -> None:
    assert is_edited({"patch": patch}, BODY, patched(BODY, patch))


@pytest.mark.parametrize(
    "after",
    [
        BODY,
        BODY[:-1] + b', "mended": "no"}',
        BODY.replace(b".890", b".89")[:-1] + b', "mended": "yes"}',
        BODY.replace(b'"twice": 1, ', b"")[:-1] + b', "mended": "yes"}',
        BODY.replace(b"1e400", b"Infinity")[:-1] + b', "mended": "yes"}',
        BODY.replace(b" , ", b", ")[:-1] + b', "mended": "yes"}',
    ],
    ids=["not at all", "another value", "a digit less", "one of two names", "infinity", "other spaces"],
)
def test_a_patch_that_changes_more_is_wrong(after: bytes) -> None:
    assert not is_edited({"patch": {"mended": "yes"}}, BODY, after)


def test_no_patch_of_what_is_no_json_is_right() -> None:
    assert not is_edited({"patch": {"mended": "yes"}}, b"bad", b'{"mended": "yes"}')


@pytest.mark.parametrize(
    ("action", "after"), [({"body": "\u202e"}, "\u202e".encode()), ({"function": "any"}, marked(BODY)), ({"properties": {"a": "b"}}, BODY)]
)
def test_a_body_of_people_a_function_and_properties_alone_are_to_the_byte(action: dict[str, object], after: bytes) -> None:
    assert is_edited(action, BODY, after)
    assert not is_edited(action, BODY, after + b" ")


@pytest.mark.parametrize(("one", "other"), [(b'{"a": 1.0}', b'{"a": 1}'), (b'{"a":1,"a":2}', b'{"a":2}'), (b'{"a":1,"b":2}', b'{"b":2,"a":1}')])
def test_json_is_compared_by_its_text_but_for_spaces(one: bytes, other: bytes) -> None:
    assert digest_as(JSON, one) != digest_as(JSON, other)
    assert digest_as(JSON, one) == digest_as(JSON, one.replace(b":", b" : "))
