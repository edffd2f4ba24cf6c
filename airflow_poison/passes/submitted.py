"""A receive pass that is submitted to a cluster: the order for its driver, and the outcome through the store. ``carry_out`` is its driver.

Each try has a folder in the queue's stage, with what it submits, an archive of the application, this package, the files that a user ships and
the order; with what later tries must know; and in the end the outcome.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import threading
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_poison.delivery.handlers import HandlerRef, Transformation, load_handler, resolve_deliver, resolve_handler
from airflow_poison.delivery.stage import Tally
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.runs import ReceiveResult, combined, finished, pass_key
from airflow_poison.spark.executors import own_package, shippable
from airflow_poison.store import QueueStore, open_store
from airflow_poison.store.data_files import STAGE
from airflow_poison.store.disk import second_name
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import HandlerNotFoundError, PoisonError, SparkJobError, StoreUnreachableError, recalled
from airflow_poison.values.machine import PRIVATE_FOLDER, private

if TYPE_CHECKING:
    from airflow_poison.passes.declaration import Receive
    from airflow_poison.passes.land import Deliver
    from airflow_poison.sources.source import Connection
    from airflow_poison.spark.engine import SparkEngine
    from airflow_poison.store.queue_table import QueueTable


BEGUN, OUTCOME, APPLICATION, FETCHED = "begun.json", "outcome.json", "receive.py", "receive.jar"
_FOLDER = "send-submitted-"
KEEP_SECONDS = 600.0
"""How often a folder is touched while its order is carried out: maintenance removes those that are a day old."""
_FIELDS = tuple(each.name for each in fields(ReceiveResult))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOrder:
    """The order for the application.

    :param store: the URI of the store.
    :param attempt: the name of the try's folder.
    :param receive: the settings of the receive, pickled, in base 64: functions that do not travel by their names are pickled in them once more, so
        that reading the order imports nothing of the author's.
    :param parallelism: how many tasks the pass has; None: as many as run at the same time.
    :param since: how many passes of the run key had finished, and been read, before its first try; kept for the tries to come.
    :param storage_options: for ``store``; with the credentials that the connection has, which is why orders are private files.
    """

    store: str
    durable: bool
    queue: str
    key: str
    receive: str
    parallelism: int | None = None
    since: int = 0
    attempt: str = ""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, receive: Receive, **parts: Any) -> PassOrder:
        """Return the order for settings whose functions are resolved (``travelling``)."""
        return cls(receive=base64.b64encode(pickle.dumps(receive)).decode(), **parts)

    def settings(self) -> Receive:
        """Return the settings of the receive."""
        found: Receive = pickle.loads(base64.b64decode(self.receive))  # noqa: S301  (ours, like the handler)
        return found


def travelling(receive: Receive, find: Callable[[str], Connection]) -> Receive:
    """Return settings whose handler and ``deliver`` are checked, and ready to be carried to another machine.

    :param find: finds the connection of a source.
    What the task does itself is left out. Raises HandlerNotFoundError, SettingError.
    """
    handler, deliver = receive.handler, receive.deliver
    assert handler is not None, "it was declared with one"
    if isinstance(handler, Transformation):
        carried: HandlerRef | Transformation = replace(handler, function=handler.ref())
    else:
        carried = resolve_handler(handler, returns_rows=bool(receive.outputs))
    return replace(
        receive,
        handler=carried,  # type: ignore[arg-type]  # resolved already
        deliver=None if deliver is None else resolve_deliver(deliver),  # type: ignore[arg-type]  # resolved, and found again by the driver
        source=None if receive.source is None else receive.source.connected(find),
        services=(),
        mask=None,
        redrive_on_new_handler=None,
    )


@dataclass(frozen=True, slots=True)
class Submission:
    """The folder of a run key, the same for each of its tries, with a folder of its own for each try that submits.

    :param attempt: the name of this try's folder; later tries have names later in the alphabet.
    """

    table: QueueTable
    key: str
    attempt: str = field(default_factory=lambda: f"{time.time_ns():020}-{token_hex(4)}")

    @property
    def folder(self) -> str:
        """The folder of the run key, below the queue's table."""
        return f"{STAGE}/{_FOLDER}{self.key}"

    @property
    def application(self) -> str:
        """What is submitted: where it lies on this node."""
        return str(self._here(APPLICATION))

    def fetched(self) -> str:
        """Return where a machine of the cluster gets the application, for an hour: the path that all share, or a URL that is signed.

        Python runs it under any name; a standalone cluster takes nothing but archives of Java.
        """
        return self.table.folder.fetched(self._below(FETCHED))

    def write(self, order: PassOrder, py_files: Iterable[str], *, publish: bool = False) -> None:
        """Put everything into this try's folder.

        :param py_files: on this machine.
        :param publish: a machine of the cluster fetches the application.
        """
        self._here(APPLICATION).parent.mkdir(PRIVATE_FOLDER, parents=True)  # the order holds a pickled handler, which is code, and credentials
        files = {f"files/{Path(path).name}": path for path in map(shippable, (own_package(), *py_files))}
        with open(self.application, "xb", opener=private) as target, zipfile.ZipFile(target, "w") as archive:
            archive.write(Path(__file__).with_name("application.py"), "__main__.py")
            archive.writestr("order.json", json.dumps({**asdict(replace(order, attempt=self.attempt)), "files": [*files]}))
            for name, path in files.items():
                archive.write(path, name)
        write_whole(self._here(BEGUN), {"since": order.since})
        if publish:
            second_name(Path(self.application), self._here(FETCHED))
        self.table.folder.share([self._below(name) for name in ([FETCHED, BEGUN] if publish else [BEGUN])])

    def since(self) -> int | None:
        """Return what the first order says of the passes before it; None: there is no order whose result was not read."""
        for attempt in self.attempts():
            if begun := self._read(BEGUN, attempt):
                return int(begun["since"])
        return None

    def outcome(self) -> ReceiveResult | None:
        """Return the driver's result: of this try, or of the last one that submitted. None: it wrote none. Raises what it raised."""
        attempts = self.attempts()
        outcome = self._read(OUTCOME, self.attempt if self.attempt in attempts or not attempts else attempts[-1])
        if "error" in outcome:
            raise recalled(outcome["error"]["type"], outcome["error"]["text"])
        return _result(outcome)

    def left(self) -> ReceiveResult | None:
        """Return the result of an earlier try that was not read, since its task was killed; None where there is none."""
        return fullest(_result(self._read(OUTCOME, attempt)) for attempt in self.attempts())

    def attempts(self) -> Sequence[str]:
        """Return the names of the tries that have submitted, in their order."""
        if not self.table.node:
            with suppress(FileNotFoundError):
                return sorted(path.name for path in Path(self.table.root, self.folder).iterdir())
            return ()
        return sorted(found.name for found in self.table.folder.stages() if found.path.rpartition("/")[0] == self.folder)

    def remove(self) -> None:
        """Remove the folder."""
        self.table.folder.remove_tree(self.folder)

    # The driver's side

    def write_outcome(self, outcome: object) -> None:
        """Write what the pass came to; nothing when the folder is gone, for the queue has the result."""
        if self.attempt not in self.attempts():
            return
        with suppress(FileNotFoundError):
            write_whole(self._here(OUTCOME), outcome)
            self.table.folder.share([self._below(OUTCOME)])

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the folder young while its order is carried out."""
        ended = threading.Event()

        def touch() -> None:
            while not ended.wait(KEEP_SECONDS):
                with suppress(OSError, StoreUnreachableError):  # the next one may do
                    if self.attempt in self.attempts():
                        os.utime(self._here(BEGUN))
                        self.table.folder.share([self._below(BEGUN)])

        with suppress(FileNotFoundError):
            self.table.folder.here(self._below(BEGUN))
        threading.Thread(target=touch, name="poison-keep", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _below(self, name: str) -> str:
        return f"{self.folder}/{self.attempt}/{name}"

    def _here(self, name: str) -> Path:
        return Path(self.table.root, self._below(name))

    def _read(self, name: str, attempt: str) -> dict[str, Any]:
        """Return what a file says; nothing when it is not there, or another try has removed it."""
        content: dict[str, Any] = {}
        with suppress(FileNotFoundError):
            content = json.loads(self.table.folder.here(f"{self.folder}/{attempt}/{name}").read_text())
        return content


def _as_text(function: HandlerRef) -> str:
    """Return what travels by value in base 64; empty for what is imported."""
    return base64.b64encode(function.by_value or b"").decode()


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
    """Return the result with most passes, the first of equals: where two drivers of a run key met, the later one found nothing to do."""
    return max(filter(None, results), key=lambda result: result.passes, default=None)


def write_whole(path: Path, what: object) -> None:
    """Write a file of JSON whole or not at all."""
    part = path.with_suffix(".part")
    with open(part, "w", encoding="utf-8", opener=private) as file:
        json.dump(what, file)
    part.replace(path)


def _result(outcome: Mapping[str, Any]) -> ReceiveResult | None:
    found = outcome.get("result")
    if found is None:
        return None
    numbers = {name: found[name] for name in _FIELDS if name in found}
    return ReceiveResult(**{**numbers, "errors": tuple(numbers["errors"])})


# The driver's side -----------------------------------------------------------------------------------------------------


def carry_out(order: PassOrder, files: Sequence[str] = ()) -> int:
    """Receive as an order says, and write the outcome. Returns the exit code: 0 where the pass ended.

    :param files: what was shipped with the order; executors are to import from it, too.
    """
    store = open_store(order.store, order.storage_options or None, durable=order.durable)
    table = store.open(order.queue)
    mine = Submission(table, order.key, order.attempt)
    with mine.kept():
        try:
            outcome: dict[str, Any] = {"result": _receive(order, store, table, files)}
        except PoisonError as error:
            outcome = _outcome_of(error)
        except Exception as error:  # noqa: BLE001  (whatever it is, the task reports it)
            traceback.print_exc()
            what = f"{type(error).__name__}: {error}"
            outcome = _outcome_of(SparkJobError(f"The driver of pass {order.key} failed: {what}\nIts own log has the rest; run the task again."))
    mine.write_outcome(outcome)
    return 1 if "error" in outcome else 0


def _receive(order: PassOrder, store: QueueStore, table: QueueTable, files: Sequence[str]) -> dict[str, object]:
    receiving = ReceivePass.of_table(
        table,
        _here(order.settings()),
        engine=lambda: _engine(order, files),
        clock=SystemClock(),
        progress=_say,
        store=store,
    )
    return receiving.run(order.key).to_dict()


def _engine(order: PassOrder, files: Sequence[str]) -> SparkEngine:
    """Return the engine of the driver's session, whose executors import from the files that were shipped."""
    from pyspark.sql import SparkSession

    from airflow_poison.spark.engine import SparkEngine

    session = SparkSession.builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # as results of transformations are read
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # a cluster that places the driver takes the application for a library of the executors
        session = session.config("spark.jars", ",".join(jar for jar in _jars() if f"/{_FOLDER}" not in jar))
    engine = SparkEngine(session.getOrCreate(), _say, parallelism=order.parallelism)
    engine.ship(files)
    return engine


def _jars() -> Sequence[str]:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001  (settings that were submitted are the JVM's)
    return SparkConf().get("spark.jars", "").split(",")


def _here(settings: Receive) -> Receive:
    """Return settings whose functions are found on this machine: by their names, or as they were carried. Raises HandlerNotFoundError."""
    handler: Any = settings.handler
    handler = replace(handler, function=_ref_here(handler.function)) if isinstance(handler, Transformation) else _ref_here(handler)
    return replace(settings, handler=handler, deliver=None if settings.deliver is None else _deliver(settings.deliver))


def _ref_here(ref: Any) -> Any:
    return replace(ref, path=tuple(sys.path)) if ref.by_value else ref.name


def _deliver(ref: Any) -> Deliver:
    """Return the function that takes rows, found before anything is claimed. Raises HandlerNotFoundError."""
    try:
        found: Any = load_handler(replace(ref, path=tuple(sys.path)))
    except HandlerNotFoundError as error:
        raise HandlerNotFoundError(f"deliver: {error}") from error
    return found  # type: ignore[no-any-return]  # checked when it was declared


def _outcome_of(error: PoisonError) -> dict[str, Any]:
    _say(f"{type(error).__name__}: {error}")
    return {"error": {"type": type(error).__name__, "text": str(error)}}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
