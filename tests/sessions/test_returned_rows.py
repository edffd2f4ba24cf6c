"""What the messages of a batch returned that are delivered one by one: each as it commits, and all of it in one record when the batch is done."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison.delivery import returned
from airflow_poison.delivery.handlers import Batching
from airflow_poison.delivery.journal import STATE_MASK, MessageState, attempts_of, sections
from airflow_poison.outputs.output import is_together, outputs_of, rows_kept, table_kept
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.values.errors import ServerSessionError
from tests.given.messages import batch_of
from tests.sessions.conftest import policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from airflow_poison.delivery.returned import ReturnedBy
    from airflow_poison.values.message import Message
    from tests.sessions.conftest import Opener

AT = datetime(1899, 12, 31, 23, 59, 59, 7, tzinfo=UTC)
OUTPUTS = outputs_of("/nowhere/out", schema="id long, at timestamp, price decimal(10,2), tags array<struct<k: string, v: binary>>, note string")


def row(number: int) -> dict[str, Any]:
    tags = None if number % 3 else [{"k": "é\0", "v": b"\xff"}, {"k": None, "v": b""}]
    return {"id": number, "at": AT + timedelta(days=number), "price": Decimal(number).scaleb(-2), "tags": tags, "note": "" if number % 2 else None}


def late(message: Message) -> dict[str, Any]:
    if message.abort_count < 2:
        raise ValueError("not yet")
    return row(message.lookup_id)


def die(message: Message) -> dict[str, Any]:
    if message.abort_count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return row(message.lookup_id)


def fork(message: Message) -> dict[str, Any]:
    if os.fork() == 0:
        return row(-message.lookup_id)
    os.wait()
    return row(message.lookup_id)


WAYS: dict[str, Callable[[Message], Any]] = {
    "one": lambda message: row(message.lookup_id),
    "list": lambda message: [row(message.lookup_id), row(-message.lookup_id)],
    "yield": lambda message: (row(message.lookup_id) for _ in range(3)),
    "partly": lambda message: {"id": message.lookup_id},
    "nothing": lambda _: None,
    "no rows": lambda _: [],
    "late": late,
    "misfit": lambda _: {"id": "seven"},
    "die": die,
    "fork": fork,
}


def columns_of(given: Any) -> list[dict[str, Any]]:
    """Return a row with a column that is named by the body."""
    if isinstance(given, pa.Table):
        return [{"lookup_id": row["lookup_id"], row["body"].decode(): 1} for row in given.to_pylist()]
    return [{given.text: 1}]


def land(message: Message) -> Any:
    """Return rows in the way that the body says."""
    return WAYS[message.text](message)


def expected(body: str, number: int) -> list[dict[str, Any]]:
    one, partly = row(number), dict.fromkeys(row(number)) | {"id": number}
    of_each = {"list": [one, row(-number)], "yield": [one] * 3, "partly": [partly], "nothing": [], "no rows": [], "misfit": []}
    return of_each.get(body, [one])


def found(returned: Sequence[ReturnedBy]) -> list[dict[str, Any]]:
    names, rows = list(row(0)), []
    for lookup_ids, kept in returned:
        if is_together(kept):
            _, owners, batch = table_kept(kept)
            rows += [each for owner, each in zip(owners.tolist(), batch.to_pylist(), strict=True) if owner in lookup_ids]
        else:
            rows += [dict(zip(names, (*each, *[None] * (len(names) - len(each))), strict=True)) for _, some in rows_kept(kept) for each in some]
    return rows


def bodies(*others: str) -> list[str]:
    return [*list(WAYS)[:8] * 4, *others]


def delivered(session: Opener, given: list[str], **job: Any) -> Sequence[ReturnedBy]:
    """Return what a batch returned, and assert that it is what its handler returned."""
    opened = session(land, outputs=OUTPUTS, policy=policy(receive_retry_count=3), **job)
    opened.deliver(batch_of(["one", "list"], 100))  # of another batch
    report = opened.deliver(batch_of(given, 1))
    assert found(report.returned) == [each for number, body in enumerate(given, 1) for each in expected(body, number)]
    return report.returned


def test_it_is_in_one_record_and_what_the_records_of_each_have(session: Opener, isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = delivered(session, bodies(), isolation=isolation)
    assert is_together(whole.rows)
    monkeypatch.setattr(returned.Returned, "end_batch", lambda _: None)
    assert len(delivered(session, bodies(), isolation="none")) == 28


def test_a_few_messages_have_their_own_records_alone(session: Opener) -> None:
    assert len(delivered(session, ["one"] * 15, isolation="none")) == 15
    assert len(delivered(session, ["one"] * 16, isolation="none")) == 1


def test_of_much_each_message_has_its_own_record(session: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returned, "_MOST_TOGETHER", 1_000)
    assert len(delivered(session, ["one"] * 40, isolation="none")) == 40


@pytest.mark.parametrize("kind", ["alone", "frames", "ordered"])
def test_columns_that_cannot_be_written_down_are_no_failure_of_a_message(session: Opener, journals: Path, isolation: str, kind: str) -> None:
    """As where the disk is full; the next run delivers the message again, and it has lost no attempt."""
    of_kinds: dict[str, dict[str, Any]] = {"alone": {}, "frames": {"batching": Batching("arrow")}, "ordered": {"policy": ServiceBroker()}}
    opened = session(columns_of, isolation=isolation, outputs=outputs_of("/nowhere/out", evolve=True), **of_kinds[kind])
    opened.deliver(batch_of(["a"]))
    (journals / "output-output.lock").unlink()
    (journals / "output-output.lock").mkdir()

    with pytest.raises(ServerSessionError, match=r"columns of the output 'output' cannot be written: Is a directory.*free some space"):
        opened.deliver(batch_of(["b"], 1))

    opened.close()
    (_, section) = [each for path in journals.glob("*.journal") for each in sections(path.read_bytes())]
    assert (attempts_of(section.words).tolist(), (section.words & STATE_MASK).tolist()) == ([0], [MessageState.UNTOUCHED])


def test_where_the_process_dies_each_message_has_its_own_record_again(session: Opener) -> None:
    given = bodies("die", *bodies(), "die", "one")
    assert len(delivered(session, given)) > 1


def test_a_fork_that_returns_rows_returns_none(session: Opener) -> None:
    assert len(delivered(session, ["one", "fork", "one"])) == 3
