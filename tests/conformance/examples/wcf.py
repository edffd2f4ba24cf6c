"""The worked examples of WCF on MSMQ 4.0 and of its poison sub-queue (spec sections 2 and 3)."""

from __future__ import annotations

from datetime import timedelta

from airflow_poison.rules.msmq4 import Msmq4, PoisonSubQueue
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from tests.conformance.examples.shape import Calls, End, Example, Story

MINUTE = 60
POISON, RETRY, RETURNED = "POISON_EXCEPTION", "MOVED_RETRY", "RETURNED"
MOVED, DROPPED, REJECTED, FAULTED = "MOVED_POISON", "DROPPED", "REJECTED", "FAULTED"


def _cycle(start: float, move_count: int, retries: int) -> Calls:
    return tuple((start, "m", abort_count, move_count) for abort_count in range(retries + 1))


def _move(retries: int, cycles: int) -> Msmq4:
    return Msmq4(receive_retry_count=retries, max_retry_cycles=cycles, receive_error_handling="Move")


def _hopeless_story(cycles: int) -> Story:
    events: list[tuple[float, str, str]] = []
    for cycle in range(cycles):
        at = cycle * 30 * MINUTE
        events += [(at, "m", POISON), (at, "m", RETRY), (at + 30 * MINUTE, "m", RETURNED)]
    last = cycles * 30 * MINUTE
    return (*events, (last, "m", POISON), (last, "m", MOVED))


def _formula(retries: int, cycles: int, *, deliveries: int, receives: int, exceptions: int, waits: int, move_count: int) -> Example:
    return Example(
        f"WCF-E2 RRC {retries} MRC {cycles}",
        _move(retries, cycles),
        Script("rb*"),
        {"m": End("poison", 0, move_count)},
        story=_hopeless_story(cycles),
        deliveries=deliveries,
        receives=receives,
        exceptions=exceptions,
        elapsed=waits * 30 * MINUTE,
    )


def _success(k: int, minutes: int, abort_count: int, move_count: int, exceptions: int) -> Example:
    story = tuple(event for cycle in range(exceptions) for event in _hopeless_story(2)[3 * cycle : 3 * cycle + 3])
    return Example(
        f"WCF-E3 k={k}",
        Msmq4(),
        Script(f"rb*{k - 1} ok" if k > 1 else "ok"),
        {"m": End("processed", abort_count, move_count)},
        story=story,
        deliveries=k,
        exceptions=exceptions,
        elapsed=minutes * MINUTE,
    )


def _disposition(handling: str, row: str, end: End, event: str, *, processed: bool = True, ttl: float | None = None) -> Example:
    return Example(
        f"WCF-E4 {row}",
        Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling=handling),
        Script(Scripted("x", "rb", ttl=ttl), Scripted("y")),
        {"x": end, "y": End("processed") if processed else End("main", 0, 0)},
        story=((0, "x", POISON), (0, "x", event)),
        calls=((0, "x", 0, 0), (0, "y", 0, 0))[: 2 if processed else 1],
        receives=3 if processed else 2,
        exceptions=1,
    )


E1 = Example(
    "WCF-E1",
    Msmq4(receive_error_handling="Move"),
    Script("rb*"),
    {"m": End("poison", 0, 5)},
    story=_hopeless_story(2),
    calls=_cycle(0, 0, 5) + _cycle(1800, 2, 5) + _cycle(3600, 4, 5),
    receives=21,
    exceptions=3,
    elapsed=3600,
)

E2 = (
    _formula(0, 0, deliveries=1, receives=2, exceptions=1, waits=0, move_count=1),
    _formula(0, 1, deliveries=2, receives=4, exceptions=2, waits=1, move_count=3),
    _formula(1, 1, deliveries=4, receives=6, exceptions=2, waits=1, move_count=3),
    _formula(2, 0, deliveries=3, receives=4, exceptions=1, waits=0, move_count=1),
    _formula(2, 3, deliveries=12, receives=16, exceptions=4, waits=3, move_count=7),
    _formula(5, 2, deliveries=18, receives=21, exceptions=3, waits=2, move_count=5),
)

E3 = (_success(1, 0, 0, 0, 0), _success(6, 0, 5, 0, 0), _success(7, 30, 0, 2, 1), _success(9, 30, 2, 2, 1), _success(18, 60, 5, 4, 2))

E4 = (
    _disposition("Fault", "Fault", End("main", 2, 0), FAULTED, processed=False),
    _disposition("Drop", "Drop", End("dropped"), DROPPED),
    _disposition("Drop", "Drop expired", End("dead_letter"), DROPPED, ttl=0),
    _disposition("Reject", "Reject", End("dead_letter"), REJECTED),
    _disposition("Move", "Move", End("poison", 0, 1), MOVED),
)

_E6_STORY: Story = (
    (0, "A", POISON),
    (0, "A", RETRY),
    (600, "C", POISON),
    (600, "C", RETRY),
    (1800, "A", RETURNED),
    (1800, "A", POISON),
    (1800, "A", MOVED),
    (3000, "C", RETURNED),
)
E6 = (
    Example(
        "WCF-E6",
        _move(1, 1),
        Script(
            Scripted("A", "rb*"),
            Scripted("B"),
            Scripted("C", "rb rb ok", at=10 * MINUTE),
            actions=[Action(35 * MINUTE, "close"), Action(50 * MINUTE, "open")],
        ),
        {"A": End("poison", 0, 3), "B": End("processed"), "C": End("processed")},
        story=_E6_STORY,
        calls=(
            (0, "A", 0, 0),
            (0, "A", 1, 0),
            (0, "B", 0, 0),
            (600, "C", 0, 0),
            (600, "C", 1, 0),
            (1800, "A", 0, 2),
            (1800, "A", 1, 2),
            (3000, "C", 0, 2),
        ),
        receives=11,
        exceptions=3,
        elapsed=3000,
    ),
    Example(
        "WCF-E6 order",
        _move(1, 1),
        Script(Scripted("A", "rb rb ok"), Scripted("D", at=30 * MINUTE)),
        {"A": End("processed"), "D": End("processed")},
        story=((0, "A", POISON), (0, "A", RETRY), (1800, "A", RETURNED)),
        calls=((0, "A", 0, 0), (0, "A", 1, 0), (1800, "A", 0, 2), (1800, "D", 0, 0)),
        exceptions=1,
    ),
)

E7 = Example(
    "WCF-E7",
    Msmq4(receive_retry_count=2, max_retry_cycles=0, receive_error_handling="Drop", transaction_timeout=timedelta(seconds=60)),
    Script("before_operation*"),
    {"m": End("dropped")},
    story=((180, "m", POISON), (180, "m", DROPPED)),
    calls=(),
    receives=4,
    exceptions=1,
    elapsed=180,
    needs_a_host="the error lies between channel and operation",
)

E8 = tuple(
    Example(
        f"WCF-E8 {handling}",
        Msmq4(receive_retry_count=1, max_retry_cycles=0, sessions=True, receive_error_handling=handling),
        Script(Scripted("S", items={"i1": "ok*", "i2": "rb*", "i3": "ok*"})),
        {"S": end},
        story=((0, "S", POISON), (0, "S", event)),
        calls=((0, "S", 0, 0), (0, "S", 1, 0)),
        receives=3,
        exceptions=1,
    )
    for handling, end, event in (("Move", End("poison", 0, 1), MOVED), ("Reject", End("dead_letter"), REJECTED))
)

E10 = (
    Example(
        "WCF-E10 oversized",
        Msmq4(receive_error_handling="Move", max_received_message_size=1000),
        Script(Scripted("m", size=1001)),
        {"m": End("poison", 0, 1)},
        story=((0, "m", POISON), (0, "m", MOVED)),
        calls=(),
        receives=1,
        exceptions=1,
        elapsed=0,
    ),
    Example(
        "WCF-E10 put back",
        Msmq4(receive_error_handling="Move"),
        Script(Scripted("m", "rb*", move_count=6)),
        {"m": End("poison", 0, 7)},
        story=((0, "m", POISON), (0, "m", MOVED)),
        calls=_cycle(0, 6, 5),
        receives=7,
        exceptions=1,
        elapsed=0,
        needs_a_host="starts with a message that was put back: shown on a table by test_put_back",
    ),
    Example(
        "WCF-E10 receive context",
        Msmq4(receive_retry_count=1, max_retry_cycles=1, receive_error_handling="Move", receive_context=True),
        Script("rb*"),
        {"m": End("poison", 0, 13)},
        story=_hopeless_story(1),
        calls=((0, "m", 0, 1), (0, "m", 0, 3), (1800, "m", 0, 8), (1800, "m", 0, 10)),
        receives=6,
        exceptions=2,
        elapsed=1800,
    ),
)

E11_NEVER_POISON = Example(
    "WCF-E11 never poison",
    Msmq4(receive_retry_count=2147483647),
    Script("rb*1000 ok"),
    {"m": End("processed", 1000, 0)},
    deliveries=1001,
    receives=1001,
    elapsed=0,
)


def _poison(retries: int, cycles: int, handling: str) -> PoisonSubQueue:
    return PoisonSubQueue(receive_retry_count=retries, max_retry_cycles=cycles, receive_error_handling=handling)


POI = (
    Example(
        "POI-E1",
        _poison(5, 2, "Drop"),
        Script("rb*"),
        {"m": End("dropped")},
        story=((0, "m", POISON), (0, "m", DROPPED)),
        calls=_cycle(0, 0, 5),
        receives=7,
        exceptions=1,
        elapsed=0,
    ),
    Example(
        "POI-E2",
        _poison(0, 9, "Reject"),
        Script("rb"),
        {"m": End("dead_letter")},
        story=((0, "m", POISON), (0, "m", REJECTED)),
        calls=_cycle(0, 0, 0),
        exceptions=1,
    ),
    Example("POI-E5", _poison(2, 0, "Drop"), Script("rb rb ok"), {"m": End("processed")}, calls=_cycle(0, 0, 2)),
    Example(
        "POI-E7",
        _poison(1, 2, "Drop"),
        Script({"p1": "rb*", "p2": "ok"}),
        {"p1": End("dropped"), "p2": End("processed")},
        story=((0, "p1", POISON), (0, "p1", DROPPED)),
        calls=((0, "p1", 0, 0), (0, "p1", 1, 0), (0, "p2", 0, 0)),
        exceptions=1,
    ),
)

EXAMPLES: tuple[Example, ...] = (E1, *E2, *E3, *E4, *E6, E7, *E8, *E10, E11_NEVER_POISON, *POI)
