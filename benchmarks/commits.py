"""Measure what a small pass and a send cost over many commits, with maintenance and without; no JVM.

``python -m benchmarks.commits -n 10000 --every 500`` prints a table, then one line of JSON, and draws ``docs/images/commits.svg`` with ``--svg``.
Half of the commits are sends of ten messages; a pass, which makes two commits, follows each second one. Each of them opens the queue as a task
does. Files are not forced to disk. What is measured is CPU time of the process: wall time on a machine that does other things, too, would show
those. A commit of twenty makes a checkpoint, which is no part of a median: means are given, too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.maintain import maintain
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

CLOCK = SystemClock()
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
MESSAGES = 10
BATCH = pa.RecordBatch.from_pydict({"body": pa.array([b"x" * 1_000] * (MESSAGES - 1) + [b"bad"], pa.binary())})
WINDOWS = 10


def refuse_bad(message: Message) -> None:
    """Fail for one message of ten: each pass writes an event and a row in poison."""
    if message.body == b"bad":
        raise ValueError


@dataclass
class Course:
    """What each step took, CPU seconds, with the version at which it was taken."""

    sends: list[tuple[int, float]] = field(default_factory=list)
    passes: list[tuple[int, float]] = field(default_factory=list)
    maintenance: list[float] = field(default_factory=list)

    def windows(self, steps: Sequence[tuple[int, float]], commits: int, of: Callable[[list[float]], float]) -> list[float]:
        """Return the CPU milliseconds in each tenth of the course."""
        edges = [commits * number // WINDOWS for number in range(WINDOWS + 1)]
        parts = [[took for version, took in steps if low <= version < high] for low, high in pairwise(edges)]
        return [round(of(part) * 1_000, 2) if part else 0.0 for part in parts]


def run(commits: int, every: int | None) -> Course:
    """Use a new queue for so many commits; maintain it after each ``every`` of them, keeping nothing for readers of older versions."""
    root = tempfile.mkdtemp(prefix="airflow-poison-commits-")
    try:
        return _course(root, commits, every)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _course(root: str, commits: int, every: int | None) -> Course:
    course = Course()
    declare(DeltaStore(root, durable=False), "orders", POLICY, CLOCK)
    version = number = maintained = 0
    while version < commits:
        for _ in range(2):
            number += 1
            started = time.process_time()
            send(_opened(root), [BATCH], key=str(number), clock=CLOCK)
            course.sends.append((version, time.process_time() - started))
        started = time.process_time()
        ReceivePass(table=_opened(root), policy=POLICY, handler=refuse_bad, engine=LocalEngine, clock=CLOCK, isolation="none").run(str(number))
        course.passes.append((version, time.process_time() - started))
        version += 4
        if every and version - maintained >= every:
            maintained = version
            started = time.process_time()
            maintain(_opened(root), CLOCK, retention=timedelta(0), safe_age=timedelta(hours=1))
            course.maintenance.append(time.process_time() - started)
    return course


def _opened(root: str) -> QueueTable:
    return DeltaStore(root, durable=False).open("orders")


def draw(path: Path, commits: int, lines: dict[str, tuple[int, list[float]]]) -> None:
    """Draw one line a course, milliseconds over commits."""
    width, height, left, top = 720, 320, 60, 20
    most = max(max(line) for _, line in lines.values()) * 1.1
    colours = ["#b03a2e", "#e59866", "#1a5276", "#5dade2"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 40} {height + 90}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width + 40}" height="{height + 90}" fill="#ffffff"/>',
        f'<path d="M{left},{top} V{height} H{width}" fill="none" stroke="#333"/>',
    ]
    for step in range(5):
        y = height - (height - top) * step / 4
        parts += [
            f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{most * step / 4:.0f} ms</text>',
            f'<text x="{left + (width - left) * step / 4:.0f}" y="{height + 18}" text-anchor="middle">{commits * step // 4:,}</text>',
        ]
    for number, ((name, (until, line)), colour) in enumerate(zip(lines.items(), colours, strict=False)):
        spots = [
            f"{left + (width - left) * (index + 0.5) / len(line) * until / commits:.1f},{height - (height - top) * value / most:.1f}"
            for index, value in enumerate(line)
        ]
        parts += [
            f'<polyline points="{" ".join(spots)}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{left + 20 + 320 * (number % 2)}" y="{height + 42 + 20 * (number // 2)}" fill="{colour}">{name}</text>',
        ]
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--commits", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=500, help="commits between two maintenances")
    parser.add_argument("--without", type=int, default=None, help="commits of the course without maintenance; as many when not given")
    parser.add_argument("--svg", type=Path, default=None)
    given = parser.parse_args()
    plain = given.commits if given.without is None else given.without
    result: dict[str, object] = {"commits": given.commits, "every": given.every, "commits_without": plain}
    lines: dict[str, tuple[int, list[float]]] = {}
    for name, commits, every in (("maintained", given.commits, given.every), ("unmaintained", plain, None)):
        if not commits:
            continue
        course = run(commits, every)
        for kind, steps in (("send", course.sends), ("pass", course.passes)):
            for what, of in (("median", statistics.median), ("mean", statistics.fmean)):
                line = course.windows(steps, commits, of)
                print(f"{kind:5} {name:13} {what:7}", *(f"{value:8.1f}" for value in line), "ms", flush=True)
                result[f"{kind}_{name}_{what}_ms"] = line
                result[f"{kind}_{name}_{what}_last_to_second"] = round(line[-1] / line[1], 2)
            lines[f"{kind}, {name}"] = commits, line
        if course.maintenance:
            result["maintenance_s"] = {"median": round(statistics.median(course.maintenance), 2), "most": round(max(course.maintenance), 2)}
    print(json.dumps(result))
    if given.svg is not None:
        draw(given.svg, max(given.commits, plain), lines)


if __name__ == "__main__":
    main()
