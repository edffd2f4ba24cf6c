"""Landing in two outputs that fail, refuse rows and are mended, in any order, with deaths and with people: no row is lost, none lands twice.

Reported of other tools: an output that was down lacks what others had meanwhile (fluent-bit 2850, xatu 871), stops the others (logstash 2463, 8524,
vector 14828, 19938), or has rows twice after a retry, also where rows are merged (delta 1421, 1999, iceberg 8809, wally 668).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_poison.passes.land import land, take_out, waiting_rows
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import MessageNotFoundError, OutputError
from tests.given.examples import examples
from tests.given.landing import both_outputs, broken, constrain, mended, of, reached
from tests.given.passes import DiedError, a_queue
from tests.unit.passes.test_output_tables import POLICY, rows

if TYPE_CHECKING:
    from collections.abc import Callable


def dying_at(place: int) -> Callable[[str], None]:
    """Return a hook that dies at the point of this number."""
    met: list[str] = []

    def reach(point: str) -> None:
        met.append(point)
        if len(met) > place:
            raise DiedError

    return reach


def at_the_landing(point: str) -> None:
    if point == "output.land.before_write":
        raise DiedError


ACTS = st.sampled_from(["break 0", "break 1", "mend 0", "mend 1", "constrain 0", "constrain 1", "land", "die", "take out"])


@pytest.mark.long
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ACTS, max_size=8), st.integers(0, 12), st.sampled_from([(), ("n",)]))
@example(["break 0", "land", "mend 0", "constrain 0"], 0, ())
@example(["break 1", "land", "mend 1", "constrain 1", "constrain 0"], 0, ("n",))
def test_each_row_is_in_its_output_or_its_message_is_in_the_queue_whatever_failed_and_died(acts: list[str], at: int, keys: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(dir=tempfile.gettempdir()) as folder:
        outputs = {name: Path(folder, name) for name in ("first", "second")}
        places, away = list(outputs.values()), set[str]()
        for each in places:
            write_deltalake(str(each), pa.table({"n": pa.array([], pa.int64())}))
        queue = a_queue(DeltaStore(f"{folder}/store", durable=False), Path(folder), POLICY)

        with reached(at_the_landing), pytest.raises(DiedError):
            queue.sent("1", "-2", "3").receive("one", handler=both_outputs, isolation="none", **of(outputs, keys=dict.fromkeys(outputs, keys)))
        for act in (*acts, "mend 0", "mend 1"):
            verb, _, number = act.partition(" ")
            with suppress(OutputError, DiedError, MessageNotFoundError):
                if verb == "break" and number not in away:
                    away.add(number)
                    broken(places[int(number)])
                elif verb == "mend" and number in away:
                    away.remove(number)
                    mended(places[int(number)])
                elif verb == "constrain" and number not in away:
                    with suppress(DeltaError):  # rows that break it are there already, or it has one
                        constrain(places[int(number)])
                elif verb == "take" and not away:
                    take_out(queue.table, queue.clock, [2], "main")
                elif verb in {"land", "die"}:
                    with reached(dying_at(at if verb == "die" else 1_000)):
                        land(queue.table, queue.clock)
        with suppress(OutputError):
            land(queue.table, queue.clock)

        here = {row["body"].decode() for row in queue.rows().values() if row["body"] in {b"1", b"-2", b"3"}}
        for each in places:
            landed = Counter(str(row["n"]) for row in rows(each))
            assert {*landed.values()} <= {1}
            assert {*landed} | here >= {"1", "-2", "3"}, (landed, here)
        assert here <= {"-2"}
        assert waiting_rows(queue.table) == ()
