"""The form of a worked example that needs nothing but rules: a policy, a script, and what must come out.

Whatever carries policies out (the replay, the memory store, a Spark pass) can run them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_poison.rules.decisions import Halted
    from airflow_poison.rules.policy import Access, Policy
    from airflow_poison.rules.simulation.scripted_host import Script

Story = tuple[tuple[float, str, str], ...]
Calls = tuple[tuple[float, str, int, int], ...]


@dataclass(frozen=True)
class End:
    """Where a message ends, and with which counts (None: not specified, it has left its queue)."""

    place: str
    abort_count: int | None = None
    move_count: int | None = None


@dataclass(frozen=True)
class Example:
    """One example.

    :param id: the example's id in the specification, and its row.
    :param story: every event but deliveries, commits and rollbacks: seconds after the start, message, event.
    :param ends: the end of each message.
    :param calls: every delivery: seconds, message, abort count and move count as the handler sees them; None: only count them.
    :param deliveries: how many deliveries, when ``calls`` is None.
    :param receives: receives with and without delivery.
    :param halted: how the endpoint ended; None: not looked at.
    :param counters: what the endpoint leaves behind for the next one; None: not looked at.
    :param access: of the queues that the policy sends to, those that it cannot simply send to.
    :param needs_a_host: why it cannot be shown on a queue table; empty: it can.
    """

    id: str
    policy: Policy
    script: Script
    ends: Mapping[str, End]
    story: Story = ()
    calls: Calls | None = None
    deliveries: int | None = None
    receives: int | None = None
    exceptions: int = 0
    elapsed: float | None = None
    halted: Halted | None = None
    counters: Mapping[str, int] | None = None
    access: Mapping[str, Access] = field(default_factory=dict)
    needs_a_host: str = ""
