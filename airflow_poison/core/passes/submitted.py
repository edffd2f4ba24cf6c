"""A receive pass that is submitted to a cluster: what it is told through the store, and what it tells.

The store is the one place that task, driver and executors all see. A folder in the queue's stage holds the application, this package, the files
that a user ships, the order, and in the end the outcome.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from airflow_poison.core.delivery.handlers import HandlerRef
from airflow_poison.core.delivery.tally import Tally
from airflow_poison.core.errors import PoisonError
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes import application
from airflow_poison.core.passes.receive import ReceivePass, ReceiveResult, combined
from airflow_poison.core.spark.failed_jobs import ours
from airflow_poison.core.spark.shipping import own_package, shippable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_poison.core.store.seam import QueueTable

ORDER, OUTCOME, APPLICATION, NO_CLASSES = "order.json", "outcome.json", "receive.py", "nothing.jar"
_FIELDS = tuple(field.name for field in fields(ReceiveResult))
KEEP_SECONDS = 600.0
"""How often an order is touched while it is carried out: maintenance removes such folders when they are a day old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the application is told.

    :param store: the root.
    :param policy: as ``to_dict`` gives it.
    :param handler: the name of one that is imported where the driver runs; of one that travels by value, its name for people.
    :param by_value: that handler, pickled, in base 64; empty: it is imported.
    :param imports: what goes in front of the driver's import path.
    :param py_files: what the driver ships to executors.
    :param parallelism: how many tasks the pass has; None: as many as run at the same time.
    """

    store: str
    durable: bool
    queue: str
    key: str
    policy: Mapping[str, object]
    handler: str
    by_value: str = ""
    max_messages: int = 10_000_000
    isolation: str = "process"
    unprocessable: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    py_files: tuple[str, ...] = ()
    parallelism: int | None = None

    def handled_by(self, handler: HandlerRef) -> Order:
        """Return the same order with a checked handler."""
        return replace(self, handler=handler.name, by_value=base64.b64encode(handler.by_value or b"").decode())


@dataclass(frozen=True, slots=True)
class Submission:
    """The folder of a run key, the same for each of its tries, with a folder of its own for each try.

    :param folder: below the queue's own.
    :param attempt: the name of this try's folder.
    """

    folder: Path
    attempt: str

    @classmethod
    def of_queue(cls, table: QueueTable, key: str) -> Submission:
        """Return the folder of a run key, for a new try."""
        return cls(Path(table.uri, "_stage", f"send-submitted-{key}"), token_hex(8))

    @property
    def application(self) -> str:
        """What is submitted."""
        return str(self._here / APPLICATION)

    @property
    def order(self) -> str:
        """The application's only argument."""
        return str(self._here / ORDER)

    @property
    def no_classes(self) -> str:
        """An empty archive, where something must be submitted that holds classes."""
        return str(self._here / NO_CLASSES)

    def write(self, order: Order, py_files: Sequence[str]) -> None:
        """Put everything into the folder; an earlier try's outcome goes.

        :param py_files: on this machine.
        """
        (self._here / "files").mkdir(parents=True)
        (self.folder / OUTCOME).unlink(missing_ok=True)
        shutil.copyfile(application.__file__, self.application)
        shipped = tuple(self._put(shippable(path)) for path in (own_package(), *py_files))
        Path(self.no_classes).write_bytes(b"PK\x05\x06" + bytes(18))
        imports = dict.fromkeys(str(Path(path).parent) if path.endswith(".py") else path for path in shipped)
        _write(Path(self.order), asdict(replace(order, imports=tuple(imports), py_files=shipped[1:])))

    def outcome(self) -> ReceiveResult | None:
        """Return the pass's result; None when it has told nothing. Raises what it raised."""
        try:
            said: dict[str, Any] = json.loads((self.folder / OUTCOME).read_text())
        except FileNotFoundError:
            return None
        if "error" in said:
            raise ours(said["error"]["type"], said["error"]["text"])
        numbers = {name: said["result"][name] for name in _FIELDS}
        return ReceiveResult(**{**numbers, "errors": tuple(numbers["errors"])})

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _here(self) -> Path:
        return self.folder / self.attempt

    def _put(self, path: str) -> str:
        copy = self._here / "files" / Path(path).name
        shutil.copyfile(path, copy)
        return str(copy)


def finished(table: QueueTable, key: str) -> int:
    """Return how many passes of a run key have finished."""
    ordinal = 0
    while table.result(f"{key}-{ordinal}") is not None:
        ordinal += 1
    return ordinal


def recorded(table: QueueTable, key: str, since: int) -> ReceiveResult | None:
    """Return what the queue has recorded of the passes of a run key; None where there is none.

    :param since: how many had finished before.
    """
    records = [table.result(f"{key}-{ordinal}") for ordinal in range(since, finished(table, key))]
    return combined(table.name, key, [Tally.from_record(record) for record in records if record], {}, 0.0) if records else None


def has_work(table: QueueTable, reads: SubQueue) -> bool:
    """Whether a pass might receive something: a cluster need not be asked otherwise."""
    wanted = {reads, SubQueue.TRANSMISSION, SubQueue.POSTPONED}
    return any(file.sub_queue in wanted for file in table.snapshot().files)


def carry_out(order_file: Path) -> int:
    """Receive as an order says, and write the outcome beside it. Returns the exit code: 0 where the pass ended."""
    said = json.loads(order_file.read_text())
    order = Order(**{**said, **{name: tuple(said[name]) for name in ("unprocessable", "imports", "py_files")}})
    with _kept(order_file):
        try:
            outcome: dict[str, Any] = {"result": _receive(order)}
        except PoisonError as error:
            outcome = {"error": {"type": type(error).__name__, "text": str(error)}}
            _say(f"{type(error).__name__}: {error}")
    with suppress(FileNotFoundError):  # the folder is gone; the queue has the result
        _write(order_file.parent.parent / OUTCOME, outcome)
    return 1 if "error" in outcome else 0


def _receive(order: Order) -> dict[str, object]:
    from pyspark.sql import SparkSession

    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.policies import policy_from_dict
    from airflow_poison.core.spark.engine import SparkEngine
    from airflow_poison.core.store import open_store

    store = open_store(order.store, durable=order.durable)

    def engine() -> SparkEngine:
        made = SparkEngine(SparkSession.builder.getOrCreate(), _say, parallelism=order.parallelism)
        made.ship(order.py_files)
        return made

    by_value = base64.b64decode(order.by_value)
    receiving = ReceivePass(
        table=store.open(order.queue),
        policy=policy_from_dict(order.policy),
        handler=HandlerRef(order.handler, by_value, tuple(sys.path)) if by_value else order.handler,  # type: ignore[arg-type]  # resolved already
        engine=engine,
        clock=SystemClock(),
        max_messages=order.max_messages,
        isolation=order.isolation,
        unprocessable=order.unprocessable,
        progress=_say,
        store=store,
    )
    return receiving.run(order.key).to_dict()


@contextmanager
def _kept(order_file: Path) -> Iterator[None]:
    """Keep the order's folder young while it is worked on."""
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(KEEP_SECONDS):
            with suppress(FileNotFoundError):
                os.utime(order_file)

    threading.Thread(target=touch, name="poison-keep", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _write(path: Path, what: object) -> None:
    """Write a file whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(what))
    part.replace(path)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
