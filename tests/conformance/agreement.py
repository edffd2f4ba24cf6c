"""What every carrier of the rules must agree on for a worked example."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.conformance.examples import EXAMPLES

if TYPE_CHECKING:
    from tests.conformance.examples.shape import Example
    from tests.conformance.passes import Played

NEEDS_A_HOST = {
    "WCF-E7": "the error lies between channel and operation",
    "WCF-E10 put back": "starts with a message that was put back: shown on a table by test_put_back",
}
ON_TABLES = [example for example in EXAMPLES if not example.needs_a_host and example.id not in NEEDS_A_HOST]


def assert_as_the_example_says(example: Example, played: Played) -> None:
    """The same events at the same times, the same deliveries with the same counts, the same ends."""
    assert _by_message(played.story) == _by_message(example.story)
    if example.calls is not None:
        assert sorted(played.calls, key=lambda call: call[1]) == sorted(example.calls, key=lambda call: call[1])
    if example.deliveries is not None:
        assert len(played.calls) == example.deliveries
    for name, end in example.ends.items():
        assert played.ends[name].place == end.place
        if end.place in {"main", "retry", "poison"}:
            assert (played.ends[name].abort_count, played.ends[name].move_count) == (end.abort_count, end.move_count)
    delivered = Counter(name for _, name, _, _ in played.calls)
    for name, routine in played.routine.items():
        assert routine.count("DELIVERED") == delivered[name]
        assert routine.count("COMMITTED") == (1 if example.ends[name].place == "processed" else 0)


def _by_message(story: tuple[tuple[float, str, str], ...]) -> dict[str, list[tuple[float, str]]]:
    """Messages of one pass are independent of each other; the order of one message's events is not."""
    told: dict[str, list[tuple[float, str]]] = {}
    for at, name, event in story:
        told.setdefault(name, []).append((at, event))
    return told
