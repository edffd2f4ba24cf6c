"""An outage in the shell: receive finds it, list, show and history tell of it, and a receive that looks for none ends it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.unit.cli.queues.given import MOVE, TAKE, answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.given.command import Ran

LOOKING = "--outage at_least=6 probe=2 every=1h"


def test_an_outage_is_found_shown_waited_for_and_ended(poison: Callable[..., Ran]) -> None:
    poison(f"send orders {' '.join(f'bad{number}' for number in range(12))} {MOVE}")
    poison("send idle one --system Msmq4")

    found = poison(f"receive orders {TAKE} {LOOKING}").out
    assert "12 not reached or given back because of an outage" in found
    outage = r"outage since [-\d]+ [:\d]+ UTC, no poison: LookupError: unknown plane bad0\. \d messages that failed so are given back uncounted"
    assert re.search(outage, found)

    assert re.search(r"^orders +outage +12 ", poison("list").out, re.MULTILINE)
    shown = poison("show orders").out.splitlines()
    assert shown[0] == "orders: enabled"
    assert re.match(r"orders: outage since .* UTC, no poison; failures [0-9a-f]{12}, next probe", shown[1])
    told = answer(poison("show orders -o json"))
    assert told["outage"].keys() == {"since", "next_probe_at", "fingerprint"}
    assert (told["poison_outage"], told["counters"]) == (None, {})
    assert answer(poison("show idle -o json"))["outage"] is None
    (event,) = answer(poison("history orders -o json"))["events"]
    assert event["event"] == "OUTAGE_BEGAN"
    assert event["details"]["fingerprint"] == told["outage"]["fingerprint"]
    assert "OUTAGE_BEGAN" in poison("history orders").out

    waits = poison(f"receive orders {TAKE} {LOOKING}").out
    assert "The next probe is due at" in waits
    assert "nothing to receive" not in waits

    assert "12 moved to poison" in poison(f"receive orders {TAKE}").out
    assert answer(poison("show orders -o json"))["outage"] is None
    assert answer(poison("history orders -o json"))["events"][-1]["event"] == "OUTAGE_OVER"


def test_a_wrong_setting_of_an_outage_is_one_line(poison: Callable[..., Ran]) -> None:
    poison(f"send orders one {MOVE}")
    assert "allowed: a number above 0, at most 1" in poison(f"receive orders {TAKE} --outage share=2", code=2).err
    assert "--outage 5: expected NAME=VALUE" in poison(f"receive orders {TAKE} --outage 5", code=2).err
