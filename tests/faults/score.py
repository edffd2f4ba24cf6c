"""The score: what a campaign has seen, and where little has happened yet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.faults.actor import Task
from tests.faults.points import OF_THE_HANDLER, named_points
from tests.faults.talks import TALKERS
from tests.faults.verdict import Verdict
from tests.faults.world import queues

HOLDING = ("store.claim.before_fence", "store.claim.after", "pass.deliver", "delivery.", "store.outcomes", "store.seal", "store.finish.", "handler.")
"""Where a receiver has a claim: one that is stopped there can be overtaken."""
_OF_DIALOGS = "delivery.dialogs."


def _expected() -> dict[str, Counter[str]]:
    """Return points that receivers will reach: where they have a claim; the others show it by and by."""
    holding = [point for point in (*named_points(), *OF_THE_HANDLER) if point.startswith(HOLDING)]
    kinds = {Task("receive", queue, "", 0).kind: queue in TALKERS for queue in queues()}
    return {kind: Counter(point for point in holding if talks or not point.startswith(_OF_DIALOGS)) for kind, talks in kinds.items()}


@dataclass(slots=True)
class Score:
    """What a campaign has seen.

    :ivar children: of the kills, those of children of server sessions.
    :ivar removed: data files and log entries that maintainers have removed.
    :ivar damages: how often somebody has damaged a queue's folder.
    :ivar injected: how many requests to a bucket were harmed.
    :ivar nodes_lost: how often a node was lost, with its folder.
    """

    kills: int = 0
    zombies: int = 0
    children: int = 0
    stops: int = 0
    io_errors: int = 0
    power_losses: int = 0
    removed: int = 0
    damages: int = 0
    injected: int = 0
    nodes_lost: int = 0
    runs: int = 0
    visited: Counter[str] = field(default_factory=Counter)
    visits: dict[str, Counter[str]] = field(default_factory=_expected)
    faulted: Counter[str] = field(default_factory=Counter)
    unnamed: Counter[str] = field(default_factory=Counter)
    drained: float = 0.0
    checked: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)

    def visits_of(self, task: Task) -> Counter[str]:
        """Return how often tasks like this one have reached each point."""
        return self.visits.setdefault(task.kind, Counter())

    def to_dict(self) -> dict[str, object]:
        faults = {name: getattr(self, name) for name in ("kills", "zombies", "io_errors", "power_losses", "injected", "nodes_lost")}
        return faults | self.verdict.numbers() | {name: getattr(self, name) for name in ("children", "stops", "removed", "damages", "runs")}
