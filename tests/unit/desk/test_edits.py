"""Edits: they change what they name and nothing else, one odd body stops none, and undoing brings every byte back."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.desk.actions import Edited, PlanAction, UnfitError, Verb, editor, original_body, unedited
from airflow_poison.desk.applying import apply, undo
from airflow_poison.desk.plans import find_plan, pause, plan, record, resume
from airflow_poison.desk.rules import declare_mask
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.browse import look_up
from airflow_poison.passes.messages import Chosen
from airflow_poison.values import json_text
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SettingError
from airflow_poison.values.masking import EDITS, edits_of
from tests.given.passes import a_queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from tests.given.passes import Queue

PATCH = PlanAction(verb=Verb.EDIT, patch='{"new": 1.10}')
EVERYWHERE = Selection(sub_queue=None)
DEEP = b"[" * 200_000 + b"]" * 200_000


def contents(queue: Queue) -> dict[int, tuple[bytes, dict[str, str]]]:
    rows = look_up(queue.table, Chosen.ids(range(1, 20)), unmask=True)
    return {row.lookup_id: (row.body, dict(row.properties)) for row in rows}


def edited(queue: Queue, action: PlanAction = PATCH) -> str:
    clock = SystemClock()
    plan_id = record(queue.table, plan(queue.table, EVERYWHERE, action, clock), clock, who="test")
    apply(queue.table, plan_id, clock)
    return plan_id


def test_a_patch_changes_no_other_byte_and_no_digit(store: QueueStore, tmp_path: Path) -> None:
    # given
    queue = a_queue(store, tmp_path)
    queue.sent(
        '{"amount": 12345678901234567.89,"rate":1e400}',
        '{"a": 1, "a": 2, "u": "\\u00e9"}',
        '{ "id":1.10 }',
        '{"n": 0.1}',
    )
    # when
    edited(queue)
    # then
    assert [body for body, _ in contents(queue).values()] == [
        b'{"amount": 12345678901234567.89,"rate":1e400,"new": 1.10}',
        b'{"a": 1, "a": 2, "u": "\\u00e9", "new": 1.10}',
        b'{ "id":1.10, "new":1.10 }',
        b'{"n": 0.1, "new": 1.10}',
    ]


@pytest.mark.parametrize("mask", [[], ["$.a"]])
def test_bodies_that_cannot_be_patched_stay_and_are_named_and_the_plan_ends(store: QueueStore, tmp_path: Path, mask: list[str]) -> None:
    # given odd bodies among good ones
    queue = a_queue(store, tmp_path)
    queue.sent('{"a": 1}', b"\xff\xfe{", DEEP, '{"a": "\\ud800"}', "4111 no JSON", '{"a": 2}')
    declare_mask(queue.table, SystemClock(), mask)
    before = contents(queue)
    # when
    done = find_plan(queue.table, edited(queue))
    # then
    after = contents(queue)
    assert (done.state, done.done, done.skipped) == ("done", 3, 3)
    assert [each.lookup_id for each in done.unfit] == [2, 3, 5]
    assert all(each.why for each in done.unfit)
    assert {number: after[number] for number in (2, 3, 5)} == {number: before[number] for number in (2, 3, 5)}
    assert [after[number][0] for number in (1, 4, 6)] == [b'{"a": 1, "new": 1.10}', b'{"a": "\\ud800", "new": 1.10}', b'{"a": 2, "new": 1.10}']
    assert not any("4111" in each.why for each in done.unfit if mask)


def test_a_plan_with_odd_bodies_that_was_paused_goes_on_and_is_undone(store: QueueStore, tmp_path: Path) -> None:
    # given
    queue, clock = a_queue(store, tmp_path), SystemClock()
    queue.sent('{"a": 1}', "no JSON", '{"a": 2}')
    before = contents(queue)
    plan_id = record(queue.table, plan(queue.table, EVERYWHERE, PATCH, clock), clock, who="test")
    pause(queue.table, plan_id, clock, who="test")
    # when
    resume(queue.table, plan_id, clock, who="test")
    done = apply(queue.table, plan_id, clock)
    # then
    assert (done.state, done.done, [each.lookup_id for each in done.unfit]) == ("done", 2, [2])
    assert undo(queue.table, plan_id, clock, who="test").state == "undone"
    assert contents(queue) == before


def raising(_body: bytes) -> bytes:
    raise RecursionError("too deep")


def half(_body: bytes) -> str:
    return "\ud800"


def ending(_body: bytes) -> bytes:
    sys.exit("no such order")


def cancelled(_body: bytes) -> bytes:
    raise asyncio.CancelledError


def interrupted(_body: bytes) -> bytes:
    raise KeyboardInterrupt


class TimeoutOfAirflow(BaseException):
    __module__ = "airflow.sdk.exceptions"


def timed_out(_body: bytes) -> bytes:
    raise TimeoutOfAirflow


class ErrorOfAirflow(Exception):  # noqa: N818  (as AirflowSkipException)
    __module__ = "airflow.sdk.exceptions"


def skipping(_body: bytes) -> bytes:
    raise ErrorOfAirflow


@pytest.mark.parametrize("name", ["raising", "half", "ending", "cancelled", "skipping"])
def test_a_function_that_fails_for_a_body_leaves_it_as_it_is(name: str) -> None:
    # given
    edit = editor(PlanAction(verb=Verb.EDIT, function=f"{__name__}:{name}"), "p")
    # then
    with pytest.raises(UnfitError):
        edit(Edited(b"{}", {}))


@pytest.mark.parametrize(("name", "raised"), [("interrupted", KeyboardInterrupt), ("timed_out", TimeoutOfAirflow)])
def test_what_ends_the_process_or_the_task_within_a_function_ends_the_plan(name: str, raised: type[BaseException]) -> None:
    # given
    edit = editor(PlanAction(verb=Verb.EDIT, function=f"{__name__}:{name}"), "p")
    # then
    with pytest.raises(raised):
        edit(Edited(b"{}", {}))


def longer(body: bytes) -> bytes:
    return body + b"12345"


def test_a_body_that_a_queue_cannot_hold_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr("airflow_poison.desk.actions.MAX_BODY_BYTES", 8)
    edit = editor(PlanAction(verb=Verb.EDIT, function=f"{__name__}:longer"), "p")
    # then
    assert edit(Edited(b"abc", {})).body == b"abc12345"
    with pytest.raises(UnfitError, match="the new body has 9 bytes; at most 8 are allowed"):
        edit(Edited(b"abcd", {}))


def test_a_module_that_ends_while_it_is_imported_has_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    (tmp_path / "ends_at_once.py").write_text("import sys\nsys.exit(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    # then
    with pytest.raises(SettingError, match="SystemExit: 1"):
        editor(PlanAction(verb=Verb.EDIT, function="ends_at_once:f"), "p")


@pytest.mark.parametrize(
    "action",
    [
        {"properties": {"attempt": 5}},
        {"properties": {None: "a"}},
        {"properties": ["a"]},
        {"properties": {"poison.dialog": None}},
        {"body": b"x"},
        {"function": 5},
        {"body": "\ud800"},
        {"body": ""},
        {"patch": {"a": float("nan")}},
        {"patch": "[1]"},
        {"patch": "{"},
        {"properties": {"a": "\udfff"}},
    ],
)
def test_an_edit_that_no_message_can_have_is_refused(action: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        PlanAction(verb=Verb.EDIT, **action)


@pytest.mark.parametrize("patch", ['{"a": 1.10}', '{"a": 12345678901234567.89}', '{"a": 1e400, "b": [0.1, 2]}', '{"a": {"b": null}}', "{}"])
def test_a_patch_is_recorded_with_all_its_digits(patch: str) -> None:
    # given
    action = PlanAction(verb=Verb.EDIT, patch=patch)
    # when
    read = PlanAction.from_dict(json.loads(json.dumps(action.to_dict())))
    # then
    assert json_text.written(read.patch) == json_text.written(action.patch) == patch.replace("1e400", "1E+400")


# Whatever a sender has written as poison.edits ---------------------------------------------------------------------------

_FORGED = st.one_of(
    st.text(),
    st.sampled_from(
        ['[{"body":"abc"}]', '[{"body":5}]', '[{"properties":[1]}]', "not json", "[]", "[" * 5_000, '[{"body": null, "properties": {}, "plan": "p"}]']
    ),
    st.recursive(
        st.none() | st.integers() | st.text() | st.sampled_from(["YWJj", "p"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["body", "properties", "plan"]), inner),
    ).map(json.dumps),
)
_PROPERTIES = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text())
_ACTIONS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"body": st.text(min_size=1)}),
    st.fixed_dictionaries({"patch": st.dictionaries(st.text(), st.none() | st.integers() | st.text(), max_size=3)}),
    st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from(["a", "b", "d"]), st.none() | st.text(), min_size=1)}),
)


@given(st.one_of(st.binary(), st.just(b'{"x": 1.10}')), _PROPERTIES, st.none() | _FORGED, st.lists(_ACTIONS, min_size=1, max_size=3))
def test_edits_and_their_undoing_are_nothing(body: bytes, properties: dict[str, str], forged: str | None, actions: list[dict[str, Any]]) -> None:
    # given
    sent = Edited(body, properties if forged is None else properties | {EDITS: forged})
    states = [sent]
    # when
    made: list[str] = []
    for number, action in enumerate(actions):
        try:
            states.append(_editor(action, f"plan{number}")(states[-1]))
        except (UnfitError, SettingError):
            continue
        made.append(f"plan{number}")
    # then
    assert not made or original_body(states[-1].body, states[-1].properties) in {None, *(state.body for state in states)} or edits_of(sent.properties)
    for name, before in zip(reversed(made), reversed(states[:-1]), strict=True):
        states.append(unedited(states[-1], name))
        assert states[-1] == before


def _editor(action: dict[str, Any], plan_id: str) -> Callable[[Edited], Edited]:
    return editor(PlanAction(verb=Verb.EDIT, **action), plan_id)


_JSON = st.recursive(
    st.none() | st.booleans() | st.text() | st.decimals(allow_nan=False, allow_infinity=False) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.dictionaries(st.text(min_size=1), _JSON, min_size=1, max_size=4),
    st.sampled_from([", ", ",", ",\n  ", " ,\t"]),
    st.sampled_from([": ", ":", " : "]),
    st.data(),
)
def test_a_patch_of_one_field_leaves_every_other_byte(fields: dict[str, Any], comma: str, colon: str, data: st.DataObject) -> None:
    # given an object in any spacing
    parts = [f"{json_text.written(name)}{colon}{json_text.written(value)}" for name, value in fields.items()]
    name = data.draw(st.sampled_from(sorted(fields)))
    # when
    after = _editor({"patch": {name: "\x00new"}}, "p")(Edited(f"{{{comma.join(parts)}}}".encode(), {}))
    # then
    place = list(fields).index(name)
    parts[place] = f'{json_text.written(name)}{colon}"\\u0000new"'
    assert after.body == f"{{{comma.join(parts)}}}".encode()
