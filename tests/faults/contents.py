"""Bytes: what was written somewhere is what came into a queue, what handlers were given, what plans exported and what went to other queues."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tests.faults.exact import digest, digest_as, digest_of_given, given
from tests.faults.history import OUTBOX
from tests.faults.redrivers import exports_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.faults.exact import Given
    from tests.faults.history import History, Row
    from tests.faults.ledger import Line
    from tests.faults.verdict import Verdict


def check_contents(folder: str, histories: Mapping[str, History], lines: Sequence[Line], verdict: Verdict, *, quiet: bool) -> None:
    """Hold each message against what was written, wherever it is."""
    came = [(history, row) for history in histories.values() for number, row in history.came.items() if number not in history.relayed]
    _check_written(came, lines, verdict)
    if quiet:
        _check_put_down(came, lines, verdict)
    _check_malformed(came, lines, verdict)
    _check_given(histories, lines, verdict)
    _check_relayed(histories, verdict)
    _check_exports(folder, histories, lines, verdict)


def _check_written(came: Iterable[tuple[History, Row]], lines: Iterable[Line], verdict: Verdict) -> None:
    """What came has the bytes and the properties that its writer gave it."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if line["kind"] in {"wrote", "put_down"}:
            wanted |= {(line["queue"], message_id): each for message_id, each in line["wanted"].items()}
    for history, row in came:
        if (history.name, row.message_id) in wanted:
            how, body, *properties = wanted[history.name, row.message_id]
            if digest_as(how, history.bodies[row.body]) != body:
                verdict.changed.append(f"{history.name}: {row.message_id} came as {history.bodies[row.body][:300]!r}, which is not what was written")
            if properties and digest_of_given(row.given) != properties[0]:
                verdict.changed.append(f"{history.name}: {row.message_id} came with {row.given}, which is not what was given")


def _check_put_down(came: Iterable[tuple[History, Row]], lines: Iterable[Line], verdict: Verdict) -> None:
    """Every record that was put down came into its queue, once: the quiet end has taken what was left."""
    put_down = {(line["queue"], message_id) for line in lines if line["kind"] == "put_down" for message_id in line["wanted"]}
    times = Counter((history.name, row.message_id) for history, row in came)
    for queue, message_id in sorted(put_down):
        found = times[queue, message_id]
        if found != 1:
            (verdict.doubled if found else verdict.lost).append(f"{message_id} was put down once and came into {queue} {found} times")


def _check_malformed(came: Iterable[tuple[History, Row]], lines: Iterable[Line], verdict: Verdict) -> None:
    """Every record that cannot be read waits in ``poison``, and no other one does."""
    wanted = {message_id: message_id in line["malformed"] for line in lines if line["kind"] == "put_down" for message_id in line["wanted"]}
    for history, row in came:
        is_malformed = row.number in history.malformed
        if wanted.get(row.message_id, is_malformed) != is_malformed:
            what = "malformed, and is not" if is_malformed else "well, and is malformed"
            verdict.changed.append(f"{history.name}: {row.message_id} came {what}: {history.bodies[row.body][:300]!r}")


def _check_given(histories: Mapping[str, History], lines: Iterable[Line], verdict: Verdict) -> None:
    """What handlers were given is what the queue had."""
    had = {
        (name, number): {(body, digest_of_given(properties)) for body, properties in contents}
        for name, history in histories.items()
        for number, contents in history.contents.items()
    }
    for line in lines:
        key = line.get("queue", ""), line.get("id", 0)
        if line["kind"] == "call" and "body" in line and (line["body"], line["given"]) not in had.get(key, {(line["body"], line["given"])}):
            verdict.changed.append(f"{key[0]} {key[1]} ({line['mid']}): its handler was given other bytes, or other properties, than the queue had")


def _check_relayed(histories: Mapping[str, History], verdict: Verdict) -> None:
    """What came from another queue is what left there."""
    left: dict[str, set[tuple[str, Given]]] = defaultdict(set)
    for history in histories.values():
        for row in history.seen():
            if row.place == OUTBOX:
                left[row.message_id].add(row.content)
    for history in histories.values():
        for number in history.relayed:
            row = history.came[number]
            if row.content not in left[row.message_id]:
                verdict.changed.append(
                    f"{history.name}: {row.message_id} came from another queue as {history.bodies[row.body][:300]!r}, and left otherwise"
                )


def _check_exports(folder: str, histories: Mapping[str, History], lines: Iterable[Line], verdict: Verdict) -> None:
    """What plans exported is what the queue had, and nothing was done to a message that was not exported before."""
    plans = {line["plan"]: line["queue"] for line in lines if line["kind"] == "will_plan" and line["export_to"]}
    for plan, queue in plans.items():
        history, exported = histories[queue], set[int]()
        for path in sorted(exports_in(folder).glob(f"{queue}-{plan}-*.parquet")):
            rows: list[dict[str, Any]] = pq.read_table(path, columns=["lookup_id", "body", "properties"], partitioning=None).to_pylist()
            for row in rows:
                number = row["lookup_id"]
                if number in exported:
                    verdict.doubled.append(f"{queue} {number} is in the export of plan {plan} twice")
                exported.add(number)
                if (digest(row["body"]), given(row["properties"] or ())) not in history.contents[number]:
                    verdict.changed.append(f"{queue} {number} was exported by plan {plan} as {row['body'][:300]!r}, which it never was")
        done = {number for number, each in history.planned.items() if plan in each}
        verdict.lost += [
            f"{queue} {number} is not in the export of plan {plan}, which has done something to it" for number in sorted(done - exported)
        ]
