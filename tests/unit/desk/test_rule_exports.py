"""Rules that remove old poison: it is written once and then removed; nothing is removed that was not written, whoever dies."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from airflow_poison.desk import exports as exports_module
from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply, undo
from airflow_poison.desk.exports import file_name
from airflow_poison.desk.plans import cancel, find_plan, pause, plan, plans, record, resume
from airflow_poison.desk.rule_runs import RuleResult, run_rules
from airflow_poison.desk.rules import Rule, RuleVerb, declare_rules
from airflow_poison.desk.selection import Selection
from airflow_poison.fsck.check import check
from airflow_poison.passes.maintain import maintain
from airflow_poison.passes.move import move, put_back
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import SettingError, StoreUnreachableError
from airflow_poison.values.schema import SubQueue
from tests.given.passes import LEASE, DiedError
from tests.unit.desk.conftest import body

if TYPE_CHECKING:
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

DAY, MONTH = timedelta(days=1), timedelta(days=30)
POISON = SubQueue.POISON
REMOVE = PlanAction(verb=Verb.REMOVE)


def retained(queue: Queue, rule: Rule) -> RuleResult:
    declare_rules(queue.table, [rule], queue.clock)
    [done] = run_rules(queue.table, queue.clock, who="shell:ann@here", store=queue.store).rules
    return done


def written(folder: Path) -> dict[int, dict[str, Any]]:
    """All that was exported, by lookup id; fails when a message was exported twice."""
    rows = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path, partitioning=None).to_pylist()]
    found = {row["lookup_id"]: row for row in rows}
    assert len(found) == len(rows), "a message was exported twice"
    return found


def is_whole(queue: Queue) -> None:
    """Nothing is wrong with the table."""
    if isinstance(queue.store, DeltaStore):
        assert not check(queue.table, queue.clock).findings


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    """Where old poison goes."""
    return tmp_path / "old" / "poison"


@pytest.fixture
def export(exports: Path) -> Rule:
    """Poison of more than 30 days is written and removed."""
    return old(exports)


def old(place: Path) -> Rule:
    return Rule(name="old", verb=RuleVerb.REMOVE, after=MONTH, export_to=str(place))


def grown_old(queue: Queue) -> Queue:
    """The same queue 31 days later."""
    queue.clock.advance(MONTH + DAY)
    return queue


def test_age_counts_from_when_a_message_became_poison(queue: Queue, export: Rule) -> None:
    queue.sent(body(1, "key", "x"), body(2), body(3))
    queue.clock.advance(MONTH)
    queue.table.move_files(lambda snapshot: snapshot.files, POISON, queue.clock.now())  # whole files
    assert retained(queue, export).now == 0
    queue.clock.advance(MONTH + DAY)
    move(queue.table, queue.clock, [2], "main")
    move(queue.table, queue.clock, [2], "poison")
    assert (retained(queue, export).done, sorted(queue.rows())) == (2, [2])


# Written and removed --------------------------------------------------------------------------------------------------


def test_old_poison_is_written_then_removed(poisoned: Queue, exports: Path, export: Rule) -> None:
    kept = poisoned.rows()
    grown_old(poisoned).sent(body(10, "key", "new"), body(11, "key", "new")).receive("two")
    done = retained(poisoned, export)
    assert (done.messages, done.now, done.done, done.waiting) == (11, 9, 9, 2)
    assert done.files == (str(exports / file_name("orders", done.plan, 0)),)
    assert sorted(poisoned.rows()) == [10, 11]
    assert sorted(written(exports)) == list(range(1, 10))
    assert {number: row["body"] for number, row in written(exports).items()} == {number: row["body"] for number, row in kept.items()}
    assert all(row["last_error"]["type"] for row in written(exports).values())
    [view] = plans(poisoned.table)
    assert (view.who, view.reason, view.export_to, view.done) == ("shell:ann@here", "rule old", str(exports), 9)
    is_whole(poisoned)
    assert (retained(poisoned, export).now, len(written(exports))) == (0, 9)


def test_a_place_that_cannot_be_written_is_corrected_by_another_one(poisoned: Queue, tmp_path: Path, exports: Path, export: Rule) -> None:
    (tmp_path / "file").touch()
    grown_old(poisoned)
    with pytest.raises(StoreUnreachableError, match="file/poison"):
        retained(poisoned, old(tmp_path / "file" / "poison"))
    assert (retained(poisoned, export).done, sorted(written(exports))) == (9, list(range(1, 10)))
    assert sorted(view.state for view in plans(poisoned.table)) == ["cancelled", "done"]


def test_a_plan_that_has_removed_something_goes_on_where_it_began(  # noqa: PLR0917
    poisoned: Queue, tmp_path: Path, exports: Path, export: Rule, at_point: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no message is written into two files."""

    def die() -> None:
        raise DiedError

    monkeypatch.setattr("airflow_poison.desk.applying.CHUNK", 4)
    at_point.do("desk.apply.after_chunk", die)
    with pytest.raises(DiedError):
        retained(grown_old(poisoned), export)
    retained(poisoned, old(tmp_path / "new"))
    assert (sorted(written(exports)), written(tmp_path / "new"), poisoned.rows()) == (list(range(1, 10)), {}, {})


def test_it_can_be_undone(poisoned: Queue, exports: Path, export: Rule) -> None:
    done = retained(grown_old(poisoned), export)
    undo(poisoned.table, done.plan, poisoned.clock, who="shell:ann@here")
    assert sorted(poisoned.rows(POISON)) == list(range(1, 10))
    assert len(written(exports)) == 9


POINTS: tuple[str, ...] = ("store.plan.before_commit", "store.plan.after_commit", "desk.rules.after_plan", "desk.export.before_link")
POINTS += ("desk.export.after_file", "desk.apply.before_chunk", "store.replace.before_commit", "store.replace.after_commit", "desk.apply.after_chunk")


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_and_run_again_it_writes_and_removes_each_once(
    poisoned: Queue, export: Rule, point: str, at_point: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports_module, "PART", 4)
    exports = Path(export.export_to)
    kept = poisoned.rows()

    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    with pytest.raises(DiedError):
        retained(grown_old(poisoned), export)
    gone = kept.keys() - poisoned.rows().keys()
    assert gone <= written(exports).keys(), "removed without being exported"
    poisoned.sent(body(10, "key", "later")).receive("two")
    poisoned.clock.advance(MONTH + DAY)
    retained(poisoned, export)
    retained(poisoned, export)
    assert sorted(written(exports)) == list(range(1, 11))
    assert not poisoned.rows()
    assert not list(exports.glob(".*"))
    is_whole(poisoned)


def test_two_at_once_write_and_remove_each_once(poisoned: Queue, exports: Path, export: Rule, at_point: AtPoint) -> None:
    grown_old(poisoned)
    at_point.do("desk.rules.after_plan", lambda: retained(poisoned, export))
    retained(poisoned, export)
    assert sorted(written(exports)) == list(range(1, 10))
    assert not poisoned.rows()


def test_a_run_that_plans_what_another_one_is_about_to_remove_leaves_it_to_that_one(
    poisoned: Queue, exports: Path, export: Rule, at_point: AtPoint
) -> None:
    grown_old(poisoned)
    assert poisoned.table.claim("reader", lease=LEASE, now=poisoned.clock.now(), max_messages=100, sub_queue=POISON) is not None
    at_point.do("desk.rules.before_plan", lambda: retained(poisoned, export))
    done = retained(poisoned, export)
    first, mine = sorted(plans(poisoned.table), key=lambda view: view.state == "cancelled")
    assert (done.plan, first.state, mine.state) == (first.plan, "running", "cancelled")
    assert sorted(written(exports)) == list(range(1, 10))
    poisoned.table.release(poisoned.table.snapshot().claims[0])
    retained(poisoned, export)
    assert (len(written(exports)), poisoned.rows()) == (9, {})


def test_a_message_that_changes_meanwhile_is_removed_only_when_it_was_written(
    poisoned: Queue, exports: Path, export: Rule, at_point: AtPoint
) -> None:
    grown_old(poisoned)
    at_point.do("desk.rules.after_plan", lambda: put_back(poisoned.table, poisoned.clock, [3]))
    assert retained(poisoned, export).done == 8
    assert 3 not in written(exports)
    assert sorted(poisoned.rows()) == [3]


def test_what_a_pass_has_claimed_waits(poisoned: Queue, exports: Path, export: Rule) -> None:
    grown_old(poisoned)
    assert poisoned.table.claim("reader", lease=LEASE, now=poisoned.clock.now(), max_messages=100, sub_queue=POISON) is not None
    done = retained(poisoned, export)
    assert (done.done, done.state) == (0, "running")
    assert retained(poisoned, export).waiting == 9
    poisoned.table.release(poisoned.table.snapshot().claims[0])
    retained(poisoned, export)
    assert (len(written(exports)), poisoned.rows()) == (9, {})


def test_what_comes_back_after_it_was_written_without_it_stays(poisoned: Queue, exports: Path, export: Rule, at_point: AtPoint) -> None:
    grown_old(poisoned)
    removing = record(poisoned.table, plan(poisoned.table, Selection(lookup_ids=(3,)), REMOVE, poisoned.clock), poisoned.clock, who="shell:bob@here")

    def meanwhile() -> None:
        apply(poisoned.table, removing, poisoned.clock)

    def back() -> None:
        undo(poisoned.table, removing, poisoned.clock, who="shell:bob@here")

    at_point.do("desk.rules.after_plan", meanwhile)
    at_point.do("desk.export.after_file", back)
    assert retained(poisoned, export).done == 8
    assert sorted(poisoned.rows()) == [3]
    assert 3 not in written(exports)


def test_a_plan_that_somebody_has_paused_waits(poisoned: Queue, export: Rule, at_point: AtPoint) -> None:
    grown_old(poisoned)
    at_point.do("desk.rules.after_plan", lambda: pause(poisoned.table, plans(poisoned.table)[0].plan, poisoned.clock, who="shell:bob@here"))
    assert retained(poisoned, export).state == "paused"
    assert retained(poisoned, export).waiting == 9
    assert len(plans(poisoned.table)) == 1


def test_plans_of_two_that_died_are_done_one_after_the_other(poisoned: Queue, exports: Path, export: Rule, at_point: AtPoint) -> None:
    def die() -> None:
        raise DiedError

    def dies() -> None:
        at_point.do("desk.rules.after_plan", die)
        with pytest.raises(DiedError):
            retained(poisoned, export)

    def dies_meanwhile() -> None:
        dies()
        at_point.do("desk.rules.after_plan", die)

    grown_old(poisoned)
    at_point.do("store.plan.before_commit", dies_meanwhile)
    with pytest.raises(DiedError):
        retained(poisoned, export)
    assert len(plans(poisoned.table)) == 2
    poisoned.table.claim("reader", lease=LEASE, now=poisoned.clock.now(), max_messages=100, sub_queue=POISON)
    assert retained(poisoned, export).waiting == 9
    assert len(written(exports)) == 9
    poisoned.table.release(poisoned.table.snapshot().claims[0])
    retained(poisoned, export)
    assert (len(written(exports)), poisoned.rows()) == (9, {})


def test_whoever_applies_the_plan_writes_its_messages_first(poisoned: Queue, exports: Path, export: Rule, at_point: AtPoint) -> None:
    def die() -> None:
        raise DiedError

    at_point.do("desk.rules.after_plan", die)
    with pytest.raises(DiedError):
        retained(grown_old(poisoned), export)
    apply(poisoned.table, plans(poisoned.table)[0].plan, poisoned.clock)
    assert len(written(exports)) == 9
    assert not poisoned.rows()


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"export_to": "x"}, {"export_to": 7}, {"export_to": " "}, {"export_to": "/x", "verb": "tell"}], ids=str)
def test_what_is_no_place_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"^rules\['old'\]\.export_to="):
        Rule.from_dict({"name": "old", "verb": "remove", **given})


def test_what_people_agree_to_remove_is_written_first(poisoned: Queue, exports: Path) -> None:
    rule = Rule(name="old", verb=RuleVerb.ASK, proposes=RuleVerb.REMOVE, after=MONTH, export_to=str(exports))
    asked = retained(grown_old(poisoned), rule)
    assert (asked.state, exports.exists()) == ("paused", False)
    resume(poisoned.table, asked.plan, poisoned.clock, who="shell:bob@here")
    apply(poisoned.table, asked.plan, poisoned.clock)
    assert (len(written(exports)), poisoned.rows()) == (9, {})


# Plans that have ended ------------------------------------------------------------------------------------------------


def test_maintenance_removes_plans_that_ended_more_than_30_days_ago(poisoned: Queue, export: Rule) -> None:
    done = retained(grown_old(poisoned), export)
    poisoned.clock.advance(MONTH - DAY)
    assert maintain(poisoned.table, poisoned.clock).removed["plans"] == 0
    assert find_plan(poisoned.table, done.plan).done == 9
    poisoned.clock.advance(2 * DAY)
    assert maintain(poisoned.table, poisoned.clock).removed["plans"] == 1
    assert plans(poisoned.table) == ()


def test_maintenance_keeps_plans_that_ended_lately_and_those_that_have_not(poisoned: Queue, export: Rule, at_point: AtPoint) -> None:
    grown_old(poisoned)
    at_point.do("desk.rules.after_plan", lambda: pause(poisoned.table, plans(poisoned.table)[0].plan, poisoned.clock, who="shell:bob@here"))
    retained(poisoned, export)
    poisoned.clock.advance(2 * MONTH)
    [view] = plans(poisoned.table)
    assert maintain(poisoned.table, poisoned.clock).removed["plans"] == 0
    cancel(poisoned.table, view.plan, poisoned.clock, who="shell:bob@here")
    assert maintain(poisoned.table, poisoned.clock).removed["plans"] == 0
    poisoned.clock.advance(MONTH + DAY)
    assert maintain(poisoned.table, poisoned.clock).removed["plans"] == 1
