"""The campaign: episodes of many actors under faults until its budget is used."""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults import spark_server
from tests.faults.bucket import made
from tests.faults.episode import Episode
from tests.faults.score import Score
from tests.faults.world import TRANSFORMED, queues
from tools.servers import s3 as server

if TYPE_CHECKING:
    from collections.abc import Callable

_MEMORY = "/dev/shm"
"""Where episodes take place if possible: no kill of a process takes anything from a file system, whatever it lies on."""


@dataclass(frozen=True, slots=True)
class Budget:
    """When a campaign ends.

    :param kills: at least so many.
    :param zombies: at least so many.
    :param seconds: at most so long.
    :param episode: seconds of faults in an episode.
    :param queues: which of them there are; empty: all.
    :param injected: at least so many requests to a bucket are harmed.
    :param points: these are visited.
    """

    kills: int
    zombies: int
    seconds: float
    episode: float = 10.0
    queues: tuple[str, ...] = ()
    injected: int = 0
    points: frozenset[str] = frozenset()

    def is_used(self, score: Score, seconds: float) -> bool:
        """Whether the campaign ends."""
        enough = score.kills >= self.kills and score.zombies >= self.zombies and score.injected >= self.injected
        return seconds > self.seconds or (enough and self.points <= score.visited.keys())


def run_campaign(
    seed: int,
    budget: Budget,
    *,
    in_bucket: bool = False,
    bug: str = "",
    stop_at_first: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Score:
    """Run episodes until the budget is used; keep the folders of those that show a violation.

    :param in_bucket: the queues are in a bucket of an S3 server on this machine, behind a proxy that does harm.
    """
    transforms = TRANSFORMED in (budget.queues or queues())
    with spark_server.running() if transforms else nullcontext(), server.running() if in_bucket else nullcontext() as port:
        return _run_episodes(seed, budget, port, bug, tell, stop_at_first=stop_at_first)


def _run_episodes(seed: int, budget: Budget, port: int | None, bug: str, tell: Callable[[str], None], *, stop_at_first: bool) -> Score:
    score, started, number = Score(), time.monotonic(), 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    while not budget.is_used(score, time.monotonic() - started):
        folder = Path(tempfile.mkdtemp(prefix=f"faults-{seed}-{number}-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
        with made(port, folder, seed + number) if port is not None else nullcontext() as bucket:
            episode = Episode(folder, seed + number, budget.episode, score, bug, budget.queues, bucket)
            verdict = episode.run()
        score.verdict.add(verdict)
        score.verdict.stuck.extend(episode.stuck)
        number += 1
        tell(f"episode {number}, seed {seed + number - 1}{episode.kind}: {json.dumps(score.to_dict())}")
        if verdict.passed and not episode.stuck:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        for line in (*verdict.lines()[:20], *episode.stuck):
            tell(f"  {line}")
        if bug:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            tell(f"  kept: {folder}")
        if stop_at_first and not verdict.passed:  # one that only got stuck, on a busy machine, shows too little
            break
    return score
