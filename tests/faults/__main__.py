"""``python -m tests.faults``: the fault campaign. The last line is one JSON object."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.campaign import Budget, run_campaign
from tests.faults.planted import BUGS
from tests.faults.points import NOT_IN_A_BUCKET, NOT_ON_DISK, named_points
from tests.faults.talks import TALKERS
from tests.faults.world import queues

if TYPE_CHECKING:
    from tests.faults.score import Score

_ENOUGH = 1_000
"""Kills from which on every point must have been visited, also in a campaign that is not a full one."""


@dataclass(frozen=True, slots=True)
class _Full:
    """A full campaign, over one kind of store.

    :param kills: so many are wanted; with them come zombies, harmed requests, and a visit of every point.
    :param share: kills for one zombie.
    :param episode: seconds of faults in an episode. Over a bucket each run takes longer: a shorter episode ends before its messages do, with nothing
        to alert of and no letters to send on.
    """

    kills: int
    share: int
    seconds: float
    episode: float


_FULL = {"folder": _Full(2_000, 4, 4_200, 15), "s3": _Full(500, 5, 3_300, 60)}
_ELSEWHERE = (
    "pass.decide.",
    "pass.backlog.",
    "pass.land.before_deliver",
    "pass.release.after_close",
    "store.lose.",
    "store.remove_plans.",
    "store.forget_source.",
    "pass.send_to_kafka.",
    "pass.to_kafka.",
    "desk.redrive.",
    "desk.to_kafka.",
    "desk.rules.",
    "pass.notification.",
    "pass.spanning.",
    "pass.in_place.",
    "delivery.batch.",
)
"""Points of what nobody does in the campaign. Unit tests die at each of them and go on: tests/unit/passes/test_decide.py for decisions of people
(test_recover_conversations.py for those that end a conversation), tests/unit/passes/test_backlog.py for alerts of backlogs,
tests/unit/passes/test_results.py for a function that takes rows, test_release.py for a driver that gives tasks on other nodes up,
test_ways_back_killed.py for messages that people give up, tests/sessions/test_search_killed.py for handlers of batches,
tests/spark/test_data_frames.py for transformations, test_in_place.py for rows in place, tests/unit/passes/test_outage.py for outages,
tests/store/test_plans.py for old plans,
tests/unit/sources/test_take.py for positions that people reset, tests/live/test_kafka.py for messages that are sent to Kafka,
tests/unit/passes/test_event_notifications.py, tests/unit/passes/test_spanning.py for transactions over several queues,
tests/unit/desk (test_redrive.py, test_rules.py, test_rule_exports.py) for what a queue's own settings do with its poison."""
_NOT_IN_A_BUCKET = (
    "store.accept.",
    "store.create.before_rename",
    "store.log.before_mark_is_synced",
    "store.repair.",
    "pass.repair.before_restore",
)
"""Points of what nobody can do in a bucket."""
_QUEUES = {"": (*queues(),), "conversations": (*TALKERS,), "messages": tuple(name for name in queues() if name not in TALKERS)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Kill, stop and fail everything, then check the whole history.")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="fixes tasks, faults and their order (default: the time)")
    parser.add_argument("--store", choices=["folder", "s3"], default="folder", help="where the queues are; s3: a bucket of a server on this machine")
    parser.add_argument("--kills", type=int, help="default: 2,000, over a bucket 500")
    parser.add_argument("--zombies", type=int, help="default: one for four kills, over a bucket for five")
    parser.add_argument("--injected", type=int, help="requests to a bucket that are harmed (default: four for each kill)")
    parser.add_argument("--seconds", type=float, help="at most so long (default: 4,200, over a bucket 3,300)")
    parser.add_argument("--episode", type=float, help="seconds of faults in an episode (default: 15, over a bucket 60)")
    only = [*sorted(_QUEUES), *queues()]
    parser.add_argument("--only", choices=only, default="", help="those queues whose services converse, or only the others, or one queue")
    parser.add_argument("--planted", choices=sorted(BUGS), default="", help="plant a bug in every process: the campaign must fail")
    parser.add_argument("--stop-at-first", action="store_true", help="end with the first episode that shows a violation")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    started = time.monotonic()
    budget = _budget(given)
    score = run_campaign(
        given.seed,
        budget,
        in_bucket=given.store == "s3",
        bug=given.planted,
        stop_at_first=given.stop_at_first,
        tell=lambda line: print(line, flush=True),
    )
    unvisited = _unvisited(score, in_bucket=given.store == "s3")
    for what, number in score.unnamed.most_common(15):
        print(f"error of no name of ours, {number} times: {what}")
    print(f"quiet ends: {score.drained:.0f} s, checks: {score.checked:.0f} s")
    print(f"points never visited: {', '.join(unvisited) or 'none'}")
    print(json.dumps(score.to_dict() | {"unvisited": len(unvisited), "seed": given.seed, "seconds": round(time.monotonic() - started)}))
    complete = not unvisited or (not budget.points and score.kills < _ENOUGH)
    return 0 if score.verdict.passed and complete else 1


def _unvisited(score: Score, *, in_bucket: bool) -> list[str]:
    return sorted(_wanted(in_bucket=in_bucket) - score.visited.keys())


def _wanted(*, in_bucket: bool) -> frozenset[str]:
    """Return the points that a full campaign visits."""
    points = named_points(NOT_IN_A_BUCKET if in_bucket else NOT_ON_DISK)
    elsewhere = _ELSEWHERE + _NOT_IN_A_BUCKET * in_bucket
    return frozenset(point for point in points if not point.startswith(elsewhere))


def _budget(given: argparse.Namespace) -> Budget:
    """Return what was asked for; what was not follows from the kills."""
    in_bucket, full = given.store == "s3", _FULL[given.store]
    kills = full.kills if given.kills is None else given.kills
    return Budget(
        kills,
        kills // full.share if given.zombies is None else given.zombies,
        full.seconds if given.seconds is None else given.seconds,
        full.episode if given.episode is None else given.episode,
        _QUEUES.get(given.only, (given.only,)),
        (4 * kills if given.injected is None else given.injected) if in_bucket else 0,
        _wanted(in_bucket=in_bucket) if kills >= full.kills and not given.only else frozenset(),
    )


if __name__ == "__main__":
    sys.exit(main())
