"""The workload: JSON messages of 1 KB, of which 1 % always fail and 5 % fail twice and then succeed.

Every server session imports this module for its handler, so it imports nothing but Python's own at the top.
"""

from __future__ import annotations

import json
import random
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from airflow_poison.values.message import Message

SIZE = 1024


def bodies(number: int, *, failing: bool, seed: int = 7) -> Iterator[bytes]:
    """Yield ``number`` JSON bodies of about 1 KB."""
    source = random.Random(seed)
    fillers = ["".join(source.choices("abcdefghijklmnopqrstuvwxyz 0123456789", k=60)) for _ in range(64)]
    for index in range(number):
        draw = source.random() if failing else 1.0
        kind = "hopeless" if draw < 0.01 else "flaky" if draw < 0.06 else "good"
        row = {
            "id": index,
            "kind": kind,
            "amount": index % 997 / 7,
            "lines": [{"sku": source.randrange(10**6), "text": fillers[source.randrange(64)], "n": k} for k in range(8)],
        }
        body = json.dumps(row).encode()
        yield body[:-1] + b', "pad": "' + b"x" * max(0, SIZE - len(body) - 12) + b'"}'


def write(path: str, number: int, *, failing: bool) -> None:
    """Write the workload as Parquet with one column ``body``; run in a process of its own, so that the memory measured later is the product's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = iter(bodies(number, failing=failing))
    schema = pa.schema([("body", pa.binary())])
    with pq.ParquetWriter(path, schema) as file:
        while chunk := list(islice(source, 10_000)):
            file.write_table(pa.table([pa.array(chunk, pa.binary())], schema=schema))


def check(order: dict[str, object]) -> None:
    """The one check that every competitor makes."""
    if order["kind"] == "hopeless":
        raise ValueError("this order can never be processed")


def handler(message: Message) -> None:
    """Parse and check one message; a flaky one fails on its first two deliveries."""
    order = json.loads(message.body)
    check(order)
    if order["kind"] == "flaky" and message.abort_count < 2 and message.move_count == 0:
        raise TimeoutError("the database was locked")


def single(message: Message) -> None:
    """Parse and check one message."""
    check(json.loads(message.body))


def returning(message: Message) -> dict[str, object]:
    """Parse and check one message, and return a row."""
    order = json.loads(message.body)
    check(order)
    return {"id": order["id"], "amount": order["amount"]}


def named(frame: pa.Table) -> pa.Table:
    """Check all rows of a frame, and return two columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    hopeless = pc.equal(frame["kind"], pa.scalar("hopeless"))
    if pc.any(hopeless).as_py():
        from airflow_poison.values.failures import PoisonRows

        raise PoisonRows(hopeless, "this order can never be processed")
    return frame.select(["lookup_id", "id", "amount"])


def searched(frame: pa.Table) -> pa.Table:
    """Check all rows of a frame, and name none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.any(pc.equal(frame["kind"], pa.scalar("hopeless"))).as_py():
        raise ValueError("some order can never be processed")
    return frame.select(["lookup_id", "id", "amount"])
