"""A receive pass that is submitted to a cluster: what its driver is told through the store, and what it tells. ``carry_out`` is its driver.

The store is the one place that task, driver and executors all see. A folder in the queue's stage holds, for each try, the application, this
package, the files that a user ships, the order, and in the end the outcome.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from airflow_poison.core.delivery.batching import BATCH_SIZE, Batching
from airflow_poison.core.delivery.stage import Tally
from airflow_poison.core.delivery.transform import Transformation
from airflow_poison.core.errors import HandlerNotFoundError, PoisonError, SettingError, SparkJobError, recalled
from airflow_poison.core.file_modes import PRIVATE_FOLDER, private
from airflow_poison.core.passes.runs import ReceiveResult, combined, finished, is_known, pass_key
from airflow_poison.core.spark.executors import own_package, shippable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import NoReturn

    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.passes.land import Deliver
    from airflow_poison.core.passes.receive import ReceivePass
    from airflow_poison.core.store.queue_table import QueueTable


ORDER, OUTCOME, APPLICATION, NO_CLASSES = "order.json", "outcome.json", "receive.py", "nothing.jar"
_FIELDS = tuple(field.name for field in fields(ReceiveResult))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOrder:
    """What the application is told.

    :param store: the root.
    :param policy: as ``to_dict`` gives it.
    :param handler: the name of one that is imported where the driver runs; of one that travels by value, its name for people.
    :param by_value: that handler, pickled, in base 64; empty: it is imported.
    :param transforms: the handler is a transformation of a DataFrame, with these settings of it.
    :param imports: what goes in front of the driver's import path; executors, who see the store, too, have it behind theirs.
    :param parallelism: how many tasks the pass has; None: as many as run at the same time.
    :param batch: with ``batch_size`` and ``schema`` what ``Batching.of`` takes.
    :param since: how many passes of the run key had finished, and been read, before its first try; kept for the tries to come.
    :param outage: as ``to_dict`` gives it; None: none is looked for.
    :param deliver: the name of the function that takes the rows of the output without a table; empty: there is none.
    :param deliver_by_value: that function, as ``by_value``.
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
    outputs: str = ""
    imports: tuple[str, ...] = ()
    parallelism: int | None = None
    since: int = 0
    batch: str | None = None
    batch_size: int = BATCH_SIZE
    schema: str | None = None
    outage: Mapping[str, object] | None = None
    transforms: bool = False
    mixes_rows: bool = False
    deliver: str = ""
    deliver_by_value: str = ""

    def handled_by(self, handler: HandlerRef | Transformation) -> PassOrder:
        """Return the same order with a checked handler."""
        if isinstance(handler, Transformation):
            return replace(self.handled_by(handler.ref()), transforms=True, schema=handler.schema, mixes_rows=handler.mixes_rows)
        return replace(self, handler=handler.name, by_value=_as_text(handler))

    def delivered_by(self, deliver: HandlerRef | None) -> PassOrder:
        """Return the same order with a checked function that takes rows; None: without one."""
        return self if deliver is None else replace(self, deliver=deliver.name, deliver_by_value=_as_text(deliver))


@dataclass(frozen=True, slots=True)
class Submission:
    """The folder of a run key, the same for each of its tries, with a folder of its own for each try that submits.

    :param folder: below the queue's own.
    :param attempt: the name of this try's folder; those of later tries come later in the alphabet.
    """

    folder: Path
    attempt: str

    @classmethod
    def of_queue(cls, table: QueueTable, key: str) -> Submission:
        """Return the folder of a run key, for a new try. Raises SettingError for a queue whose folder only this node has."""
        if table.node:
            raise SettingError("store", table.uri, "a folder that the driver sees, too: queues in object stores are received from in the task so far")
        return cls(Path(table.root, "_stage", f"send-submitted-{key}"), f"{time.time_ns():020}-{token_hex(4)}")

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

    def write(self, order: PassOrder, py_files: Iterable[str]) -> None:
        """Put everything into this try's folder.

        :param py_files: on this machine.
        """
        self._here.mkdir(PRIVATE_FOLDER, parents=True)  # the order holds a pickled handler, which is code
        (self._here / "files").mkdir()
        shutil.copyfile(Path(__file__).with_name("application.py"), self.application)
        copies = [self._put(shippable(path)) for path in (own_package(), *py_files)]
        Path(self.no_classes).write_bytes(b"PK\x05\x06" + bytes(18))
        imports = dict.fromkeys(str(Path(path).parent) if path.endswith(".py") else path for path in copies)
        write_whole(Path(self.order), asdict(replace(order, imports=tuple(imports))))

    def since(self) -> int | None:
        """Return what the first order says of the passes before it; None: there is no order that nobody has read the result of."""
        for folder in self._attempts():
            order = _read(folder / ORDER)
            if order:
                return int(order["since"])
        return None

    def outcome(self) -> ReceiveResult | None:
        """Return the result that the driver told: of this try, or of the last one that submitted. None: it told nothing. Raises what it raised."""
        attempts = self._attempts()
        said = _read((self._here if self._here in attempts or not attempts else attempts[-1]) / OUTCOME)
        if "error" in said:
            raise recalled(said["error"]["type"], said["error"]["text"])
        return _result(said)

    def left(self) -> ReceiveResult | None:
        """Return the result of an earlier try that nobody has read, since its task was killed; None where there is none."""
        return fullest(_result(_read(folder / OUTCOME)) for folder in self._attempts())

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _here(self) -> Path:
        return self.folder / self.attempt

    def _attempts(self) -> Sequence[Path]:
        try:
            return sorted(self.folder.iterdir())
        except FileNotFoundError:
            return ()

    def _put(self, path: str) -> str:
        copy = self._here / "files" / Path(path).name
        shutil.copyfile(path, copy)
        return str(copy)


def _as_text(function: HandlerRef) -> str:
    """Return what travels by value in base 64; empty for what is imported."""
    return base64.b64encode(function.by_value or b"").decode()


def was_begun(table: QueueTable, key: str, handle: str = "") -> bool:
    """Whether a pass of a run key was submitted, or has left anything in the queue."""
    return Submission.of_queue(table, key).folder.exists() or is_known(table, key, handle)


def without_spark(receiving: ReceivePass, key: str) -> ReceiveResult | None:
    """Receive where that needs no Spark: nothing to deliver, a halted or blocked queue. None: it needs Spark, and nothing is claimed.

    :param receiving: with the engine ``needed``. Raises what it raises.
    """
    table, own = receiving.table, pass_key(key, finished(receiving.table, key))
    claims = table.snapshot().claims
    if any(claim.key == own for claim in claims) or table.expired(receiving.clock.now()):
        return None
    try:
        return receiving.run(key)
    except _SparkNeededError:
        return None


def needed() -> NoReturn:
    """Be the engine of a pass that ends where it needs one."""
    raise _SparkNeededError


class _SparkNeededError(Exception):
    """There is something to deliver."""


def recorded(table: QueueTable, key: str, since: int) -> ReceiveResult | None:
    """Return what the queue has recorded of the passes of a run key; None where there is none.

    :param since: how many had finished before.
    """
    records = [table.result(pass_key(key, ordinal)) for ordinal in range(since, finished(table, key))]
    return combined(table.name, key, [Tally.from_record(record) for record in records if record], {}, 0.0) if records else None


def fullest(results: Iterable[ReceiveResult | None]) -> ReceiveResult | None:
    """Return the result that tells of most passes, the first of equals: where two drivers of a run key met, the later one found nothing to do."""
    return max(filter(None, results), key=lambda result: result.passes, default=None)


def write_whole(path: Path, what: object) -> None:
    """Write a file of JSON whole or not at all."""
    part = path.with_suffix(".part")
    with open(part, "w", encoding="utf-8", opener=private) as file:
        json.dump(what, file)
    part.replace(path)


def _result(said: Mapping[str, Any]) -> ReceiveResult | None:
    found = said.get("result")
    if found is None:
        return None
    numbers = {name: found[name] for name in _FIELDS}
    return ReceiveResult(**{**numbers, "errors": tuple(numbers["errors"])})


def _read(path: Path) -> dict[str, Any]:
    """Return what a file says; nothing when it is not there, or another try has removed it."""
    said: dict[str, Any] = {}
    with suppress(FileNotFoundError):
        said = json.loads(path.read_text())
    return said


# The driver's side -----------------------------------------------------------------------------------------------------


KEEP_SECONDS = 600.0
"""How often an order is touched while it is carried out: maintenance removes such folders when they are a day old."""


def carry_out(order_file: Path) -> int:
    """Receive as an order says, and write the outcome beside it. Returns the exit code: 0 where the pass ended."""
    said = json.loads(order_file.read_text())
    order = PassOrder(**{**said, **{name: tuple(said[name]) for name in ("unprocessable", "imports")}})
    with _kept(order_file):
        try:
            outcome: dict[str, Any] = {"result": _receive(order)}
        except PoisonError as error:
            outcome = _told(error)
        except Exception as error:  # noqa: BLE001  (whatever it is, the task tells it)
            traceback.print_exc()
            what = f"{type(error).__name__}: {error}"
            outcome = _told(SparkJobError(f"The driver of pass {order.key} failed: {what}\nIts own log has the rest; run the task again."))
    with suppress(FileNotFoundError):  # the folder is gone; the queue has the result
        write_whole(order_file.parent / OUTCOME, outcome)
    return 1 if "error" in outcome else 0


def _receive(order: PassOrder) -> dict[str, object]:
    from pyspark.sql import SparkSession

    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.passes.receive import ReceivePass
    from airflow_poison.core.policies import policy_from_dict
    from airflow_poison.core.policies.outage import checked_outage
    from airflow_poison.core.spark.engine import SparkEngine
    from airflow_poison.core.store import open_store

    store = open_store(order.store, durable=order.durable)
    session = SparkSession.builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # as results of transformations are read
    by_value = base64.b64decode(order.by_value)
    handler = HandlerRef(order.handler, by_value, tuple(sys.path)) if by_value else order.handler
    receiving = ReceivePass(
        table=store.open(order.queue),
        policy=policy_from_dict(order.policy),
        handler=Transformation(handler, order.schema, order.mixes_rows) if order.transforms else handler,  # type: ignore[arg-type]  # resolved already
        engine=lambda: SparkEngine(session.getOrCreate(), _say, parallelism=order.parallelism),
        clock=SystemClock(),
        max_messages=order.max_messages,
        isolation=order.isolation,
        unprocessable=order.unprocessable,
        outputs=pickle.loads(base64.b64decode(order.outputs)) if order.outputs else (),  # noqa: S301  (ours, like the handler)
        batching=None if order.transforms else Batching.of(order.batch, order.batch_size, order.schema),
        deliver=_deliver(order),
        progress=_say,
        store=store,
        outage=checked_outage(order.outage),
    )
    return receiving.run(order.key).to_dict()


def _deliver(order: PassOrder) -> Deliver | None:
    """Return the function that takes rows, found before anything is claimed. Raises HandlerNotFoundError."""
    from airflow_poison.core.delivery.handlers import HandlerRef, load_handler

    if not order.deliver:
        return None
    try:
        found: Any = load_handler(HandlerRef(order.deliver, base64.b64decode(order.deliver_by_value) or None, tuple(sys.path)))
    except HandlerNotFoundError as error:
        raise HandlerNotFoundError(f"deliver: {error}") from error
    return found  # type: ignore[no-any-return]  # checked when it was declared


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


def _told(error: PoisonError) -> dict[str, Any]:
    _say(f"{type(error).__name__}: {error}")
    return {"error": {"type": type(error).__name__, "text": str(error)}}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
