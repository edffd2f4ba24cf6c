"""Rules of a queue: the first that a message meets has it; each message is done once, whoever dies, as the queue's own records tell."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.desk.applying import apply
from airflow_poison.desk.plans import cancel, pause, plans, resume
from airflow_poison.desk.rule_runs import RulesResult, dry_run, run_rules
from airflow_poison.desk.rules import Rule, RuleVerb, configure, declare_rules, rules_of
from airflow_poison.desk.selection import Selection
from airflow_poison.fsck.check import check
from airflow_poison.passes.alerts import AlertKind, send_alerts
from airflow_poison.passes.alter import declare
from airflow_poison.passes.maintain import maintain
from airflow_poison.passes.move import put_back
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import QueryError, QueueNotFoundError, SettingError, TableChangedError
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from tests.given.passes import NO_RETRY, DiedError

if TYPE_CHECKING:
    from airflow_poison.passes.alerts import Alert
    from airflow_poison.store.files import DataFile
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

MAIN, POISON = SubQueue.MAIN, SubQueue.POISON
KEYS = {"error_type": "KeyError"}
HOUR = timedelta(hours=1)


def rule(name: str = "r", verb: str = "put_back", when: Any = None, **parts: Any) -> Rule:
    return Rule(name=name, verb=RuleVerb(verb), when=Selection.from_dict(when or {}), **parts)


def run(queue: Queue, *rules: Rule, key: str = "") -> RulesResult:
    if rules:
        declare_rules(queue.table, rules, queue.clock)
    return run_rules(queue.table, queue.clock, who="dag:d/r/t", store=queue.store, run=key)


def tried(queue: Queue, *rules: Rule) -> list[tuple[int, int, int]]:
    return [(each.messages, each.now, each.waiting) for each in dry_run(queue.table, queue.clock, rules).rules]


def numbers(result: RulesResult) -> list[tuple[int, int, int]]:
    return [(each.messages, each.now, each.waiting) for each in result.rules]


def in_place(queue: Queue, place: SubQueue) -> list[int]:
    return sorted(queue.rows(place))


def told(queue: Queue) -> list[Alert]:
    heard: list[Alert] = []
    send_alerts(queue.table, "me", {"notes": heard.append}, queue.clock, kinds=[AlertKind.DESK])
    return heard


def is_whole(queue: Queue) -> bool:
    if isinstance(queue.store, DeltaStore):
        assert [each for each in check(queue.table, queue.clock).findings if each.severity.value == "error"] == []
    return True


# The table ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"name": "a b", "verb": "tell"}, "rule.name"),
        ({"name": "r", "verb": "drop"}, "put_back, send_to, remove, tell, ask"),
        ({"name": "r"}, "every rule has a name and a verb"),
        ({"name": "r", "verb": "tell", "wen": {}}, "did you mean 'when'"),
        ({"name": "r", "verb": "tell", "when": {"error_typ": "x"}}, "did you mean 'error_type'"),
        ({"name": "r", "verb": "tell", "when": {"sub_queue": "retry"}}, "messages in poison"),
        ({"name": "r", "verb": "remove", "at_most": 2}, "only put_back counts"),
        ({"name": "r", "verb": "put_back", "at_most": 0}, "from 1"),
        ({"name": "r", "verb": "put_back", "after": -1}, "timedelta"),
        ({"name": "r", "verb": "put_back", "after": "soon"}, "seconds"),
        ({"name": "r", "verb": "put_back", "target": "x"}, "target"),
        ({"name": "r", "verb": "tell", "target": "x"}, "target"),
        ({"name": "r", "verb": "put_back", "proposes": "remove"}, "proposes"),
        ({"name": "r", "verb": "ask", "proposes": "tell"}, "put_back, send_to, remove"),
        ({"name": "r", "verb": "remove", "when": {"error_type": ""}}, "messages of all others would be removed"),
        ({"name": "r", "verb": "ask", "proposes": "remove", "when": {"text": "x", "where": ""}}, "where='' is not allowed"),
        ({"name": "r", "verb": "remove", "export_to": ""}, "messages would be removed unwritten"),
    ],
)
def test_a_rule_that_is_none_is_refused(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        Rule.from_dict(parts)


def test_rules_are_the_same_after_json(queue: Queue) -> None:
    table = (
        rule("late", when=KEYS, after=HOUR, at_most=3),
        rule("card", "ask", proposes=RuleVerb.SEND_TO, target="cards", when={"where": "body.card is not null"}),
        rule("rest", "tell"),
    )
    assert tuple(Rule.from_dict(each.to_dict()) for each in table) == table
    assert declare_rules(queue.table, [each.to_dict() for each in table], queue.clock) == table
    assert rules_of(queue.table.snapshot().control) == table
    declare_rules(queue.table, [], queue.clock)
    assert rules_of(queue.table.snapshot().control) == ()


def test_rules_that_cannot_be_run_are_not_recorded(queue: Queue) -> None:
    for rules, kind, says in (
        ([rule("a"), rule("a")], SettingError, "every name once"),
        ("late", SettingError, "a list of Rule"),
        ([rule("a", when={"where": "bodi.x > 1"})], QueryError, "bodi"),
    ):
        with pytest.raises(kind, match=says):
            declare_rules(queue.table, rules, queue.clock)  # type: ignore[arg-type]  # that is what is tried
    assert rules_of(queue.table.snapshot().control) == ()


# Who has which message ------------------------------------------------------------------------------------------------


def test_the_first_rule_that_a_message_meets_has_it(poisoned: Queue) -> None:
    vx = {"where": "body.carrier = 'VX'"}
    assert tried(poisoned, rule("a", when=KEYS), rule("b", "remove", when=vx), rule("c", "tell")) == [(4, 4, 0), (3, 3, 0), (2, 2, 0)]


def test_a_rule_that_waits_has_its_messages(poisoned: Queue) -> None:
    both = (rule("a", when=KEYS, after=HOUR), rule("b", "remove"))
    assert tried(poisoned, *both) == [(4, 0, 4), (5, 5, 0)]
    poisoned.clock.advance(HOUR)
    assert tried(poisoned, *both) == [(4, 4, 0), (5, 5, 0)]


def test_the_time_runs_from_when_a_message_became_poison(poisoned: Queue) -> None:
    poisoned.clock.advance(HOUR / 2)
    put_back(poisoned.table, poisoned.clock, [1])
    poisoned.receive("two")
    poisoned.clock.advance(HOUR / 2)
    assert tried(poisoned, rule(after=HOUR)) == [(9, 8, 1)]
    poisoned.clock.advance(HOUR / 2)
    assert tried(poisoned, rule(after=HOUR)) == [(9, 9, 0)]


def test_the_time_of_what_people_have_moved_runs_from_then(queue: Queue) -> None:
    queue.sent("{}", "{}")
    queue.clock.advance(HOUR)

    def all_of(snapshot: Any) -> tuple[DataFile, ...]:
        files: tuple[DataFile, ...] = snapshot.files
        return files

    queue.table.move_files(all_of, POISON, queue.clock.now())
    assert tried(queue, rule(after=HOUR)) == [(2, 0, 2)]


def test_a_dry_run_writes_nothing(poisoned: Queue) -> None:
    declare_rules(poisoned.table, [rule("a", when=KEYS), rule("b", "tell")], poisoned.clock)
    before = poisoned.table.snapshot().version
    result = dry_run(poisoned.table, poisoned.clock)
    assert (numbers(result), result.dry_run, result.messages, result.unmatched) == ([(4, 4, 0), (5, 5, 0)], True, 9, 0)
    assert poisoned.table.snapshot().version == before


# What they do ---------------------------------------------------------------------------------------------------------


def test_messages_are_put_back_at_most_so_often_and_then_the_next_rule_has_them(poisoned: Queue) -> None:
    both = (rule("again", when=KEYS, at_most=2), rule("rest", "remove", when=KEYS))
    declare_rules(poisoned.table, both, poisoned.clock)
    for number in range(2):
        result = run(poisoned)
        assert (numbers(result), result.unmatched, in_place(poisoned, MAIN)) == ([(4, 4, 0), (0, 0, 0)], 5, [1, 2, 3, 4])
        assert (result.rules[0].state, result.rules[0].done) == ("done", 4)
        maintain(poisoned.table, poisoned.clock, min_files=2)
        poisoned.receive(f"again-{number}")
    assert numbers(run(poisoned)) == [(0, 0, 0), (4, 4, 0)]
    assert (in_place(poisoned, POISON), is_whole(poisoned)) == ([5, 6, 7, 8, 9], True)
    assert sorted(each.lookup_id or 0 for each in poisoned.table.events(types=[EventType.RETURNED])) == [1, 1, 2, 2, 3, 3, 4, 4]


def test_what_people_put_back_does_not_count_for_a_rule(poisoned: Queue) -> None:
    put_back(poisoned.table, poisoned.clock)
    poisoned.receive("two")
    assert tried(poisoned, rule(at_most=1)) == [(9, 9, 0)]


def test_what_a_rule_has_done_says_which_one_and_who_ran_it(poisoned: Queue) -> None:
    run(poisoned, rule("late", when={"lookup_ids": [1]}))
    [event] = [each for each in poisoned.table.events() if each.type is EventType.RETURNED]
    facts = {name: event.details[name] for name in ("who", "why", "rule", "plan")}
    assert facts == {"who": "dag:d/r/t", "why": "rule late", "rule": "late", "plan": plans(poisoned.table)[0].plan}


def test_messages_are_sent_to_another_queue(poisoned: Queue) -> None:
    other = declare(poisoned.store, "cards", NO_RETRY, poisoned.clock)
    result = run(poisoned, rule("cards", "send_to", when=KEYS, target="cards"))
    assert (result.rules[0].done, in_place(poisoned, POISON)) == (4, [5, 6, 7, 8, 9])
    assert sum(file.rows for file in other.snapshot().files) == 4


def test_a_rule_whose_queue_is_gone_keeps_no_other_rule_from_its_messages(poisoned: Queue) -> None:
    rules = [rule("cards", "send_to", when=KEYS, target="gone"), rule("late", when={"lookup_ids": [9]})]
    with pytest.raises(QueueNotFoundError):
        run(poisoned, *rules)
    assert in_place(poisoned, MAIN) == [9]
    assert sorted(each.state for each in plans(poisoned.table)) == ["done", "failed"]
    # the failed plan keeps its messages, and later runs from nothing
    assert numbers(run(poisoned)) == [(4, 0, 4), (0, 0, 0)]


def test_an_interrupted_plan_that_cannot_go_on_keeps_no_rule_from_its_messages(poisoned: Queue, at_point: AtPoint) -> None:
    def die() -> None:
        raise DiedError

    at_point.do("desk.rules.after_plan", die)
    rules = [rule("cards", "send_to", when=KEYS, target="gone"), rule("late", when={"lookup_ids": [9]})]
    with pytest.raises(DiedError):
        run(poisoned, *rules)

    with pytest.raises(QueueNotFoundError):
        run(poisoned)

    assert in_place(poisoned, MAIN) == [9]


def test_an_error_of_a_library_in_one_rule_keeps_no_other_rule_from_its_messages(poisoned: Queue, at_point: AtPoint) -> None:
    def fail() -> None:
        raise ValueError("of a library")

    at_point.do("desk.rules.before_plan", fail)
    with pytest.raises(ValueError, match="of a library"):
        run(poisoned, rule("cards", when=KEYS), rule("late", when={"lookup_ids": [9]}))

    assert in_place(poisoned, MAIN) == [9]


def test_a_plan_whose_messages_cannot_be_read_stops_its_rule_alone(poisoned: Queue) -> None:
    asks, late = rule("cards", "ask", when=KEYS), rule("late", when={"lookup_ids": [9]})
    [asked] = run(poisoned, asks).rules
    [found] = poisoned.table.stored_plans()
    poisoned.table.folder.here(found.members.path).unlink()

    with pytest.raises(TableChangedError, match=found.members.path):
        run(poisoned, asks, late)

    assert (asked.now, in_place(poisoned, MAIN)) == (4, [9])
    assert [each.plan for each in poisoned.table.stored_plans() if each.record["facts"]["rule"] == "cards"] == [asked.plan]


BROKEN: list[dict[str, Any]] = [
    {"name": "broken", "verb": "drop"},
    {"name": "broken", "verb": "tell", "when": {"of_a_newer_version": 1}},
    {"name": "broken", "verb": "remove", "when": {"where": "no_such_column = 1"}},
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_recorded_rule_that_is_none_stops_no_rule_before_it_and_gives_nothing_to_those_behind(poisoned: Queue, broken: dict[str, Any]) -> None:
    recorded = [rule("cards", when=KEYS).to_dict(), broken, rule("rest", "remove").to_dict()]
    configure(poisoned.table, poisoned.clock, rules=recorded)

    with pytest.raises((SettingError, QueryError), match=r"broken|newer_version"):
        run(poisoned)

    assert (in_place(poisoned, MAIN), in_place(poisoned, POISON)) == ([1, 2, 3, 4], [5, 6, 7, 8, 9])


def test_people_are_told_once_of_each_message(poisoned: Queue) -> None:
    send_alerts(poisoned.table, "me", {"notes": lambda _alert: None}, poisoned.clock)
    assert run(poisoned, rule("card", "tell", when=KEYS)).rules[0].done == 4
    [alert] = told(poisoned)
    assert (alert.event, alert.lookup_ids, alert.count) == ("TOLD", (1, 2, 3, 4), 4)
    assert alert.reason == "4 messages of queue 'orders' wait in poison; rule 'card' tells of them."
    put_back(poisoned.table, poisoned.clock)
    poisoned.receive("two")
    assert (numbers(run(poisoned)), told(poisoned)) == ([(4, 0, 0)], [])
    assert [each.lookup_id for each in poisoned.table.events(types=[EventType.TOLD])] == [1, 2, 3, 4]


def test_two_rules_that_tell_are_two_alerts(poisoned: Queue) -> None:
    run(poisoned, rule("a", "tell", when=KEYS), rule("b", "tell"))
    assert [(alert.details["rule"], alert.count) for alert in told(poisoned)] == [("a", 4), ("b", 5)]


def test_what_is_asked_waits_as_a_paused_plan(poisoned: Queue) -> None:
    result = run(poisoned, rule("card", "ask", when=KEYS, proposes=RuleVerb.REMOVE), key="one")
    [asked] = result.rules
    assert (asked.now, asked.state, in_place(poisoned, POISON)) == (4, "paused", list(range(1, 10)))
    [alert] = told(poisoned)
    assert (alert.event, alert.count, alert.details["plan"]) == ("PLANNED", 4, asked.plan)
    assert alert.reason == "Rule 'card' of queue 'orders' proposes to remove 4 messages."
    assert numbers(run(poisoned, key="two")) == [(4, 0, 4)]
    resume(poisoned.table, asked.plan, poisoned.clock, who="airflow:ann")
    assert apply(poisoned.table, asked.plan, poisoned.clock).done == 4
    assert (numbers(run(poisoned, key="three")), told(poisoned)) == ([(0, 0, 0)], [])


def test_what_people_have_said_no_to_is_asked_again_when_it_is_poison_again(poisoned: Queue) -> None:
    asked = run(poisoned, rule("card", "ask", when=KEYS)).rules[0]
    cancel(poisoned.table, asked.plan, poisoned.clock, who="airflow:ann")
    assert numbers(run(poisoned)) == [(4, 0, 0)]
    put_back(poisoned.table, poisoned.clock, [1])
    poisoned.receive("two")
    assert numbers(run(poisoned)) == [(4, 1, 0)]


def test_a_plan_that_somebody_has_paused_is_left_alone(poisoned: Queue, at_point: AtPoint) -> None:
    at_point.do("desk.rules.after_plan", lambda: pause(poisoned.table, plans(poisoned.table)[0].plan, poisoned.clock, who="x"))
    assert run(poisoned, rule()).rules[0].state == "paused"
    assert (numbers(run(poisoned)), in_place(poisoned, MAIN)) == ([(9, 0, 9)], [])


# Whoever dies ---------------------------------------------------------------------------------------------------------

TABLE = (rule("again", when=KEYS, at_most=1), rule("gone", "remove", when={"where": "body.carrier = 'VX'"}), rule("told", "tell"))
POINTS: tuple[str, ...] = (
    "desk.rules.before_plan",
    "store.plan.before_commit",
    "store.plan.after_commit",
    "desk.rules.after_plan",
    "desk.apply.before_chunk",
)
POINTS += ("store.replace.after_commit", "desk.apply.after_chunk", "desk.rules.before_telling", "desk.rules.after_telling")


@pytest.mark.long
@pytest.mark.parametrize("store", ["delta"], indirect=True)
@pytest.mark.parametrize("key", ["", "task"])
@pytest.mark.parametrize("point", POINTS)
def test_who_dies_anywhere_does_each_message_once(poisoned: Queue, at_point: AtPoint, point: str, key: str) -> None:
    declare_rules(poisoned.table, TABLE, poisoned.clock)

    def die() -> None:
        raise DiedError

    at_point.do(point, die)
    for _ in range(2):
        try:
            run(poisoned, key=key)
        except DiedError:
            continue
    assert_each_once(poisoned)


@pytest.mark.long
@pytest.mark.parametrize("store", ["delta"], indirect=True)
@pytest.mark.parametrize("point", POINTS)
def test_two_runs_at_the_same_time_do_each_message_once(poisoned: Queue, at_point: AtPoint, point: str) -> None:
    declare_rules(poisoned.table, TABLE, poisoned.clock)
    at_point.do(point, lambda: run(poisoned))
    run(poisoned)
    assert_each_once(poisoned)


def assert_each_once(queue: Queue) -> None:
    happened = {kind: sorted(each.lookup_id or 0 for each in queue.table.events(types=[kind])) for kind in EventType}
    assert happened[EventType.RETURNED] == [1, 2, 3, 4]
    assert happened[EventType.DROPPED] == [5, 7, 9]
    assert happened[EventType.TOLD] == [6, 8]
    assert (in_place(queue, MAIN), in_place(queue, POISON), len(told(queue)), is_whole(queue)) == ([1, 2, 3, 4], [6, 8], 1, True)
