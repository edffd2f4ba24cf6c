"""What whatever carries the rules out must agree on, for worked examples and for any other script."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import Verb
from airflow_poison.values.events import ROUTINE, EventType
from tests.conformance.examples import EXAMPLES
from tests.conformance.played import HERE, PROCESSED, QUEUE, of_replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.conformance.examples.shape import Example
    from tests.conformance.played import Played, Told

ON_TABLES = [example for example in EXAMPLES if not example.needs_a_host]


def replayed(example: Example) -> Played:
    """Return what the replay makes of an example that ends."""
    result = replay(example.policy, example.script, access=example.access, queue=QUEUE)
    assert not result.endless, "the script goes on for ever"
    return of_replay(result)


def keeps_order(example: Example) -> bool:
    """Whether the deliveries of different messages have one order: where the endpoint can halt, and people leave its settings alone."""
    return example.policy.halting and not any(action.verb == Verb.ALTER for action in example.script.actions)


def assert_as_the_example_says(example: Example, played: Played, *, in_order: bool) -> None:
    """The same events at the same times, the same deliveries with the same counts, the same ends, halt and counters.

    :param in_order: the deliveries of different messages, too, come in the example's order.
    """
    story = [told for told in played.events if told.event not in ROUTINE]
    assert _by_message((told.message, (told.at, told.event.value)) for told in story) == _by_message(
        (name, (at, event)) for at, name, event in example.story
    )
    if example.calls is not None:
        assert _arranged(played.calls, in_order=in_order) == _arranged(example.calls, in_order=in_order)
    if example.deliveries is not None:
        assert len(played.calls) == example.deliveries
    for name, end in example.ends.items():
        found = played.ends[name]
        assert found.place == end.place
        assert found.place not in HERE or end.abort_count in {None, found.abort_count}
        assert found.place not in HERE or end.move_count in {None, found.move_count}
    assert example.halted in {None, played.halted}
    assert example.counters is None or dict(played.counters) == dict(example.counters)
    assert_every_delivery_is_told(played)


def assert_agree(replayed: Played, played: Played, *, in_order: bool) -> None:
    """The same as in the replay, down to the counts of every event.

    :param in_order: the deliveries of different messages, too, come in the same order.
    """
    assert _by_message(map(_named, played.events)) == _by_message(map(_named, replayed.events))
    assert _arranged(played.calls, in_order=in_order) == _arranged(replayed.calls, in_order=in_order)
    for name, end in replayed.ends.items():
        found = played.ends[name]
        assert (found.place, found.abort_count, found.move_count) == (end.place, end.abort_count, end.move_count)
        assert end.properties.items() <= found.properties.items()
    assert played.halted == replayed.halted
    assert _counted(played) == _counted(replayed)
    assert played.reports == replayed.reports


def assert_every_delivery_is_told(played: Played) -> None:
    """Routine events say what the handler saw."""
    told = Counter((each.message, each.event) for each in played.events)
    called = Counter(name for _, name, _, _ in played.calls)
    for name, end in played.ends.items():
        assert told[name, EventType.DELIVERED] == called[name]
        assert told[name, EventType.COMMITTED] == (end.place == PROCESSED)


def _counted(played: Played) -> dict[str, int]:
    """A counter that is not kept is 0: where no pass had anything to do, no endpoint has left one behind."""
    return {name: number for name, number in played.counters.items() if number}


def _named(told: Told) -> tuple[str, object]:
    return told.message, (told.at, told.event.value, told.abort_count, told.move_count)


def _by_message(story: Iterable[tuple[str, object]]) -> dict[str, list[object]]:
    """The order of one message's events is told everywhere; that of different messages is not."""
    told: dict[str, list[object]] = {}
    for name, event in story:
        told.setdefault(name, []).append(event)
    return told


def _arranged(calls: Iterable[tuple[float, str, int, int]], *, in_order: bool) -> list[tuple[float, str, int, int]]:
    return list(calls) if in_order else sorted(calls, key=lambda call: call[1])
