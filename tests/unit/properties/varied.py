"""Out of many drawn examples the few in which most different things happen, for carriers that are too slow to play them all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, settings

from airflow_poison.rules.simulation.replay import replay
from airflow_poison.rules.simulation.scripted_host import as_span
from airflow_poison.values.events import ROUTINE
from tests.unit.properties.scripts import MOST_RECEIVES
from tests.unit.properties.systems import PLAYED
from tests.unit.properties.table_scripts import table_examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_poison.rules.simulation.replay import Replay
    from tests.conformance.examples.shape import Example

DRAWN = 150
PEOPLE_WEIGH = 8
"""As how many things it counts that people do something after something has happened."""


def varied_examples(system: str, most: int, *, in_tasks: bool = False, most_passes: int | None = None) -> list[Example]:
    """Return examples of a system, always the same ones: each shows as much as possible of what those before it have not shown.

    :param in_tasks: as in ``table_examples``.
    :param most_passes: in how many passes at most something is delivered; None: in any number.
    """
    shown: list[tuple[Example, set[object]]] = []

    @settings(max_examples=DRAWN, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(table_examples(system, in_tasks=in_tasks))
    def draw(example: Example) -> None:
        result = replay(example.policy, example.script, access=example.access, most_receives=MOST_RECEIVES)
        if most_passes is None or len({call.at for call in result.deliveries}) <= most_passes:
            shown.append((example, set(_shown(example, result))))

    draw()
    chosen: list[Example] = []
    seen: set[object] = set()
    while shown and len(chosen) < most:
        best = max(range(len(shown)), key=lambda number: len(shown[number][1] - seen))
        example, features = shown.pop(best)
        chosen.append(example)
        seen |= features
    return chosen


def _shown(example: Example, result: Replay) -> Iterator[object]:
    """Yield what an example shows: what happens under which settings, and what people do after what."""
    happened = [event for event in result.events if event.type not in ROUTINE]
    told = {event.type for event in happened} | {call.outcome for call in result.deliveries}
    yield from ((name, str(getattr(example.policy, name)), what) for name in PLAYED[example.policy.system] for what in told)
    for action in example.script.actions:
        at = result.started + as_span(action.at)
        before = [event.type for event in happened if event.at < at]
        delivered = [call for call in result.deliveries if result.started + call.at >= at]
        yield from ((weight, action.verb, before[-1] if before else None, bool(delivered)) for weight in range(PEOPLE_WEIGH))
    together = Counter(as_span(message.at) for message in example.script.messages).most_common(1)[0][1]
    groups = [message.group for message in example.script.messages if message.group]
    yield from ((weight, together > example.policy.server_sessions > 1, len(groups) > len(set(groups))) for weight in range(PEOPLE_WEIGH))
