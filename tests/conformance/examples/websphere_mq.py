"""The worked examples of the WebSphere MQ messaging provider, on z/OS too (spec sections 6, 7 and 8)."""

from __future__ import annotations

from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.decisions import Halted
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.policy import Access
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from tests.conformance.examples.shape import Calls, End, Example, Story

REQUEUED, DEAD_LETTERED, DROPPED = "REQUEUED", "DEAD_LETTERED", "DROPPED"
STOPPED, STARTED = "STOPPED", "STARTED"
BACKOUT, DEAD_LETTER = "B.Q", "SYSTEM.DEAD.LETTER.QUEUE"
PASS_UNDER_WAY = "something is restarted between two deliveries of one pass"
NO_AUTHORITIES = "a table knows no authorities on single queues"


def _activation(**settings: object) -> ActivationSpecification:
    return ActivationSpecification.from_dict({"max_server_sessions": 1} | settings)


def _port(retries: int, threshold: int, sessions: int = 1) -> ListenerPort:
    queue = {"backout_threshold": threshold, "backout_requeue_queue": BACKOUT}
    return ListenerPort.from_dict({"max_retries": retries, "max_sessions": sessions, **queue})


def _failing(name: str, counts: range, at: float = 0) -> Calls:
    return tuple((at, name, count, 0) for count in counts)


def _starts(*at: float) -> list[Action]:
    return [Action(seconds, "open") for seconds in at]


E1 = Example(
    "WMQ-E1",
    _activation(failure_delivery_count=5, backout_threshold=1, backout_requeue_queue=DEAD_LETTER),
    Script({"p": "rb*", "g": "ok"}),
    {"p": End(DEAD_LETTER), "g": End("processed")},
    story=((0, "p", REQUEUED),),
    calls=((0, "p", 0, 0), (0, "g", 0, 0)),
    receives=3,
    elapsed=0,
    counters={"sequential_failures": 0},
)


def _defaults(starts: int) -> Example:
    restarts = tuple(10.0 * start for start in range(1, starts))
    again: Story = tuple(event for at in restarts for event in ((at, "", STARTED), (at, "p", STOPPED)))
    return Example(
        f"WMQ-E2 start {starts}",
        _activation(),
        Script({"p": "rb*", "g": "ok"}, actions=_starts(*restarts)),
        {"p": End("main", starts, 0), "g": End("main", 0, 0)},
        story=((0, "p", STOPPED), *again),
        calls=tuple((10.0 * start, "p", start, 0) for start in range(starts)),
        halted=Halted.STOPPED,
        counters={"sequential_failures": starts},
    )


E2 = (
    *(_defaults(starts) for starts in (1, 2, 3)),
    Example(
        "WMQ-E2 start 4 without p",
        _activation(),
        Script({"p": "rb*", "g": "ok"}, actions=[*_starts(10, 20), Action(30, "remove", "p"), *_starts(30)]),
        {"p": End("removed"), "g": End("processed")},
        story=(*_defaults(3).story, (30, "", STARTED)),
        calls=((0, "p", 0, 0), (10, "p", 1, 0), (20, "p", 2, 0), (30, "g", 0, 0)),
        counters={"sequential_failures": 0},
    ),
)

_TEN = {f"m{number}": "rb*" for number in range(1, 11)}
_TEN_POISONS: dict[str, object] = {"failure_delivery_count": 3, "backout_threshold": 5, "backout_requeue_queue": DEAD_LETTER}


def _ten_poisons(early: int) -> Example:
    delivered = 5 + early
    return Example(
        f"WMQ-E3 early hand-out {early}",
        _activation(max_server_sessions=5, early_hand_out=early, **_TEN_POISONS),
        Script(_TEN),
        {name: End("main", int(number <= delivered), 0) for number, name in enumerate(_TEN, 1)},
        story=((0, "m3", STOPPED),),
        calls=tuple((0, f"m{number}", 0, 0) for number in range(1, delivered + 1)),
        halted=Halted.STOPPED,
        counters={"sequential_failures": delivered},
    )


E3 = tuple(_ten_poisons(early) for early in (0, 1, 2))


def _against(row: str, settings: dict[str, object], *, calls: Calls, stops: tuple[float, ...] = (), requeued: float = 0) -> Example:
    """The endpoint is started again after each stop, until p is requeued and g delivered."""
    starts = tuple(10.0 * number for number in range(1, len(stops) + 1))
    story: list[tuple[float, str, str]] = []
    for stop, start in zip(stops, starts, strict=True):
        story += [(stop, "p", STOPPED), (start, "", STARTED)]
    counters = {} if settings.get("stop_endpoint_if_delivery_fails") is False else {"sequential_failures": 0}
    return Example(
        f"WMQ-E5 {row}",
        _activation(backout_threshold=3, backout_requeue_queue=BACKOUT, **settings),
        Script({"p": "rb*", "g": "ok"}, actions=_starts(*starts)),
        {"p": End(BACKOUT), "g": End("processed")},
        story=(*story, (requeued, "p", REQUEUED)),
        calls=(*calls, (requeued, "g", 0, 0)),
        counters=counters,
    )


E5 = (
    _against("ticked 4 3", {"failure_delivery_count": 4}, calls=_failing("p", range(3))),
    _against("ticked 3 3", {"failure_delivery_count": 3}, calls=_failing("p", range(3)), stops=(0,), requeued=10),
    _against("ticked 2 3", {"failure_delivery_count": 2}, calls=((0, "p", 0, 0), (0, "p", 1, 0), (10, "p", 2, 0)), stops=(0, 10), requeued=20),
    *(
        _against(
            f"ticked {limit} 3",
            {"failure_delivery_count": limit},
            calls=((0, "p", 0, 0), (10, "p", 1, 0), (20, "p", 2, 0)),
            stops=(0, 10, 20),
            requeued=30,
        )
        for limit in (1, 0)
    ),
    _against("not ticked 0 3", {"stop_endpoint_if_delivery_fails": False}, calls=_failing("p", range(3))),
    _against("ticked 3 3 more than", {"failure_delivery_count": 3, "stop_rule": "more_than"}, calls=_failing("p", range(3))),
)


def _goes(row: str, end: str, event: str, *, queue: str = BACKOUT, access: Access = Access.GRANTED, **properties: str) -> Example:
    return Example(
        f"WMQ-E7 {row}",
        _activation(stop_endpoint_if_delivery_fails=False, backout_threshold=2, backout_requeue_queue=queue),
        Script(Scripted("p", "rb*", properties=properties)),
        {"p": End(end)},
        story=((0, "p", event),),
        calls=_failing("p", range(2)),
        receives=3,
        access={} if access is Access.GRANTED else {BACKOUT: access},
        needs_a_host=NO_AUTHORITIES if access is Access.DENIED else "",
    )


E7 = (
    _goes("B.Q", BACKOUT, REQUEUED),
    _goes("empty", DEAD_LETTER, DEAD_LETTERED, queue=""),
    _goes("Set All Context missing", DEAD_LETTER, DEAD_LETTERED, access=Access.DENIED),
    _goes("missing, discard", "dropped", DROPPED, access=Access.MISSING, JMS_IBM_Report_Discard_Msg="MQRO_DISCARD_MSG"),
    _goes("exception with data", BACKOUT, REQUEUED, JMS_IBM_Report_Exception="MQRO_EXCEPTION_WITH_DATA", JMSReplyTo="R.Q"),
    _goes("Pass All Context missing", DEAD_LETTER, DEAD_LETTERED, access=Access.DENIED, JMS_IBM_Report_Discard_Msg="0"),
)

E8 = Example(
    "WMQ-E8",
    _activation(max_server_sessions=5, stop_endpoint_if_delivery_fails=False, **_TEN_POISONS),
    Script(_TEN),
    {name: End(DEAD_LETTER) for name in _TEN},
    story=tuple((0, name, REQUEUED) for name in _TEN),
    deliveries=50,
    receives=60,
    counters={},
)

LP = (
    Example(
        "LP-E1",
        _port(0, 0),
        Script({"p": "rb*"}, actions=_starts(10)),
        {"p": End("main", 2, 0)},
        story=((0, "p", STOPPED), (10, "", STARTED), (10, "p", STOPPED)),
        calls=((0, "p", 0, 0), (10, "p", 1, 0)),
        halted=Halted.STOPPED,
    ),
    Example(
        "LP-E2",
        _port(2, 1),
        Script({"p": "rb*", "g": "ok"}),
        {"p": End(BACKOUT), "g": End("processed")},
        story=((0, "p", REQUEUED),),
        calls=((0, "p", 0, 0), (0, "g", 0, 0)),
        receives=3,
    ),
    Example(
        "LP-E3",
        _port(3, 3),
        Script({"p": "rb*"}),
        {"p": End("main", 3, 0)},
        story=((0, "p", STOPPED),),
        calls=_failing("p", range(3)),
        halted=Halted.STOPPED,
    ),
    Example(
        "LP-E3 started again",
        _port(3, 3),
        Script({"p": "rb*"}, actions=_starts(10)),
        {"p": End(BACKOUT)},
        story=((0, "p", STOPPED), (10, "", STARTED), (10, "p", REQUEUED)),
        calls=_failing("p", range(3)),
        receives=4,
    ),
    Example(
        "LP-E4",
        _port(3, 0),
        Script(dict.fromkeys("abcd", "rb ok")),
        {name: End("processed") for name in "abcd"},
        calls=tuple((0, name, count, 0) for name in "abcd" for count in (0, 1)),
    ),
    Example(
        "LP-E4 as an activation specification",
        _activation(failure_delivery_count=3),
        Script(dict.fromkeys("abcd", "rb ok")),
        {name: End("processed") for name in "abcd"},
        calls=tuple((0, name, count, 0) for name in "abcd" for count in (0, 1)),
        counters={"sequential_failures": 0},
    ),
    Example(
        "LP-E9",
        _port(0, 0),
        Script({"p": "rb*", "g": "ok"}),
        {"p": End("main", 1, 0), "g": End("main", 0, 0)},
        story=((0, "p", STOPPED),),
        calls=((0, "p", 0, 0),),
        halted=Halted.STOPPED,
    ),
)


def _on_zos(**settings: object) -> ActivationSpecification:
    return _activation(**{"zos": True, "failure_delivery_count": 10, "backout_threshold": 5, "backout_requeue_queue": BACKOUT} | settings)


def _every_ten_seconds(*counts: int) -> Calls:
    return tuple((10.0 * number, "p", count, 0) for number, count in enumerate(counts))


ZOS = (
    Example(
        "ZOS-E1",
        _on_zos(),
        Script({"p": "rb(10)*"}, actions=[Action(20, "restart_broker")]),
        {"p": End(BACKOUT)},
        story=((70, "p", REQUEUED),),
        calls=_every_ten_seconds(0, 1, 0, 1, 2, 3, 4),
        counters={"sequential_failures": 7},
        needs_a_host=PASS_UNDER_WAY,
    ),
    *(
        Example(
            f"ZOS-E3 HARDENBO={hardened}",
            _on_zos(HARDENBO=hardened),
            Script({"p": "rb*"}),
            {"p": End(BACKOUT)},
            story=((0, "p", REQUEUED),),
            calls=_failing("p", range(5)),
            counters={"sequential_failures": 5},
        )
        for hardened in ("NO", "YES")
    ),
    Example(
        "ZOS-E6",
        _on_zos(),
        Script({"p": "rb(10)*2 ok"}, actions=[Action(20, "restart_broker")]),
        {"p": End("processed")},
        calls=_every_ten_seconds(0, 1, 0),
        counters={"sequential_failures": 0},
        needs_a_host=PASS_UNDER_WAY,
    ),
    Example(
        "ZOS-E7",
        _on_zos(),
        Script({"p": "rb(10)*"}, actions=[Action(20, "restart_server")]),
        {"p": End(BACKOUT)},
        story=((50, "p", REQUEUED),),
        calls=_every_ten_seconds(0, 1, 2, 3, 4),
        counters={"sequential_failures": 3},
        needs_a_host=PASS_UNDER_WAY,
    ),
    Example(
        "ZOS-E8",
        _on_zos(failure_delivery_count=0, backout_threshold=0),
        Script({"p": "rb*"}, actions=[Action(10, "restart_broker"), *_starts(10)]),
        {"p": End("main", 1, 0)},
        story=((0, "p", STOPPED), (10, "", STARTED), (10, "p", STOPPED)),
        calls=((0, "p", 0, 0), (10, "p", 0, 0)),
        halted=Halted.STOPPED,
        counters={"sequential_failures": 2},
    ),
)

EXAMPLES: tuple[Example, ...] = (E1, *E2, *E3, *E5, *E7, E8, *LP, *ZOS)
