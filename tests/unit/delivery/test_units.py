"""Delivery by data frames: whoever fails alone is charged, and nobody else; what the policy says holds; a death forgets nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_poison.delivery import units
from airflow_poison.delivery.handlers import POISON_COLUMN, HandlerRef, Transformation
from airflow_poison.delivery.journal import STATE_MASK, Journal, MessageState, attempts_of, crashes_of
from airflow_poison.delivery.outage import Detection, OutageVerdict
from airflow_poison.delivery.recovered import Forced, TryNote, read_history
from airflow_poison.delivery.stage import StageJob, Tally
from airflow_poison.delivery.unit_counts import open_ids, settled
from airflow_poison.delivery.units import MOST_SEARCHES, Broke, Ran, SparkLostError, UnitDelivery, UnitRules
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.outage import Outage
from airflow_poison.spark.messages import shares
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import ConfigurationWarning, ReceiveStoppedError, SparkJobError
from airflow_poison.values.failures import Failure, FailureKind, origin
from airflow_poison.values.schema import EVENT, TALLY, table_schema
from tests.given.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from airflow_poison.delivery.unit_counts import UnitOutcome
    from airflow_poison.rules.policy import Policy

MOVE = Msmq4(receive_retry_count=2, max_retry_cycles=1, receive_error_handling="Move")
FAULT = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Fault")
RAISED, HUNG = Failure(FailureKind.EXCEPTION, "CAST_INVALID_INPUT", "bad"), Failure(FailureKind.TIMEOUT, "timeout")
SMALL_CHUNKS = UnitRules(side_by_side=2, chunk_rows=16, largest_rows=16)
NAMED = Failure(FailureKind.EXCEPTION, POISON_COLUMN, "no such carrier")


@dataclass
class Played:
    """A runner whose messages do what a script says: ``raise``, ``hang``, ``name``, ``kill``, or ``heal`` (raises on its first delivery).

    :param separable: how often it tries sets of messages by themselves, until it cannot.
    :ivar calls: how many sets were tried at once.

    """

    script: Mapping[int, str]
    marks: bool = False
    kept: dict[int, set[int]] = field(default_factory=dict)
    units: list[list[int]] = field(default_factory=list)
    raised: set[int] = field(default_factory=set)
    parts: int = 0
    catches: bool = False
    separable: int = 1_000
    calls: list[int] = field(default_factory=list)

    def each(
        self, sets: Sequence[NDArray[np.int64]], attempts: Sequence[NDArray[np.int32]], *, lands: Sequence[int] | None
    ) -> list[Ran | Broke] | None:
        self.parts = self.parts if len(self.calls) < self.separable else 0
        if not self.parts:
            return None
        self.calls.append(len(sets))
        assert list(map(len, sets)) == list(map(len, attempts))
        units, numbers = len(self.units), [*lands] if lands is not None else [None] * len(sets)
        found = [self.run(ids, counts, lands=number, traced=True) for ids, counts, number in zip(sets, attempts, numbers, strict=True)]
        del self.units[units:]
        return found

    def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
        ids = lookup_ids.tolist()
        assert ids == sorted(ids)
        self.units.append(ids)
        acts = {number: self.script.get(number, "") for number in ids}
        if "kill" in acts.values():
            raise SparkLostError("its JVM has ended")
        broken = [number for number, act in acts.items() if act in {"raise", "hang"} or (act == "heal" and not self._healed(number, ids))]
        if broken:
            failure = HUNG if acts[broken[0]] == "hang" else RAISED
            return Broke(failure, tuple(broken[:1]) if self.marks and traced else (), traceable=self.marks and not traced and len(ids) > 1)
        named = {number: NAMED for number, act in acts.items() if act == "name"}
        if lands is not None:
            self.kept[lands] = {*ids} - named.keys()
        return Ran(verdicts=named)

    def caught(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int) -> Ran | Broke:
        raised = tuple(number for number in lookup_ids.tolist() if self.script.get(number) == "raise")
        end = self.run(lookup_ids[~np.isin(lookup_ids, raised)], attempts[~np.isin(lookup_ids, raised)], lands=lands)
        return replace(end, raised=raised) if isinstance(end, Ran) else end

    def _healed(self, number: int, ids: Sequence[int]) -> bool:
        if number in self.raised:
            return True
        if len(ids) == 1:
            self.raised.add(number)
        return False

    def drop(self, lands: int) -> None:
        self.kept.pop(lands, None)

    def beat(self) -> None: ...

    def cancel(self) -> None: ...

    def leave(self) -> None: ...

    @property
    def landed(self) -> list[int]:
        return sorted(number for ids in self.kept.values() for number in ids)


def messages(number: int, priorities: Mapping[int, int] | None = None) -> pa.RecordBatch:
    rows = [
        {"lookup_id": id_, "priority": (priorities or {}).get(id_, 5), "abort_count": 0, "move_count": 0, "sub_queue": "main"}
        for id_ in range(1, number + 1)
    ]
    return pa.Table.from_pylist(rows, schema=table_schema()).combine_chunks().to_batches()[0]


def deliver(
    folder: Path,
    played: Played,
    batch: pa.RecordBatch,
    policy: Policy = MOVE,
    *,
    rules: UnitRules = SMALL_CHUNKS,
    keep_alive: Callable[[], None] = lambda: None,
    outage: Outage | None = None,
    expects: str = "",
    events: list[dict[str, str]] | None = None,
    report: Callable[[str], None] = lambda _line: None,
    named: Mapping[int, Failure] | None = None,
) -> tuple[UnitOutcome, Tally, dict[int, dict[str, object]]]:
    """Deliver in one try; return what became of the messages: as told, in numbers, and the rows that remain.

    :param events: takes the details of the events that units were unstable.
    """
    folders = sorted(folder.iterdir()) if folder.is_dir() else []
    story = read_history([each / "journal" for each in folders], timedelta(0))
    here = folder / f"{len(folders):03}"
    (here / "journal").mkdir(parents=True)
    (here / "begun").write_text(TryNote("", Forced.MARKS).to_json())
    detection = None if outage is None else Detection(outage, str(here / "journal"), expects)
    transform = Transformation(HandlerRef("shop:clean"), named=named or {})
    job = StageJob("orders", policy, HandlerRef("shop:clean"), str(here / "journal"), VirtualClock(), detection=detection, transform=transform)
    with Journal(here / "journal", "frames") as journal:
        outcome = UnitDelivery(replace(job, deaths=story.deaths), batch, played, journal, recovered=story.recovered, rules=rules, report=report).run(
            keep_alive
        )
    wanted = np.isin(batch.column("lookup_id").to_numpy(), open_ids(job, outcome))
    rows = pa.Table.from_batches(settled(job, outcome, story.recovered, iter([batch.filter(pa.array(wanted))]), iter(())), table_schema()).to_pylist()
    if events is not None:
        events += [
            {name: text for name, text in json.loads(row["body"]).items() if name != "move_count"}
            for row in rows
            if row["sub_queue"] == EVENT and row["message_type"] == "UNSTABLE_BATCH"
        ]
    (tally,) = (Tally.from_record(json.loads(row["body"])) for row in rows if row["sub_queue"] == TALLY)
    return outcome, tally, {row["lookup_id"]: row for row in rows if row["sub_queue"] in {"main", "retry", "poison"}}


def charged(outcome: UnitOutcome) -> dict[int, int]:
    attempts = attempts_of(outcome.words)
    return {int(number): int(count) for number, count in zip(outcome.lookup_ids, attempts, strict=True) if count}


def test_a_clean_claim_is_one_job_for_each_chunk(tmp_path: Path) -> None:
    played = Played({})

    outcome, tally, rows = deliver(tmp_path, played, messages(40))

    assert sorted(map(len, played.units)) == [8, 16, 16]
    assert played.landed == list(range(1, 41))
    assert rows == {}
    assert (tally.counts["received"], tally.counts["committed"], tally.counts["deliveries"]) == (40, 40, 40)
    assert outcome.units == 3


def test_units_grow_while_they_are_quick_and_are_small_behind_one_that_failed(tmp_path: Path) -> None:
    rules = UnitRules(side_by_side=1, chunk_rows=10, largest_rows=100)

    quick, failing = Played({}), Played({400: "raise", 401: "name"})
    deliver(tmp_path / "quick", quick, messages(250), rules=rules)
    deliver(tmp_path / "failing", failing, messages(700), rules=rules)

    assert list(map(len, quick.units)) == [10, 100, 100, 40]
    behind = [unit for unit in failing.units if unit[0] > 401 and len(unit) > 1]
    assert len(behind) >= 29
    assert {*map(len, behind[:-1])} == {10}


def test_the_last_units_are_alike_instead_of_a_small_one_at_the_end(tmp_path: Path) -> None:
    played, sent = Played({}), messages(260)

    deliver(tmp_path, played, sent, rules=UnitRules(side_by_side=2, chunk_rows=50, largest_rows=80))

    assert sorted(map(len, played.units)) == [50, 50, 80, 80]


def test_a_unit_that_failed_and_succeeds_with_a_trace_is_unstable_and_nobody_is_charged(tmp_path: Path) -> None:
    class FailsOnce(Played):
        def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
            return super().run(lookup_ids, attempts, lands=lands, traced=traced) if traced else Broke(RAISED, traceable=True)

    played, events = FailsOnce({}, marks=True), list[dict[str, str]]()

    outcome, _, rows = deliver(tmp_path, played, messages(30), rules=UnitRules(), events=events)

    assert (charged(outcome), rows, played.landed, len(played.units)) == ({}, {}, list(range(1, 31)), 1)
    assert events == [{"messages": "30", "first": "1", "last": "30", "error": "CAST_INVALID_INPUT: bad"}]


def test_a_large_unit_with_many_culprits_is_cut_when_a_mark_has_named_one(tmp_path: Path) -> None:
    played = Played(dict.fromkeys(range(7, 400, 40), "raise"), marks=True)

    outcome, _, _ = deliver(tmp_path, played, messages(400), replace(MOVE, receive_retry_count=0), rules=UnitRules(piece_rows=100))

    assert len(charged(outcome)) == 10
    assert len([unit for unit in played.units if len(unit) > 390]) == 3, "as it is, with a trace, without its first culprit"


@pytest.mark.parametrize("marks", [False, True], ids=["halving", "marks"])
def test_culprits_fail_alone_as_often_as_the_policy_says_and_all_others_land(tmp_path: Path, *, marks: bool) -> None:
    played = Played({7: "raise", 8: "hang", 30: "raise", 31: "name", 12: "heal"}, marks=marks)

    outcome, tally, rows = deliver(tmp_path, played, messages(40))

    assert charged(outcome) == {7: 3, 8: 3, 30: 3, 31: 3, 12: 1}
    assert played.landed == sorted({*range(1, 41)} - {7, 8, 30, 31})
    assert {number: row["sub_queue"] for number, row in rows.items()} == dict.fromkeys([7, 8, 30, 31], "retry")
    assert rows[7]["last_error"]["type"] == "CAST_INVALID_INPUT"  # type: ignore[index]
    assert rows[31]["reason"] == "_poison: no such carrier"
    assert (tally.counts["committed"], tally.counts["parked"], tally.counts["timeouts"]) == (36, 4, 3)


@pytest.mark.parametrize("marks", [False, True], ids=["nothing is known", "marks"])
def test_ten_culprits_cost_three_jobs_where_sets_are_tried_in_parts_of_one_plan(tmp_path: Path, *, marks: bool) -> None:
    culprits = set(range(7, 20_000, 2_000))
    played = Played(dict.fromkeys(culprits, "raise"), marks=marks, parts=64)

    outcome, _, _ = deliver(tmp_path, played, messages(20_000), rules=UnitRules())

    assert charged(outcome) == dict.fromkeys(culprits, 3)
    assert played.landed == sorted({*range(1, 20_001)} - culprits)
    assert len(played.units) == 1, "what succeeds in parts lands as it is"
    assert played.calls[-2:] == [10, 10], "they are delivered again together, each alone"


@pytest.mark.parametrize("parts", [0, 64], ids=["jobs", "parts"])
def test_where_errors_are_caught_one_unit_fails_and_each_message_that_raises_is_tried_alone(tmp_path: Path, parts: int) -> None:
    culprits = set(range(7, 3_000, 300))
    played = Played(dict.fromkeys(culprits, "raise") | {90: "name"}, parts=parts, catches=True)

    outcome, _, _ = deliver(tmp_path, played, messages(3_000), rules=UnitRules(chunk_rows=1_000, largest_rows=1_000))

    assert charged(outcome) == dict.fromkeys(culprits | {90}, 3)
    assert played.landed == sorted({*range(1, 3_001)} - culprits - {90})
    units = [unit for unit in played.units if len(unit) > 1]
    assert [len(unit) for unit in units] == [1_000, 996, 997, 997], "the first one fails; what is caught is kept"


def test_messages_that_were_transformed_together_with_one_that_raised_are_delivered_without_it(tmp_path: Path) -> None:
    class Batched(Played):
        def caught(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int) -> Ran | Broke:
            end = super().caught(lookup_ids, attempts, lands=lands)
            assert isinstance(end, Ran)
            spoiled = tuple(number for number in self.kept[lands] if any(number // 10 == other // 10 for other in end.raised))
            self.kept[lands] -= {*spoiled}
            return replace(end, spoiled=spoiled)

    played = Batched({57: "raise"}, parts=8, catches=True)

    outcome, _, _ = deliver(tmp_path, played, messages(100), replace(MOVE, receive_retry_count=0), rules=UnitRules(chunk_rows=100))

    assert charged(outcome) == {57: 1}
    assert played.landed == [number for number in range(1, 101) if number != 57]


def test_where_too_many_raise_the_rest_stays_in_the_queue_uncounted(tmp_path: Path) -> None:
    played, lines = Played(dict.fromkeys(range(1, 1_501), "raise"), parts=8, catches=True), list[str]()

    outcome, _, _ = deliver(tmp_path, played, messages(2_000), replace(MOVE, receive_retry_count=0), rules=UnitRules(), report=lines.append)

    assert len(charged(outcome)) == MOST_SEARCHES
    assert played.landed == list(range(1_501, 2_001))
    assert len([line for line in lines if "500 messages" in line and "stay in the queue" in line]) == 1


def test_a_message_that_halts_the_endpoint_is_tried_alone_in_a_part_of_a_plan(tmp_path: Path) -> None:
    played = Played({7: "raise", 9: "raise"}, parts=64)

    outcome, tally, _ = deliver(tmp_path, played, messages(20), FAULT, rules=UnitRules(chunk_rows=40))

    assert charged(outcome) == {7: 2}
    assert tally.halt is not None
    assert played.landed == list(range(1, 7))
    assert not any(unit == [7] for unit in played.units)


class Spread(Played):
    """With a trace it tells of the messages of the task that failed."""

    def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
        end = super().run(lookup_ids, attempts, lands=lands, traced=traced)
        if isinstance(end, Ran) or len(lookup_ids) == 1:
            return end
        if not traced:
            return replace(end, traceable=True)
        bad = next(place for place, number in enumerate(lookup_ids.tolist()) if self.script.get(number) in {"raise", "hang"})
        return replace(end, suspects=tuple(lookup_ids[shares(lookup_ids) == shares(lookup_ids)[bad]].tolist()))


@pytest.mark.parametrize("number", [2_000, 20_000])
def test_ten_culprits_are_found_in_few_jobs_where_a_failed_task_tells_of_its_messages(tmp_path: Path, number: int) -> None:
    culprits = set(range(7, number, number // 10))
    played = Spread(dict.fromkeys(culprits, "raise"))

    outcome, _, _ = deliver(tmp_path, played, messages(number), replace(MOVE, receive_retry_count=0), rules=UnitRules())

    assert charged(outcome) == dict.fromkeys(culprits, 1)
    assert played.landed == sorted({*range(1, number + 1)} - culprits)
    assert len(played.units) <= 80, "halving needs more than 120"


def test_a_task_that_tells_of_the_wrong_messages_costs_jobs_and_nobody_is_charged_for_it(tmp_path: Path) -> None:
    class Wrong(Played):
        def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
            end = super().run(lookup_ids, attempts, lands=lands, traced=traced)
            return replace(end, suspects=tuple(range(100, 120))) if isinstance(end, Broke) else end

    played = Wrong({7: "raise", 110: "raise"})

    outcome, _, _ = deliver(tmp_path, played, messages(300), replace(MOVE, receive_retry_count=0), rules=UnitRules())

    assert charged(outcome) == {7: 1, 110: 1}
    assert played.landed == sorted({*range(1, 301)} - {7, 110})


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.dictionaries(st.integers(1, 60), st.sampled_from(["raise", "hang", "name", "heal"]), max_size=12),
    rules=st.builds(UnitRules, st.integers(1, 3), chunk_rows=st.integers(1, 70), piece_rows=st.integers(1, 60)),
    marks=st.booleans(),
    separable=st.sampled_from([0, 1, 2, 3, 1_000]),
)
def test_only_culprits_are_charged_and_only_others_land(script: dict[int, str], rules: UnitRules, marks: bool, separable: int) -> None:  # noqa: FBT001
    played = Played(script, marks=marks, parts=64, separable=separable)
    with TemporaryDirectory() as folder:
        outcome, tally, rows = deliver(Path(folder) / "s", played, messages(60), rules=rules)

    hopeless = {number for number, act in script.items() if act != "heal"}
    assert charged(outcome) == {number: 1 if act == "heal" else 3 for number, act in script.items()}
    assert played.landed == sorted({*range(1, 61)} - hopeless)
    assert set(rows) == hopeless
    assert tally.counts["received"] == tally.counts["committed"] + tally.counts["parked"] == 60


@settings(max_examples=examples(25), deadline=None)
@given(
    script=st.dictionaries(st.integers(1, 40), st.sampled_from(["raise", "name", "heal"]), max_size=6),
    urgent=st.sets(st.integers(1, 40), max_size=10),
    chunk=st.integers(1, 50),
)
def test_what_is_behind_a_message_that_halts_is_as_if_never_delivered(script: dict[int, str], urgent: set[int], chunk: int) -> None:
    played = Played(script)
    with TemporaryDirectory() as folder:
        outcome, tally, rows = deliver(Path(folder) / "s", played, messages(40, dict.fromkeys(urgent, 9)), FAULT, rules=UnitRules(chunk_rows=chunk))

    order = [*sorted(urgent), *(number for number in range(1, 41) if number not in urgent)]
    halts = next((place for place, number in enumerate(order) if script.get(number, "heal") != "heal"), None)
    before = order if halts is None else order[:halts]
    assert played.landed == sorted(before)
    wanted = {number: 1 for number in before if number in script}
    assert charged(outcome) == wanted | ({} if halts is None else {order[halts]: 2})
    assert (None if tally.halt is None else tally.halt["lookup_id"]) == (None if halts is None else order[halts])
    assert set(rows) == ({*order} - {*before})


class Large(Played):
    """Fails with more than ten messages."""

    def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
        return Broke(RAISED) if len(lookup_ids) > 10 else super().run(lookup_ids, attempts, lands=lands, traced=traced)


@pytest.mark.parametrize("piece_rows", [10, 4_000], ids=["pieces", "halves"])
def test_a_unit_that_fails_and_whose_parts_do_not_is_unstable_and_nobody_is_charged(tmp_path: Path, piece_rows: int) -> None:
    played, events, lines = Large({}), list[dict[str, str]](), list[str]()

    outcome, _, rows = deliver(tmp_path, played, messages(30), rules=UnitRules(piece_rows=piece_rows), events=events, report=lines.append)

    assert (charged(outcome), rows, played.landed) == ({}, {}, list(range(1, 31)))
    assert events[-1] == {"messages": "30", "first": "1", "last": "30", "error": "CAST_INVALID_INPUT: bad"}
    assert lines[-1] == "30 messages failed together (CAST_INVALID_INPUT: bad), and none of them alone: no message is charged"


@pytest.mark.parametrize("piece_rows", [10, 4_000], ids=["pieces", "halves"])
def test_a_unit_whose_culprit_is_found_is_not_unstable(tmp_path: Path, piece_rows: int) -> None:
    events: list[dict[str, str]] = []

    deliver(tmp_path, Played({7: "raise"}), messages(30), rules=UnitRules(piece_rows=piece_rows), events=events)

    assert events == []


def test_suspects_of_a_death_that_all_succeed_are_unstable(tmp_path: Path) -> None:
    with pytest.raises(SparkJobError):
        deliver(tmp_path, Played({7: "kill"}), messages(40))
    events: list[dict[str, str]] = []

    outcome, _, _ = deliver(tmp_path, Played({}), messages(40), events=events)

    assert charged(outcome) == {}
    assert [event["error"] for event in events] == ["Spark, or the process that drove it, ended"]


def test_rows_that_are_mixed_are_one_unit_without_those_that_ended(tmp_path: Path) -> None:
    played = Played({7: "raise", 31: "name", 12: "heal"})

    outcome, _, rows = deliver(tmp_path, played, messages(40), rules=UnitRules(mixes_rows=True))

    assert charged(outcome) == {7: 3, 31: 3, 12: 1}
    assert list(played.kept.values()) == [{*range(1, 41)} - {7, 31}]
    assert set(rows) == {7, 31}


def test_rows_that_are_mixed_and_fail_only_together_are_nobodys_fault(tmp_path: Path) -> None:
    class Together(Played):
        def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
            return Broke(RAISED) if len(lookup_ids) > 10 else super().run(lookup_ids, attempts, lands=lands, traced=traced)

    with pytest.raises(SparkJobError, match=r"None of them fails alone, so no message is charged"):
        deliver(tmp_path, Together({}), messages(40), rules=UnitRules(mixes_rows=True))


def test_a_message_that_ends_spark_is_found_and_charged_alone(tmp_path: Path) -> None:
    """Each death is a try. It is charged for those before, too."""
    batch, deaths = messages(400), 0
    while True:
        try:
            outcome, tally, rows = deliver(tmp_path, Played({123: "kill"}), batch, rules=UnitRules(2, chunk_rows=200))
            break
        except SparkJobError:
            deaths += 1
        assert deaths < 10

    assert deaths == 3, "400 suspects, then 7 of them, then one: that is charged with all three"
    assert charged(outcome) == {123: 3}
    assert set(rows) == {123}
    assert crashes_of(outcome.words).max() == 3
    assert (tally.counts["committed"], tally.counts["parked"]) == (399, 1)


def test_whoever_is_asked_to_stop_leaves_nobody_suspected(tmp_path: Path) -> None:
    def stop() -> None:
        raise ReceiveStoppedError("somebody has asked for it")

    with pytest.raises(ReceiveStoppedError):
        deliver(tmp_path, Played({3: "kill", 7: "raise"}), messages(40), keep_alive=stop)

    story = read_history([tmp_path / "000" / "journal"])
    assert story.deaths == {}


def test_attempts_that_were_counted_before_a_death_are_not_counted_again(tmp_path: Path) -> None:
    class DiesLate(Played):
        def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
            if lookup_ids.tolist() == [7] and self.units.count([7]) == 2:
                raise SparkLostError("its JVM has ended")
            return super().run(lookup_ids, attempts, lands=lands, traced=traced)

    with pytest.raises(SparkJobError, match="JVM has ended"):
        deliver(tmp_path, DiesLate({7: "raise"}), messages(40), rules=UnitRules(chunk_rows=40))

    outcome, _, rows = deliver(tmp_path, played := Played({7: "raise"}), messages(40), rules=UnitRules(chunk_rows=40))

    assert charged(outcome) == {7: 3}
    assert played.landed == sorted({*range(1, 41)} - {7})
    assert set(rows) == {7}


def test_a_claim_whose_messages_have_all_been_charged_by_a_pass_that_was_stopped_is_delivered_on(tmp_path: Path) -> None:
    class Stopped(Played):
        def run(self, lookup_ids: NDArray[np.int64], attempts: NDArray[np.int32], *, lands: int | None, traced: bool = False) -> Ran | Broke:
            if self.units:
                raise ReceiveStoppedError("it was asked to stop")
            return super().run(lookup_ids, attempts, lands=lands, traced=traced)

    with pytest.raises(ReceiveStoppedError):
        deliver(tmp_path, Stopped({1: "name", 2: "name"}), messages(2))

    outcome, _, rows = deliver(tmp_path, played := Played({1: "name"}), messages(2))

    assert (charged(outcome)[1], played.landed, [*rows]) == (3, [2], [1])


def test_what_was_named_when_it_was_a_row_has_had_a_delivery(tmp_path: Path) -> None:
    played = Played({2: "name"})
    batch = messages(4)

    outcome, tally, rows = deliver(tmp_path, played, batch, named=dict.fromkeys([2, 3, 9], NAMED))

    assert charged(outcome) == {2: 3, 3: 1}
    assert sorted(played.units) == [[1, 4], [2], [2, 3]]
    assert (tally.counts["committed"], tally.counts["deliveries"]) == (3, 3 + 3 + 1)
    assert [*rows] == [2]


def test_what_was_named_when_it_was_a_row_is_not_charged_for_it_where_it_was_delivered_since(tmp_path: Path) -> None:
    played, batch = Played({}), messages(3)
    counts = pa.array([0, 1, 0], pa.int32())
    delivered = batch.set_column(batch.schema.get_field_index("abort_count"), batch.schema.field("abort_count"), counts)

    outcome, _, _ = deliver(tmp_path, played, delivered, named=dict.fromkeys([1, 2], NAMED))

    assert charged(outcome) == {1: 1}


def test_a_message_that_is_consumed_before_its_delivery_is_gone_when_it_fails(tmp_path: Path) -> None:
    with pytest.warns(ConfigurationWarning, match="a message whose handler fails is lost"):
        once = Msmq4(receive_error_handling="Move", transaction_scope_required=False)
    played = Played({7: "raise", 9: "name"})

    outcome, tally, rows = deliver(tmp_path, played, messages(20), once)

    assert (charged(outcome), rows, tally.counts["committed"]) == ({}, {}, 20)
    assert played.landed == sorted({*range(1, 21)} - {7, 9})


def test_a_message_above_the_size_limit_is_not_transformed(tmp_path: Path) -> None:
    limited = Msmq4(receive_error_handling="Move", max_received_message_size=10)
    batch = messages(20)
    bodies = pa.array([b"x" * 11 if number == 5 else None for number in range(1, 21)], pa.binary())
    batch = batch.set_column(batch.schema.get_field_index("body"), "body", bodies)
    played = Played({})

    outcome, _, rows = deliver(tmp_path, played, batch, limited)

    assert played.landed == sorted({*range(1, 21)} - {5})
    assert (outcome.words & STATE_MASK)[4] == MessageState.ENDED
    assert {number: row["sub_queue"] for number, row in rows.items()} == {5: "poison"}
    assert rows[5]["reason"] == "unreadable: 11 bytes are above max_received_message_size=10"


# Outages ---------------------------------------------------------------------------------------------------------------

AWAY = origin(RAISED)


def verdict_of(folder: Path) -> OutageVerdict | None:
    return OutageVerdict.read(folder / "000" / "journal")


@pytest.mark.parametrize("policy", [MOVE, FAULT], ids=["moves", "halts"])
@pytest.mark.parametrize("mixes", [False, True], ids=["chunks", "one unit"])
def test_an_outage_is_found_with_a_few_jobs_and_charges_nobody(tmp_path: Path, policy: Policy, *, mixes: bool) -> None:
    if policy is FAULT and mixes:
        return  # refused: what is behind a culprit is not delivered
    played = Played(dict.fromkeys(range(1, 1_001), "raise"))

    outcome, _, rows = deliver(tmp_path, played, messages(1_000), policy, rules=replace(SMALL_CHUNKS, mixes_rows=mixes), outage=Outage())

    assert verdict_of(tmp_path) == OutageVerdict(AWAY, "CAST_INVALID_INPUT: bad", VirtualClock().now().isoformat())
    assert len(played.units) <= 2 + 5
    assert charged(outcome) == {}
    assert all(row["sub_queue"] == "main" for row in rows.values())


@pytest.mark.parametrize("script", [{7: "raise"}, {3: "raise", 7: "raise", 20: "raise"}, dict.fromkeys(range(1, 17), "name"), {4: "hang"}])
def test_culprits_are_no_outage(tmp_path: Path, script: dict[int, str]) -> None:
    outcome, _, _ = deliver(tmp_path, Played(script), messages(40), outage=Outage())

    assert verdict_of(tmp_path) is None
    assert charged(outcome) == dict.fromkeys(script, 3)


def test_an_outage_is_found_where_errors_are_caught(tmp_path: Path) -> None:
    played = Played(dict.fromkeys([7, *range(1_001, 2_001)], "raise"), parts=8, catches=True)
    rules = UnitRules(chunk_rows=1_000, largest_rows=1_000)

    outcome, _, _ = deliver(tmp_path, played, messages(2_000), replace(MOVE, receive_retry_count=0), rules=rules, outage=Outage())

    assert verdict_of(tmp_path) is not None
    assert charged(outcome) == {7: 1}
    assert len(played.units) < 20, "a few are tried alone, and not all"


def test_a_unit_that_fails_is_judged_once_although_it_runs_again_with_a_trace(tmp_path: Path) -> None:
    played = Played({7: "raise"}, marks=True)

    outcome, _, _ = deliver(tmp_path, played, messages(40), rules=UnitRules(chunk_rows=40), outage=Outage())

    assert charged(outcome) == {7: 3}
    besides = [unit[0] for unit in played.units if len(unit) == 1 and unit != [7]]
    assert besides
    assert len(besides) == len({*besides})


def test_a_pass_that_probes_goes_on_when_its_messages_succeed(tmp_path: Path) -> None:
    _, tally, _ = deliver(tmp_path, Played({}), messages(20), outage=Outage(), expects=AWAY)

    assert verdict_of(tmp_path) is None
    assert tally.counts["committed"] == 20


@pytest.mark.parametrize("number", [1, 20])
def test_a_pass_that_probes_stops_when_they_fail_as_before(tmp_path: Path, number: int) -> None:
    played = Played(dict.fromkeys(range(1, number + 1), "raise"))

    outcome, _, _ = deliver(tmp_path, played, messages(number), outage=Outage(), expects=AWAY)

    assert verdict_of(tmp_path) is not None
    assert charged(outcome) == {}
    assert len(played.units) <= 1 + 20


def test_one_that_fails_otherwise_while_it_probes_is_charged(tmp_path: Path) -> None:
    outcome, _, _ = deliver(tmp_path, Played({4: "raise"}), messages(20), outage=Outage(), expects="0123456789ab")

    assert verdict_of(tmp_path) is None
    assert charged(outcome) == {4: 3}


def test_poison_that_comes_back_from_retry_is_no_outage(tmp_path: Path) -> None:
    """It comes alone and fails alike, and was charged with the same type of exception before."""
    before = {"kind": RAISED.kind.value, "type": RAISED.type, "message": "bad", "traceback": ""}
    back = pa.Table.from_pylist([{**row, "last_error": before} for row in messages(40).to_pylist()], schema=messages(40).schema).to_batches()[0]

    outcome, _, _ = deliver(tmp_path, Played(dict.fromkeys(range(1, 41), "raise")), back, outage=Outage())

    assert verdict_of(tmp_path) is None
    assert charged(outcome) == dict.fromkeys(range(1, 41), 3)


def test_a_search_says_why_what_would_name_the_culprits_and_how_long_the_rest_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 4))
    monkeypatch.setattr(units, "time", SimpleNamespace(monotonic=lambda: next(now)))
    lines: list[str] = []
    deliver(tmp_path, Played({3: "raise", 9: "raise", 20: "hang"}), messages(32), rules=UnitRules(chunk_rows=16), report=lines.append)

    searched = [line for line in lines if "the pass looks for" in line]
    assert [line.partition(":")[0] for line in searched] == [
        "16 messages failed together (CAST_INVALID_INPUT",
        "16 messages failed together (timeout",
    ]
    assert all(POISON_COLUMN in line and "try_cast" in line and "up to 10 jobs; the one that failed took 4.0 s" in line for line in searched)


def test_a_claim_says_how_far_it_is_within_ten_seconds_and_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, lines = iter([0.0, 9.0, 10.0, 20.0, 79.0, 80.0]), list[str]()
    monkeypatch.setattr(units, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    good = np.zeros(8, bool)
    looking = units.UnitSearch("first", SimpleNamespace(good=good), Played({}), lines.append)  # type: ignore[arg-type]  # all of a claim that it reads

    for told, done in [(0, 0), (1, 0), (2, 2), (2, 2), (3, 2)]:
        good[:done] = True
        looking.report_progress()
        assert len(lines) == told

    assert lines == [
        "0 of 8 messages transformed after 10 s and 0 units",
        *[f"2 of 8 messages transformed after {after} s and 0 units; the rest may take {3 * after} s" for after in (20, 80)],
    ]
