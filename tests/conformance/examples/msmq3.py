"""The worked examples of WCF on MSMQ 3.0 (spec section 4).

The counts of a message that stays are those that this product stores for people: all aborted receives, by whatever service.
"""

from __future__ import annotations

from datetime import timedelta

from airflow_poison.rules.decisions import Halted
from airflow_poison.rules.msmq3 import Msmq3
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from tests.conformance.examples.shape import Calls, End, Example

POISON, DROPPED, FAULTED, STARTED = "POISON_EXCEPTION", "DROPPED", "FAULTED", "STARTED"
ARRIVALS = "messages arrive while another one is being delivered"

E1 = Example(
    "M3-E1",
    Msmq3(receive_error_handling="Drop"),
    Script("rb*"),
    {"m": End("dropped")},
    story=((0, "m", POISON), (0, "m", DROPPED)),
    calls=tuple((0, "m", abort_count, 0) for abort_count in range(6)),
    receives=7,
    exceptions=1,
    elapsed=0,
)

E2 = (
    Example(
        "M3-E2 MRC 7, delay 1 h, RRC 0, Drop",
        Msmq3(max_retry_cycles=7, retry_cycle_delay=timedelta(hours=1), receive_retry_count=0, receive_error_handling="Drop"),
        Script("rb"),
        {"m": End("dropped")},
        story=((0, "m", POISON), (0, "m", DROPPED)),
        calls=((0, "m", 0, 0),),
        receives=2,
        exceptions=1,
        elapsed=0,
    ),
    Example(
        "M3-E2 MRC 2, RRC 5, Fault",
        Msmq3(max_retry_cycles=2, receive_retry_count=5),
        Script("rb*"),
        {"m": End("main", 7, 0)},
        story=((0, "m", POISON), (0, "m", FAULTED)),
        calls=tuple((0, "m", abort_count, 0) for abort_count in range(6)),
        receives=7,
        exceptions=1,
        halted=Halted.FAULTED,
    ),
)

E3 = (
    Example(
        "M3-E3 process restart",
        Msmq3(receive_retry_count=2, receive_error_handling="Drop"),
        Script(Scripted("m", "rb(10) rb(10) rb*"), actions=[Action(20, "restart_server")]),
        {"m": End("dropped")},
        story=((20, "m", POISON), (20, "m", DROPPED)),
        calls=((0, "m", 0, 0), (10, "m", 1, 0), (20, "m", 0, 0), (20, "m", 1, 0), (20, "m", 2, 0)),
        receives=6,
        exceptions=1,
        needs_a_host="the service's process restarts between two deliveries of one pass",
    ),
    Example(
        "M3-E3 Fault, restart",
        Msmq3(receive_retry_count=2),
        Script(Scripted("m", "rb*"), actions=[Action(60, "open")]),
        {"m": End("main", 8, 0)},
        story=((0, "m", POISON), (0, "m", FAULTED), (60, "", STARTED), (60, "m", POISON), (60, "m", FAULTED)),
        calls=tuple((at, "m", abort_count, 0) for at in (0, 60) for abort_count in range(3)),
        receives=8,
        exceptions=2,
        halted=Halted.FAULTED,
    ),
)

_LAST_256 = [f"M{number}" for number in range(2, 258)]
E4 = Example(
    "M3-E4",
    Msmq3(receive_retry_count=2, receive_error_handling="Drop"),
    Script(Scripted("M1", "rb rb(10) rb*", priority=0), *(Scripted(name, at=5) for name in _LAST_256)),
    {"M1": End("dropped"), "M2": End("processed"), "M257": End("processed")},
    story=((10, "M1", POISON), (10, "M1", DROPPED)),
    calls=(
        (0, "M1", 0, 0),
        (0, "M1", 1, 0),
        *((10, name, 0, 0) for name in _LAST_256),
        *((10, "M1", abort_count, 0) for abort_count in range(3)),
    ),
    receives=262,
    exceptions=1,
    needs_a_host=ARRIVALS,
)


def _endless() -> Calls:
    table_fills: Calls = ((0, "1", 0, 0), *((10, str(number), 0, 0) for number in range(2, 257)))
    alternately = [((read * 10, "1", int(read == 1), 0), (read * 10 + 10, str(256 + read), 0, 0)) for read in range(1, 14)]
    return (*table_fills, *(call for pair in alternately for call in pair), (140, "1", 0, 0))


E6 = Example(
    "M3-E6",
    Msmq3(receive_retry_count=2, receive_error_handling="Drop"),
    Script(
        Scripted("1", "rb(10)*14 ok", priority=0),
        *(Scripted(str(number), at=5) for number in range(2, 257)),
        *(Scripted(str(256 + read), at=read * 10 + 5) for read in range(1, 14)),
    ),
    {"1": End("processed"), "269": End("processed")},
    calls=_endless(),
    elapsed=140,
    needs_a_host=ARRIVALS,
)

EXAMPLES: tuple[Example, ...] = (E1, *E2, *E3, E4, E6)
