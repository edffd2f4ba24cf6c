"""The worked examples of Service Broker's automatic detection and recovery (spec section 1.9)."""

from __future__ import annotations

from airflow_poison.rules.decisions import Halted
from airflow_poison.rules.queue_disabling import FailureTracking
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from tests.conformance.examples.shape import Calls, End, Example

DISABLED, ENABLED = "QUEUE_DISABLED", "QUEUE_ENABLED"
IN_A_PASS = "people act in the middle of a pass"
SAVEPOINT = "what a handler receives from has no savepoints: it can only commit or roll back"


def _calls(name: str, first: int, times: int, at: float = 0, each: float = 0) -> Calls:
    return tuple((at + number * each, name, first + number, 0) for number in range(times))


def _tracked(failures: int) -> str:
    """Return the outcomes of a message that fails so often in a handler that tracks failures: ``ok`` also commits the end of a conversation."""
    counts: dict[str, int] = {}
    outcomes: list[str] = []
    for _ in range(failures):
        tracked = FailureTracking().failed(counts, "d1")
        counts = dict(tracked.counts)
        outcomes.append("savepoint" if tracked.end is None else "ok")
    return " ".join([*outcomes, "ok"])


E1 = Example(
    "SB-E1",
    ServiceBroker(),
    Script({"m1": "rb*", "m2": "ok"}),
    {"m1": End("main", 5, 0), "m2": End("main", 0, 0)},
    story=((0, "m1", DISABLED),),
    calls=_calls("m1", 0, 5),
    receives=5,
    elapsed=0,
    halted=Halted.DISABLED,
    counters={"rollbacks": 5},
)

E2 = Example(
    "SB-E2",
    ServiceBroker(),
    Script(Scripted("a", "rb*4 ok", group="g"), Scripted("b", "rb*", group="g")),
    {"a": End("processed"), "b": End("main", 5, 0)},
    story=((0, "b", DISABLED),),
    calls=(*_calls("a", 0, 5), *_calls("b", 0, 5)),
    receives=10,
    halted=Halted.DISABLED,
    counters={"rollbacks": 5},
)

_HEALTHY = [Scripted(f"h{number}", group=f"g{number + 1}") for number in range(1, 6)]
E3 = (
    Example(
        "SB-E3 queue",
        ServiceBroker(max_queue_readers=2),
        Script(Scripted("m1", "rb*5 ok", group="g1"), *_HEALTHY),
        {"m1": End("processed"), **{message.name: End("processed") for message in _HEALTHY}},
        deliveries=11,
        receives=11,
        counters={},
    ),
    Example(
        "SB-E3 conversation group",
        ServiceBroker(max_queue_readers=2, scope="conversation_group"),
        Script(Scripted("m1", "rb*5 ok", group="g1"), *_HEALTHY),
        {"m1": End("main", 5, 0), **{message.name: End("processed") for message in _HEALTHY}},
        story=((0, "m1", DISABLED),),
        deliveries=10,
        receives=10,
        halted=Halted.DISABLED,
        counters={"rollbacks:g1": 5},
    ),
)

E5 = (
    Example(
        "SB-E5 handling off",
        ServiceBroker.from_dict({"POISON_MESSAGE_HANDLING": "OFF"}),
        Script(Scripted("m1", "rb(1)*"), actions=[Action(7, "close")]),
        {"m1": End("main", 7, 0)},
        calls=_calls("m1", 0, 7, each=1),
        counters={},
        needs_a_host=IN_A_PASS,
    ),
    Example(
        "SB-E5 savepoint",
        ServiceBroker(),
        Script({"m1": "savepoint*7"}),
        {"m1": End("processed")},
        calls=tuple((0, "m1", 0, 0) for _ in range(8)),
        counters={},
        needs_a_host=SAVEPOINT,
    ),
    Example(
        "SB-E5 set to ON in between",
        ServiceBroker(),
        Script(Scripted("m1", "rb(1)*"), actions=[Action(4, "enable"), Action(8, "close")]),
        {"m1": End("main", 8, 0)},
        calls=_calls("m1", 0, 8, each=1),
        counters={"rollbacks": 4},
        needs_a_host=IN_A_PASS,
    ),
    Example(
        "SB-E5 five in all",
        ServiceBroker(),
        Script(Scripted("m1", "rb*2 postpone(10) rb*3 ok"), Scripted("m2", at=10)),
        {"m1": End("main", 5, 0), "m2": End("main", 0, 0)},
        story=((10, "m1", DISABLED),),
        calls=(*_calls("m1", 0, 3), *_calls("m1", 2, 3, at=10)),
        elapsed=10,
        halted=Halted.DISABLED,
        counters={"rollbacks": 5},
    ),
)

E9 = (
    Example(
        "SB-E9 ON only",
        ServiceBroker(),
        Script({"m1": "rb*", "m2": "ok"}, actions=[Action(60, "enable")]),
        {"m1": End("main", 10, 0), "m2": End("main", 0, 0)},
        story=((0, "m1", DISABLED), (60, "", ENABLED), (60, "m1", DISABLED)),
        calls=(*_calls("m1", 0, 5), *_calls("m1", 5, 5, at=60)),
        halted=Halted.DISABLED,
        counters={"rollbacks": 5},
    ),
    Example(
        "SB-E9 END then ON",
        ServiceBroker(recovery_order="end_then_enable"),
        Script({"m1": "rb*", "m2": "ok"}, actions=[Action(60, "remove", "m1"), Action(60, "enable")]),
        {"m1": End("removed"), "m2": End("processed")},
        story=((0, "m1", DISABLED), (60, "", ENABLED)),
        calls=(*_calls("m1", 0, 5), (60, "m2", 0, 0)),
        counters={},
    ),
    Example(
        "SB-E9 ON then END, END wins",
        ServiceBroker(recovery_order="enable_then_end"),
        Script(Scripted("m1", "rb(1)*"), Scripted("m2"), actions=[Action(60, "enable"), Action(62.5, "remove", "m1")]),
        {"m1": End("removed"), "m2": End("processed")},
        story=((5, "m1", DISABLED), (60, "", ENABLED)),
        calls=(*_calls("m1", 0, 5, each=1), *_calls("m1", 5, 3, at=60, each=1), (63, "m2", 0, 0)),
        counters={},
        needs_a_host=IN_A_PASS,
    ),
    Example(
        "SB-E9 ON then END, END loses",
        ServiceBroker(recovery_order="enable_then_end"),
        Script({"m1": "rb*", "m2": "ok"}, actions=[Action(60, "enable"), Action(70, "remove", "m1")]),
        {"m1": End("removed"), "m2": End("main", 0, 0)},
        story=((0, "m1", DISABLED), (60, "", ENABLED), (60, "m1", DISABLED)),
        calls=(*_calls("m1", 0, 5), *_calls("m1", 5, 5, at=60)),
        halted=Halted.DISABLED,
        counters={"rollbacks": 5},
    ),
)

E10 = (
    Example(
        "SB-E10 the fourth failure ends the conversation",
        ServiceBroker(),
        Script({"m1": _tracked(9), "m2": "ok"}),
        {"m1": End("processed"), "m2": End("processed")},
        calls=(*((0, "m1", 0, 0) for _ in range(4)), (0, "m2", 0, 0)),
        counters={},
        needs_a_host=SAVEPOINT,
    ),
    Example(
        "SB-E10 ok on the third try",
        ServiceBroker(),
        Script({"m1": _tracked(2)}),
        {"m1": End("processed")},
        calls=tuple((0, "m1", 0, 0) for _ in range(3)),
        counters={},
        needs_a_host=SAVEPOINT,
    ),
)

SLIPS_IN = Example(
    "SB-13 one more delivery slips in",
    ServiceBroker(disabling="background"),
    Script({"m1": "rb*", "m2": "ok"}),
    {"m1": End("main", 6, 0), "m2": End("main", 0, 0)},
    story=((0, "m1", DISABLED),),
    calls=_calls("m1", 0, 6),
    halted=Halted.DISABLED,
    counters={"rollbacks": 6},
)

EXAMPLES: tuple[Example, ...] = (E1, E2, *E3, *E5, *E9, *E10, SLIPS_IN)
