"""How a handler is named, checked in the driver, carried to where it runs, and loaded there.

Batching: how messages are handed to a handler many at a time, as a task declares it, and what that does not go with.

Transformations: functions of a Spark DataFrame in the place of a handler; how one is declared, checked and carried.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from threading import RLock
from types import AsyncGeneratorType, CoroutineType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_poison.values.ddl import column_names
from airflow_poison.values.errors import HandlerNotFoundError, HandlerNotRunError, SettingError
from airflow_poison.values.schema import LOOKUP_ID

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.outputs.output import Output
    from airflow_poison.outputs.row_files import Place
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.disk import Folder
    from airflow_poison.values.failures import Failure
    from airflow_poison.values.message import Message

    Handler = Callable[[Message], object]
    FrameHandler = Callable[[Any], object]  # a pyarrow.Table, or a DataFrame of pandas or Polars
    HandlerLike = str | Handler | FrameHandler
    Frames = DataFrame | Mapping[str, DataFrame]
    TransformLike = str | Callable[[DataFrame], Frames]

POISON_COLUMN = "_poison"
"""The column of a result that says why a row's message is poison; null: it is not. It does not land.

So a verdict must not be made null by one of its parts, as ``concat`` makes it: use ``concat_ws``, ``format_string`` or ``coalesce``.
"""


@dataclass(frozen=True, slots=True)
class Transformation:
    """A function of the DataFrame of a claim's messages, and how it is called.

    It is called in the driver, once for each chunk of a claim, and again for what failed. So it only builds a plan, and its result depends on
    nothing but the rows that it is given: what it is called with may be delivered again.

    :param function: an importable name (``"shop.arrivals:clean"``) or a function; it returns a DataFrame, or a mapping of names to such.
    :param schema: of the JSON bodies, as DDL (``"carrier string, flight int"``); the function is given these columns and ``lookup_id``, made by the
        function that makes the columns of batches (docs/reference/bodies.md). None: it gets the columns of messages as they are stored.
    :param mixes_rows: its result for a message depends on other messages: the claim is transformed as one unit.
    :param named: the messages that it has named already, when they were rows: by lookup id, with the failure. That was their first delivery.
    :param earlier: columns that had other types in messages up to a lookup id (``bodies.columns_as_written``).
    """

    function: TransformLike | HandlerRef
    schema: str | None = None
    mixes_rows: bool = False
    named: Mapping[int, Failure] = field(default_factory=dict, repr=False, compare=False)
    earlier: Sequence[tuple[int, str]] = ()

    def __post_init__(self) -> None:
        check_transform(self.function)
        if self.schema is not None:
            check_schema(self.schema)

    @property
    def name(self) -> str:
        """The name of the function, for people."""
        if isinstance(self.function, str):
            return self.function
        if isinstance(self.function, HandlerRef):
            return self.function.name
        return name_of(self.function)

    def ref(self) -> HandlerRef:
        """Return the function ready to travel. Raises HandlerNotFoundError where it cannot be imported or carried."""
        if isinstance(self.function, HandlerRef):
            return self.function
        try:
            return resolve_handler(self.function)
        except HandlerNotFoundError as error:
            raise HandlerNotFoundError(f"transform: {error}") from error

    def resolved(self) -> Transformation:
        """Return the same transformation with a function that is there. One that was given stays as it is: it is called in this process.

        Raises HandlerNotFoundError.
        """
        return replace(self, function=self.ref()) if isinstance(self.function, str) else self

    def load(self) -> Callable[[DataFrame], Frames]:
        """Return the function. Raises HandlerNotFoundError."""
        loaded: Any = self.function if callable(self.function) else load_handler(self.ref())
        return loaded  # type: ignore[no-any-return]  # checked when it was declared


class InPlaceOrder(NamedTuple):
    """What is to be done with rows that are transformed where they are.

    :param rows: reads them, with what makes columns of bodies where it needs that.
    :param decode: what bodies are decoded with before; None: they are
        JSON as they are.
    :param outputs: prepared.
    :param place: the folder of this machine where rows are written; there is none yet.
    :param there: where executors write them for an output in an
        object store. :param queue: the queue's folder.
    :param check_stopped: called every few seconds while a job runs; what it raises ends the job.
    :param limit: seconds that a row may take.
    :param careful: whether rows are likely to fail: then the job is not tried as it is before.
    :param progress: called with a line when it has failed so.
    :param hides: whether the queue hides values: of errors the type alone is shown.
    :param finds_outages: whether what a row fails with may be an outage: it is not charged here.
    :param checked: reads them, too, and makes a record of each file that cannot be read to its end (``Take.checked``); None: such a file fails a job.
    """

    rows: Callable[[SparkSession, Any], DataFrame]
    transformation: Transformation
    outputs: Sequence[Output]
    place: Path
    there: Place | None
    check_stopped: Callable[[], object]
    limit: float
    decode: Callable[[Any], Any] | None
    queue: Folder
    careful: bool
    progress: Callable[[str], object]
    hides: bool
    finds_outages: bool
    checked: Callable[[SparkSession, Any], DataFrame] | None


def check_transform(function: object) -> None:
    """Check a function as far as that needs no import.

    :raises HandlerNotFoundError: it is no ``module:function``, or cannot be called with a DataFrame alone.
    """
    if isinstance(function, HandlerRef):
        return
    if isinstance(function, str):
        try:
            check_given(function)
        except HandlerNotFoundError as error:
            raise HandlerNotFoundError(f"transform={function!r} is not of the form 'module:function', for example 'shop.arrivals:clean'.") from error
        return
    name = getattr(function, "__qualname__", type(function).__qualname__)
    kind = kind_of(function) if callable(function) else ""
    if not callable(function) or kind == "class":
        raise HandlerNotFoundError(f"transform={function!r} is {type(function).__name__}; name a function of a DataFrame that returns a DataFrame.")
    if kind:
        raise HandlerNotFoundError(f"transform={name} is a coroutine or a generator: called, it would not run. Write it as a function that returns.")
    if (wrong := wrong_call(function)) is not None:
        signature, why = wrong
        raise HandlerNotFoundError(
            f"transform={name}{signature} cannot be called with a DataFrame alone ({why}). Define it as 'def {name}(df)'; what else it needs it "
            "takes from module variables, from df.sparkSession or from columns."
        ) from why


def check_schema(schema: str) -> None:
    """Check the DDL of bodies. Raises SettingError for what is no DDL, and for columns that have a name of ours."""
    for name in column_names(schema):
        if name.lower() in {LOOKUP_ID, POISON_COLUMN}:
            raise SettingError("schema", schema, f"columns of other names than {LOOKUP_ID} and {POISON_COLUMN}; here is a column {name!r}")


def check_alone(*, batch: str | None = None, isolation: str = "process", unprocessable: Sequence[object] = ()) -> None:
    """Refuse settings of a handler for a transformation. Raises SettingError."""
    if batch is not None:
        raise SettingError(
            "batch", batch, "None with transform=...: a transformation is given a DataFrame of all messages, and schema=... its columns"
        )
    if isolation != "process":
        raise SettingError("isolation", isolation, "'process', which may be left out, with transform=...: it runs in Spark's own processes")
    if unprocessable:
        allowed = f"none with transform=...: say in its column {POISON_COLUMN} which message is poison; the policy decides how often it is tried"
        raise SettingError("unprocessable", list(unprocessable), allowed)


def check_policy(policy: Policy, transformation: Transformation, *, converses: bool = False) -> None:
    """Refuse a policy whose decisions depend on which message was delivered before which other one. Raises SettingError.

    A transformation gets thousands of messages at once: there is no order among their deliveries. What only halts at its first culprit is
    carried out exactly, for a transformation has no effects: those behind the culprit are left as they were.
    """
    if not policy.stateless:
        raise SettingError(
            "transform",
            policy.system,
            f"a policy whose decisions depend on one message alone. These settings of {policy.system} count over messages one after the other, or "
            "deliver several in one transaction; messages of a transformation are delivered together. Use a handler of one message for them",
        )
    if policy.halting and transformation.mixes_rows:
        raise SettingError(
            "mixes_rows",
            True,  # noqa: FBT003  (the value that is shown)
            f"a policy that does not halt at a message, or mixes_rows=False. With these settings of {policy.system} what is behind a culprit is not "
            "delivered, so the result would depend on it",
        )
    if converses:
        raise SettingError("transform", "a queue with services", "a queue without conversations: a transformation has no dialog. Use a handler")


FRAMES = {"arrow": "pyarrow", "pandas": "pandas", "polars": "polars"}
"""The kinds of frames, and the module that each needs."""
BATCH_SIZE, LARGEST_BATCH = 10_000, 1_000_000
BATCH_BYTES = 64 << 20
"""Bytes of messages in a batch, beside its number of messages; a message that is larger comes alone."""


@dataclass(frozen=True, slots=True)
class Batching:
    """What a handler of batches gets.

    :param kind: ``arrow`` (pyarrow.Table), ``pandas`` or ``polars`` (DataFrame).
    :param size: messages in a frame at most.
    :param schema: the columns of the bodies, JSON objects, as DDL; None: the columns of the messages.
    """

    kind: str
    size: int = BATCH_SIZE
    schema: str | None = None

    @classmethod
    def of(cls, batch: str | None, batch_size: int = BATCH_SIZE, schema: str | None = None) -> Batching | None:
        """Return what the parameters of a task declare; None: its handler gets one message at a time. Raises SettingError."""
        if batch is None:
            if schema is not None:
                raise SettingError(
                    "schema", schema, "None for a handler of single messages; the columns of the bodies as DDL with transform=... or batch=..."
                )
            return None
        if batch not in FRAMES:
            raise SettingError("batch", batch, "'arrow', 'pandas', 'polars', or None for one message at a time")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= LARGEST_BATCH:
            raise SettingError("batch_size", batch_size, f"a whole number of messages from 1 to {LARGEST_BATCH:,}")
        if schema is not None and LOOKUP_ID in column_names(schema):
            raise SettingError("schema", schema, f"columns of other names than {LOOKUP_ID!r}, which the frame has beside those of the bodies")
        return cls(batch, batch_size, schema)

    def check_policy(self, policy: Policy) -> None:
        """Raise SettingError for a policy whose transactions cannot be batches."""
        if (most := getattr(policy, "max_batch_size", 0)) > 1:
            raise SettingError("batch", self.kind, f"no batch while the policy batches by its own rules (max_batch_size={most}); set that to 0")
        if getattr(policy, "sessions", False):
            raise SettingError("batch", self.kind, "no batch while a message is a session of several items (sessions=True)")
        if not policy.stateless and policy.sweeps:
            raise SettingError("batch", self.kind, "no batch while a receive goes on behind the message that was taken last (spec WMQ-29)")
        if not policy.stateless and policy.server_sessions > 1:
            raise SettingError(
                "batch",
                self.kind,
                f"no batch while {policy.server_sessions} messages are processed at the same time in the order of the queue; set the policy's number "
                "of sessions or readers to 1",
            )

    def check_here(self) -> None:
        """Raise SettingError when the library of the frames is not installed here."""
        module = FRAMES[self.kind]
        if find_spec(module) is None:
            raise SettingError("batch", self.kind, f"a kind of frame whose library is installed; {module} is not: pip install {module}")


def refuse_dialogs(batching: Batching | None, queue: str) -> None:
    """Raise SettingError for batches of a queue that has conversations: each of its messages acts in its own."""
    if batching is not None:
        raise SettingError("batch", batching.kind, f"no batch for queue {queue!r}: it has conversations, in which each message acts by itself")


MANGLED_PREFIX = "unusual_prefix_"
"""How Airflow names the modules of DAG files; such a name can be imported in no other process."""
_registering = RLock()
"""Held while modules are registered with cloudpickle, whose register is the process's: passes may run on several threads."""
_PLAIN = (bool, int, str, dict, list)
"""What handlers return most, beside None: to look for an attribute that a type does not have takes most of a microsecond."""
_UNRUN = (GeneratorType, CoroutineType, AsyncGeneratorType)
_ASYNC = "Call asyncio.run(...) in a plain function"


@dataclass(frozen=True, slots=True)
class HandlerRef:
    """A checked handler, ready to travel.

    :param name: ``module:attribute`` when it is imported where it runs; else a name for people.
    :param by_value: the pickled handler when it travels by value.
    :param path: the import path it was found with; where it runs, missing entries are added behind the path there.
    """

    name: str
    by_value: bytes | None = None
    path: tuple[str, ...] = ()


def check_given(handler: object, *, returns_rows: bool = False) -> None:
    """Check a handler as far as that needs no import, for example where a DAG file names it. A name with a Jinja expression is checked when it runs.

    :raises HandlerNotFoundError: it is no ``module:function``, cannot be called with one message, or would not run when it is called.
    """
    if not isinstance(handler, str):
        _check_callable(handler, name_of(handler), returns_rows=returns_rows)
    elif "{{" not in handler and "{%" not in handler:
        _parts(handler)


def check_returned(returned: object) -> None:
    """Raise HandlerNotRunError for what a handler must not return: an awaitable or a generator, for what is in it has not run.

    A coroutine and a generator are closed, so that Python does not warn of them.
    """
    kind = type(returned)
    if kind in _PLAIN or (not issubclass(kind, _UNRUN) and not hasattr(kind, "__await__")):
        return
    name = getattr(returned, "__qualname__", kind.__qualname__)
    if isinstance(returned, (Generator, Coroutine)):
        with contextlib.suppress(Exception):  # of one that was begun; its message is rolled back in any case
            returned.close()
    if issubclass(kind, GeneratorType):
        what, instead = "a generator", "Go through it in the handler, or write the function without 'yield'"
    elif issubclass(kind, AsyncGeneratorType):
        what, instead = "an async generator", f"{_ASYNC}, with a coroutine that goes through it ('async for')"
    else:
        what, instead = "an awaitable", _ASYNC
    raise HandlerNotRunError(f"The handler returned {what} ({name}): what is in it has not run, so the message is rolled back. {instead}.")


def resolve_handler(handler: HandlerLike | HandlerRef, *, returns_rows: bool = False) -> HandlerRef:
    """Check a handler before anything is claimed, and make it ready to travel.

    :param handler: an importable name ``"shop.arrivals:land"`` or any callable that takes one message.
    :param returns_rows: what it returns lands in outputs, so it may be a generator function.
    :raises HandlerNotFoundError: it cannot be imported, is not callable with one message, or cannot travel.
    """
    if isinstance(handler, HandlerRef):
        return handler
    path = tuple(sys.path)
    if isinstance(handler, str):
        _check_callable(_import(handler), handler, returns_rows=returns_rows)
        return HandlerRef(handler, path=path)
    name = name_of(handler)
    _check_callable(handler, name, returns_rows=returns_rows)
    try:
        return _ready_to_travel(handler)
    except Exception as error:
        raise HandlerNotFoundError(
            f"The handler {name} cannot be carried to its server session: {type(error).__name__}: {error}. It is not importable by name, so "
            "everything it refers to must be picklable; put it into an importable module and name it as 'module:function'."
        ) from error


def _ready_to_travel(function: object) -> HandlerRef:
    """Return the reference of a function: by its name where that can be imported elsewhere, else by value. Raises what pickling raises."""
    name, path = name_of(function), tuple(sys.path)
    return HandlerRef(name, path=path) if is_importable(function, name) else HandlerRef(name, carry_by_value(function, function), path)


def check_deliver(deliver: object) -> None:
    """Check the function that takes returned rows. Raises SettingError for what cannot be called with rows and a key, or would not run then."""
    wanted = "a function of an Arrow table and a key, like 'def deliver(rows, key)'"
    if not callable(deliver):
        raise SettingError("deliver", deliver, f"{wanted}; give the function itself, not its name" if isinstance(deliver, str) else wanted)
    if kind := kind_of(deliver):
        instead = "give a function, or an object of it" if kind == "class" else "write it as a plain function"
        raise SettingError("deliver", name_of(deliver), f"{wanted}; this is a {kind}, and calling it would deliver nothing: {instead}")
    if (wrong := wrong_call(deliver, 2)) is not None:
        signature, why = wrong
        raise SettingError("deliver", f"{name_of(deliver)}{signature}", f"{wanted}; this cannot be called so ({why})") from why


def resolve_deliver(deliver: object) -> HandlerRef:
    """Make the function that takes returned rows ready to travel to a driver elsewhere. Raises SettingError."""
    check_deliver(deliver)
    try:
        return _ready_to_travel(deliver)
    except Exception as error:
        allowed = (
            f"a function that can be carried to the driver, and this cannot ({type(error).__name__}: {error}). It is not importable by name, so "
            "everything it refers to must be picklable; put it into an importable module, or open connections inside it"
        )
        raise SettingError("deliver", name_of(deliver), allowed) from error


def load_handler(ref: HandlerRef) -> Handler:
    """Return the handler itself, in the process that runs it. Raises HandlerNotFoundError."""
    extend_import_path(ref.path)
    if ref.by_value is None:
        return _import(ref.name)
    try:
        loaded: Handler = pickle.loads(ref.by_value)  # noqa: S301  (our own bytes)
    except Exception as error:
        raise HandlerNotFoundError(
            f"The handler {ref.name} came by value and cannot be unpacked here: {type(error).__name__}: {error}. "
            "A module that it imports is probably missing on this machine; install it there, or ship it with the job."
        ) from error
    return loaded


def extend_import_path(path: tuple[str, ...]) -> None:
    """Add the missing entries behind the present import path."""
    sys.path.extend(entry for entry in path if entry not in sys.path)


def carry_by_value(thing: object, *because_of: object) -> bytes:
    """Pickle something, by value as far as it lives in modules that no other process can import.

    :param because_of: objects whose modules are checked, beside the modules of DAG files that are always carried by value.
    """
    import cloudpickle

    with _registering, _by_value([*because_of, thing]):
        carried: bytes = cloudpickle.dumps(thing)
    return carried


@contextlib.contextmanager
def _by_value(things: list[object]) -> Iterator[None]:
    import cloudpickle

    names = {name for name in list(sys.modules) if name.startswith(MANGLED_PREFIX)}
    for thing in things:
        name = _module_of(thing)
        if name in sys.modules and name != "__main__" and not _module_is_importable(name):
            names.add(name)
    modules: list[ModuleType] = [sys.modules[name] for name in names]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _parts(name: str) -> tuple[str, str]:
    """Return the module and the attribute of a name."""
    module, _, attribute = name.partition(":")
    in_folders = any(mark in module for mark in "/\\")
    if in_folders or module.split() != [module] or not all(module.split(".")) or not all(part.isidentifier() for part in attribute.split(".")):
        raise HandlerNotFoundError(f"The handler {name!r} is not of the form 'module:function', for example 'shop.arrivals:land'.")
    return module, attribute


def _import(name: str) -> Handler:
    module_name, attribute = _parts(name)
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script that ends by itself would end the task, as a success even
        raise HandlerNotFoundError(
            f"The handler {name!r} cannot be found: importing the module {module_name!r} failed with {type(error).__name__}: {error}. "
            f"Tried along sys.path = {sys.path}. Install the module, or add its folder to PYTHONPATH, where the task and its workers run."
        ) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise HandlerNotFoundError(
                f"The handler {name!r} cannot be found: the module {module_name!r} ({getattr(found, '__file__', 'built in')}) was imported but "
                f"has no {attribute!r}. Correct the name, or define the function there."
            ) from error
    return found  # type: ignore[no-any-return]  # whatever the user named; checked by the caller


def _check_callable(handler: object, name: str, *, returns_rows: bool = False) -> None:
    if not callable(handler):
        raise HandlerNotFoundError(f"The handler {name!r} is {type(handler).__name__}, not something callable; name a function of one message.")
    match kind_of(handler):
        case "class":
            raise HandlerNotFoundError(f"The handler {name!r} is a class: calling it only makes an object. Give an instance of it, or a function.")
        case "coroutine function":
            raise HandlerNotFoundError(f"The handler {name!r} is a coroutine function: called, it would never run. {_ASYNC}.")
        case ("generator function" | "async generator function") as kind if kind.startswith("async") or not returns_rows:
            otherwise = "" if kind.startswith("async") else ", or declare output=... for the rows that it yields"
            raise HandlerNotFoundError(
                f"The handler {name!r} is a generator function: called, it would never run. Write it without 'yield'{otherwise}."
            )
    if (wrong := wrong_call(handler)) is not None:
        signature, error = wrong
        raise HandlerNotFoundError(
            f"The handler {name}{signature} cannot be called with a message alone ({error}). A handler runs far from the task, without its context "
            "or XComs: define it as 'def handler(message)' and take what else it needs from the message or from module variables."
        ) from error


def kind_of(function: Callable[..., object]) -> str:
    """Return what a function is whose call runs nothing of it: a class, or a coroutine, generator or async generator function; empty: a plain one."""
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    if isinstance(called, type):
        return "class"
    if not inspect.isroutine(called):
        called = type(called).__call__
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        return "coroutine function"
    if inspect.isasyncgenfunction(called):
        return "async generator function"
    return "generator function" if inspect.isgeneratorfunction(called) else ""


def wrong_call(function: Callable[..., object], arguments: int = 1) -> tuple[inspect.Signature, TypeError] | None:
    """Return how a function is declared, and why it cannot be called with so many arguments; None: it can, or it is not known."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # the outer function is what is called
    except (TypeError, ValueError):
        return None  # some built-ins have no signature
    try:
        signature.bind(*(object() for _ in range(arguments)))
    except TypeError as error:
        return signature, error
    return None


def _module_of(thing: object) -> str:
    while isinstance(thing, functools.partial):
        thing = thing.func
    name = getattr(thing, "__module__", None)
    return name if isinstance(name, str) else type(thing).__module__


def name_of(handler: object) -> str:
    """Return ``module:name`` of a function or another thing."""
    qualified = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return f"{_module_of(handler)}:{qualified}"


def _module_is_importable(name: str) -> bool:
    if name.startswith(MANGLED_PREFIX):
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    module = sys.modules.get(name)
    known_file = getattr(module, "__file__", None)
    return spec is not None and (known_file is None or spec.origin == known_file) and _would_be_found(name)


def _would_be_found(name: str) -> bool:
    """``find_spec`` believes ``sys.modules``; another process has only the import path."""
    top, *rest = name.split(".")
    spec = importlib.machinery.PathFinder.find_spec(top)
    if spec is None:
        return top in sys.builtin_module_names
    return not rest or spec.submodule_search_locations is not None


def is_importable(handler: object, name: str) -> bool:
    """Whether another process finds a handler by its name."""
    module_name, _, attribute = name.partition(":")
    if module_name == "__main__" or "<" in attribute or not _module_is_importable(module_name):
        return False
    found: object = sys.modules.get(module_name)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found is handler


def load_types(names: tuple[str | type[BaseException], ...]) -> tuple[type[BaseException], ...]:
    """Return exception types given as types or as ``module:Type``. Raises HandlerNotFoundError."""
    types: list[type[BaseException]] = []
    for name in names:
        found: object = name
        if isinstance(name, str):
            module, _, attribute = name.partition(":")
            try:
                found = getattr(importlib.import_module(module), attribute)
            except (Exception, SystemExit) as error:
                raise HandlerNotFoundError(
                    f"unprocessable={name!r} cannot be found ({type(error).__name__}: {error}); name an exception type as 'module:Type'."
                ) from error
        if not (isinstance(found, type) and issubclass(found, BaseException)):
            raise HandlerNotFoundError(f"unprocessable={name!r} is no exception type; name one as 'module:Type'.")
        types.append(found)
    return tuple(types)
