"""The function of a transformation: it is called, and what it returns is checked, before anything is claimed and for each unit.

What a failed Spark job says: whether Spark has gone, and what its messages are charged with.

What stands in the plan of a transformation: what it must not do with the rows of a claim, and whose code works on them.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_poison.delivery.handlers import MANGLED_PREFIX, POISON_COLUMN
from airflow_poison.delivery.verdicts import MAX_TEXT, MAX_TRACE, cut, cut_front
from airflow_poison.outputs.output import ONLY
from airflow_poison.outputs.row_files import OWN
from airflow_poison.spark import session
from airflow_poison.spark.jobs import is_connect, why
from airflow_poison.spark.messages import arrow_schema, check_bodies, given_schema, planning
from airflow_poison.values.errors import TransformError
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.schema import LOOKUP_ID
from airflow_poison.values.texts import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.delivery.handlers import Frames, Transformation
    from airflow_poison.outputs.output import Output

_NODE = re.compile(r"^((?:[:|] {2}| {3})*)(?:[+:]- )?([A-Za-z]\w*)(.*)$")
_MIXING = (
    "Aggregate",
    "Window",
    "Distinct",
    "Deduplicate",
    "GlobalLimit",
    "LocalLimit",
    "Offset",
    "Tail",
    "Intersect",
    "Except",
    "FlatMapGroups",
    "FlatMapCoGroups",
    "CoGroup",
    "MapGroups",
    "AppendColumns",
)
"""How operators are called in Spark's plans whose result for a row depends on other rows."""

BODIES_PARSER = "poison_columns_of_bodies"
"""How plans call the function of ours that makes columns of bodies."""


_CTE = re.compile(r"^ (\d+)\b")


class _Node(NamedTuple):
    """A node of a plan as Spark writes it.

    :param name: of its operator; ``rest``: what stands behind it.
    :param parent: its place among the nodes; None: of the root.
    :param side: which child of its parent it is, from 0; None: it is of a subquery in an expression.
    """

    depth: int
    name: str
    rest: str
    parent: int | None
    side: int | None


def _nodes(plan: str) -> list[_Node]:
    nodes = list[_Node]()
    for line in plan.splitlines():
        found = _NODE.match(line)
        if found is None or (nodes and line[:1] not in ":+| "):
            continue
        beginning = line[: len(found[1]) + 3]
        depth = len(found[1]) // 3 + ("+- " in beginning or ":- " in beginning)
        parent = next((place for place in reversed(range(len(nodes))) if nodes[place].depth < depth), None)
        is_child = parent is not None and nodes[parent].depth == depth - 1  # the plan of a subquery stands one step further to the right
        side = sum(each.parent == parent and each.side is not None for each in nodes) if is_child else None
        nodes.append(_Node(depth, found[2], found[3], parent, side))
    return nodes


def _joins_all(kind: str, sides: Collection[int | None]) -> bool:
    """Whether rows of a join depend on all rows of the sides that are of the claim."""
    return kind == "FullOuter" or (kind == "RightOuter" and 0 in sides) or (kind not in {"Inner", "Cross", "RightOuter"} and 1 in sides)


def mixing_operator(plan: str, alias: str) -> str | None:
    """Return which operator of an analyzed plan mixes rows of the claim; None: none does; empty: the claim is not in the plan.

    A join mixes them when both its sides come from the claim, and when it asks for a row of another table whether any row of the claim is like it; so
    does a subquery over the claim.
    """
    nodes, defined = _nodes(plan), set[str | None]()
    while True:  # once more where a common table expression of the claim is found
        sides: list[set[int | None]] = [set() for _ in nodes]
        within = [
            node.rest.strip() == alias if node.name == "SubqueryAlias" else node.name == "CTERelationRef" and _number(node) in defined
            for node in nodes
        ]
        for place in reversed(range(len(nodes))):
            if within[place] and (parent := nodes[place].parent) is not None:
                within[parent] = True
                sides[parent].add(nodes[place].side)
        found = {_number(node) for node, is_within in zip(nodes, within, strict=True) if is_within and node.name == "CTERelationDef"}
        if found == defined:
            break
        defined = found
    if not any(within):
        return ""
    for node, is_within, of in zip(nodes, within, sides, strict=True):
        kind = node.rest.strip().partition(",")[0].partition("(")[0].strip()
        if is_within and "Join" in node.name and (_joins_all(kind, of) or len(of) > 1):
            return f"a join ({kind})"
        if is_within and None in of:
            return "a subquery"
        if is_within and (node.name.startswith(_MIXING) or (len(of) > 1 and node.name not in {"Union", "WithCTE"})):
            return node.name
    return None


def _number(node: _Node) -> str | None:
    found = _CTE.match(node.rest)
    return None if found is None else found[1]


def analyzed_plan(frame: DataFrame) -> str:
    """Return the analyzed plan of a DataFrame as Spark writes it."""
    if not is_connect(frame.sparkSession):
        return _whole(frame, frame._jdf.queryExecution().analyzed())  # noqa: SLF001  (there is no public way)
    return _explained(frame, "Analyzed").partition("\n")[2]


def optimized_plan(frame: DataFrame) -> str:
    """Return the optimized plan of a DataFrame as Spark writes it."""
    if not is_connect(frame.sparkSession):
        return _whole(frame, frame._jdf.queryExecution().optimizedPlan())  # noqa: SLF001  (there is no public way)
    return _explained(frame, "Optimized")


_WHOLE = {"spark.sql.maxPlanStringLength": "2147483632", "spark.sql.debug.maxToStringFields": "2147483647"}
"""Without these Spark writes 25 columns of a plan, and fewer where a session limits the text."""


def _whole(frame: DataFrame, plan: Any) -> str:
    """Return all of a plan of the JVM as text."""
    with planning(frame.sparkSession, _WHOLE):
        return str(plan.toString())


def _explained(frame: DataFrame, which: str) -> str:
    with planning(frame.sparkSession, _WHOLE):
        text: str = frame._explain_string(mode="extended")  # type: ignore[operator]  # noqa: SLF001  (explain() prints it)
    return text.partition(f"== {which} Logical Plan ==")[2].partition("\n== ")[0].strip()


_VARIANT = re.compile(r'"(?:type|elementType|keyType|valueType)":"variant"')
_SHUFFLES = re.compile(r"(?<!Broadcast)Exchange |ShuffleQueryStage")
_OF_PLACE = re.compile(r"input_file_|SPARK_PARTITION_ID|monotonically_increasing_id")


def depends_on_place(plan: str) -> bool:
    """Whether rows of an optimized plan depend on the file or the partition that they are in: in another one good messages may fail."""
    return _OF_PLACE.search(plan) is not None


def partitioned(frame: DataFrame) -> Any | None:
    """Return the rows of a DataFrame, as batches of Arrow, as the RDD that its plan makes, planned once; None where it shuffles them.

    What the plan broadcasts is made now. Of a classic session.
    """
    plan = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001  (there is no public way)
    return None if _SHUFFLES.search(_whole(frame, plan)) else frame._jdf.toArrowBatchRdd().toJavaRDD()  # noqa: SLF001


def has_python(plan: str) -> bool:
    """Whether the JVM hands rows of an optimized plan to Python of the transformation: many at once, so that the current row is not known."""
    return any(
        word in line
        for line in plan.splitlines()
        if f"MapInArrow {BODIES_PARSER}(" not in line
        for word in ("Python", "Pandas", "ArrowEval", "InArrow")
    )


@dataclass(frozen=True, slots=True)
class Result:
    """What a transformation made of a DataFrame.

    :param frames: by name.
    :param verdict: whether a frame says which messages are poison.
    """

    frames: Mapping[str, DataFrame]
    verdict: bool


_calling = threading.Lock()
"""Held while a transformation is called: it may make a temporary view, whose name another call would take."""


def check(spark: SparkSession, transformation: Transformation, outputs: Sequence[Output]) -> None:
    """Call a transformation with no rows; look at its plan and at what its outputs take.

    Raises TransformError for what cannot be delivered to it, or cannot land.
    """
    function = transformation.load()
    _let_travel(function)
    if transformation.schema is not None:
        check_bodies(spark)
    empty = spark.createDataFrame([], given_schema(transformation.schema))
    try:
        result = called(function, empty, transformation)
    except TransformError:
        raise
    except Exception as error:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in empty.schema.fields)
        raise TransformError(
            f"transform={transformation.name} raised {type(error).__name__} when it was called with an empty DataFrame: {first_line(error)}\n"
            f"Its columns are: {columns}. Nothing was claimed. The function is called in the driver; it has to return a DataFrame made of this one."
        ) from error
    check_result(result, outputs, transformation.name)


def called(function: Callable[[DataFrame], Frames], given: DataFrame, transformation: Transformation) -> Result:
    """Call a function with a DataFrame of messages, and look at what it returns and at its plan. Raises TransformError, and what it raises."""
    alias = f"poison_claim_{token_hex(4)}"
    with _calling:
        result = _result(function(given.alias(alias)), transformation.name)
    _check_plan(result, alias, transformation)
    return result


def check_result(result: Result, outputs: Sequence[Output], name: str) -> None:
    """Raise TransformError where a result has no output, or has columns that do not fit it."""
    by_name = {output.name: output for output in outputs}
    for key, frame in result.frames.items() if outputs else ():
        output = by_name.get(key)
        if output is None:
            of = "a DataFrame without a name" if key == ONLY else f"a DataFrame as {key!r}"
            raise TransformError(
                f"transform={name} returned {of}, which is no output; there are {', '.join(map(repr, by_name))}. Declare it, or rename it."
            )
        if (ours := next((each for each in frame.columns if each.lower() in OWN - {POISON_COLUMN}), None)) is not None:
            raise TransformError(f"transform={name} returned a column {ours!r}, a name of this package's own, which does not land. Rename it.")
        if (variant := next((each.name for each in frame.schema.fields if _VARIANT.search(each.json())), None)) is not None:
            raise TransformError(
                f"transform={name} returned the column {variant!r} with a variant, of which no other program reads what Spark writes here. Make text "
                f"of it: to_json({variant})."
            )
        if output.provenance and column_named(frame, LOOKUP_ID) is None:
            raise TransformError(f"transform={name} returned no column {LOOKUP_ID}, from which provenance=True is filled. Keep it; it does not land.")
        output.check_columns([field for field in arrow_schema(frame) if field.name.lower() not in {LOOKUP_ID, POISON_COLUMN}], f"transform={name}")


def _let_travel(function: object) -> None:
    """Let Spark carry Python functions by value that live in a DAG file or a script: no worker can import these."""
    from pyspark import cloudpickle

    names = {name for name in list(sys.modules) if name.startswith(MANGLED_PREFIX)}
    module = getattr(function, "__module__", None)
    if isinstance(module, str) and module.startswith(MANGLED_PREFIX):
        names.add(module)
    for name in names & sys.modules.keys():
        cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]


def _result(returned: object, name: str) -> Result:
    """Return what a transformation returned. Raises TransformError for what it must not."""
    from pyspark.sql import DataFrame

    frames: Mapping[Any, Any] = returned if isinstance(returned, Mapping) else {ONLY: returned}
    for key, frame in frames.items():
        if not isinstance(frame, DataFrame):
            kind = type(frame).__name__
            what = f"a mapping with {kind} as {key!r}" if isinstance(returned, Mapping) else kind
            raise TransformError(
                f"transform={name} returned {what}; expected a DataFrame, or a mapping of names to DataFrames. "
                "Return the DataFrame itself: without .write, .collect() or .show() behind it."
            )
        if not (isinstance(key, str) and key.isidentifier()):
            raise TransformError(f"transform={name} returned a mapping with the name {key!r}; expected names like 'landed'.")
    if not frames:
        raise TransformError(f"transform={name} returned an empty mapping; expected at least one DataFrame.")
    columns = {key: {column.lower() for column in frame.columns} for key, frame in frames.items()}
    verdict = any(POISON_COLUMN in names for names in columns.values())
    lacking = [key for key, names in columns.items() if LOOKUP_ID not in names]
    if verdict and lacking:
        of = f" in {lacking[0]!r}" if isinstance(returned, Mapping) else ""
        raise TransformError(
            f"transform={name} returned the column {POISON_COLUMN} without {LOOKUP_ID}{of}: a row would not say which message it is of. "
            f"Keep the column {LOOKUP_ID}, for example df.select({LOOKUP_ID!r}, {POISON_COLUMN!r}, ...); it does not land."
        )
    for frame in frames.values() if verdict else ():
        kind = next((kind for column, kind in frame.dtypes if column.lower() == POISON_COLUMN), "")
        if kind.startswith(_FLAGS):
            raise TransformError(
                f"transform={name} returned {POISON_COLUMN} as {kind}; expected is a text that says why a row is bad, and null for each good one: "
                f"false or 0 would name a good row. For example: f.when(<bad>, 'no amount').alias({POISON_COLUMN!r})."
            )
    return Result(frames, verdict)


_FLAGS = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def _check_plan(result: Result, alias: str, transformation: Transformation) -> None:
    """Raise TransformError for a plan that mixes rows, unless that is declared, and for one that was not made of the claim."""
    for key, frame in result.frames.items():
        of = "" if key == ONLY else f" in {key!r}"
        mixing = mixing_operator(analyzed_plan(frame), alias)
        if mixing == "":
            if transformation.mixes_rows:
                continue
            raise TransformError(
                f"transform={transformation.name} returned a DataFrame{of} that is not made of the one it was given: it collects rows in the driver, "
                "or keeps a DataFrame of an earlier call. Build it from the parameter with DataFrame functions alone; where rows must be collected, "
                "declare mixes_rows=True: the claim is then transformed as one unit, all or nothing."
            )
        if mixing is not None and not transformation.mixes_rows:
            raise TransformError(
                f"transform={transformation.name} mixes rows{of}: its plan has {mixing} over the messages, so what becomes of one depends on others. "
                "A claim is transformed in chunks, and again without its poison messages, which would change the result. Let each row depend on its "
                "own message and on other tables, or declare mixes_rows=True: the claim is then transformed as one unit, all or nothing."
            )


def column_named(frame: DataFrame, wanted: str) -> str | None:
    """Return how a frame writes a column's name; None: it has none."""
    return next((name for name in frame.columns if name.lower() == wanted), None)


_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] (.*?)(?=\n\s*at |\nCaused by:|\Z)", re.DOTALL)


_SAID = re.compile(r"(.*?) SQLSTATE: \w{5}(?=\Z|\n== |\n\s*\n)(.*)", re.DOTALL)
"""The words of a condition, which have the value that is wrong, with its line ends; and where it is in the plan."""
_WRAPPERS = frozenset({"TASK_WRITE_FAILED"})


_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?:\n\s*\n|\n\s+at |\Z)", re.DOTALL)


_CHAINED = re.compile(
    r"\s*(?:During handling of the above exception, another|The above exception was the direct cause of the following) exception[^:]*:\s*"
)
"""Stands between two errors, of which the second one was raised while the first one was handled."""


_DIED = re.compile(r"(Python worker exited unexpectedly[^\n.]*|ExecutorLostFailure[^\n]*|Python worker failed to connect back[^\n]*)")


_TASK = re.compile(r"Task (\d+) in stage \S+ failed")


def lost(error: Exception) -> bool:
    """Whether an error says that Spark is not there any more."""
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return True
    if "SparkContext was shut down" in str(error) or "stopped SparkContext" in str(error):
        return True
    return session.is_of_connect(error) and ("has ended" in session.why(error) or "cannot be reached" in session.why(error))


_LOUD = (
    "util.Utils",
    "executor.Executor",
    "scheduler.TaskSetManager",
    "storage.ShuffleBlockFetcherIterator",
    "sql.execution.datasources.FileFormatWriter",
    "sql.execution.datasources.v2.DataWritingSparkTask",
    "sql.execution.datasources.v2.OverwriteByExpressionExec",
)
"""Loggers of Spark that write a failed task with all stacks, each again."""


_QUERY_LOGS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers of PySpark that do so, by release."""


_silence, _silenced = threading.Lock(), list[ExitStack]()


@contextmanager
def expected(spark: SparkSession) -> Iterator[None]:
    """Keep Spark from writing failures of tasks into the log while the block runs: most are looked for, and each is logged once.

    Blocks may run side by side; the last one that ends lets Spark write again.
    """
    with _silence:
        if not _silenced:
            (begun := ExitStack()).enter_context(_all_silent(spark))
        else:
            begun = _silenced[0]
        _silenced.append(begun)
    try:
        yield
    finally:
        with _silence:
            _silenced.pop()
            if not _silenced:
                begun.close()


@contextmanager
def _all_silent(spark: SparkSession) -> Iterator[None]:
    from pyspark.logger import PySparkLogger

    python = [PySparkLogger.getLogger(name) for name in _QUERY_LOGS]  # of their own class: the first caller decides which
    before = [log.disabled for log in python]
    for log in python:
        log.disabled = True
    try:
        with nullcontext() if is_connect(spark) else _silent(spark.sparkContext._jvm.org.apache.logging.log4j):  # type: ignore[union-attr]  # noqa: SLF001  (there is no public way)
            yield
    finally:
        for log, disabled in zip(python, before, strict=True):
            log.disabled = disabled


_asking = threading.local()


@contextmanager
def unconverted() -> Iterator[None]:
    """Have errors of the JVM raised as Py4J raises them while the block runs in this thread: PySpark asks the JVM 80 times about each.

    A search sees many of them, and reads their text alone.
    """
    from pyspark.errors.exceptions import captured

    if not hasattr(captured.convert_exception, "of_poison"):
        converted = captured.convert_exception

        def convert_exception(e: Any) -> captured.CapturedException:
            unknown = captured.UnknownException  # PySpark raises the error itself for it
            return unknown.__new__(unknown) if getattr(_asking, "as_they_are", False) else converted(e)

        convert_exception.of_poison = True  # type: ignore[attr-defined]
        captured.convert_exception = convert_exception
    _asking.as_they_are = True
    try:
        yield
    finally:
        _asking.as_they_are = False


@contextmanager
def _silent(log4j: Any) -> Iterator[None]:
    """Switch loggers of the driver's JVM off while the block runs."""
    levels = {name: log4j.LogManager.getLogger(name).getLevel() for name in (f"org.apache.spark.{each}" for each in _LOUD)}
    set_level = log4j.core.config.Configurator.setLevel
    for name in levels:
        set_level(name, log4j.Level.OFF)
    try:
        yield
    finally:
        with suppress(Exception):  # the JVM may be gone; what ended the block says so
            for name, level in levels.items():
                set_level(name, level)


def failure_of_job(error: Exception) -> Failure:
    """Return what a failed job's messages are charged with: a Python function's exception, Spark's error class with its words, or a death."""
    text = str(error)
    if _PYTHON.search(text) is not None:
        return failure_of_python(text)
    died = _DIED.search(text)
    if died is not None:
        return Failure(FailureKind.CRASH, "crashed", cut(died[1], MAX_TEXT))
    for condition, words in _CONDITION.findall(text):
        if condition not in _WRAPPERS:
            whole = _SAID.fullmatch(words.strip())
            message, context = words.strip().partition("\n")[::2] if whole is None else whole.groups()
            message = re.sub(r" SQLSTATE: \w+$", "", message)
            return Failure(FailureKind.EXCEPTION, condition, cut(message, MAX_TEXT), cut_front(context.strip(), MAX_TRACE))
    return Failure(FailureKind.EXCEPTION, type(error).__name__, cut(why(error), MAX_TEXT))


_OF_ROW = re.compile(r"SQLSTATE: (?:2[1-3]|P0)")
"""Classes of Spark's errors that are of values: cardinality, data, constraints, and what SQL raises itself."""


def is_of_row(error: Exception) -> bool:
    """Whether a job's error is of a value, or of a Python function, and not of a machine, a file or a network."""
    text = str(error)
    return _DIED.search(text) is None and (_PYTHON.search(text) is not None or _OF_ROW.search(text) is not None)


def failure_of_python(text: str) -> Failure:
    """Return the failure that a traceback of Python in some text says: of errors in a chain, the one that was raised last."""
    python = _PYTHON.search(text)
    while python is not None and (behind := _CHAINED.match(text, python.end())) is not None:
        python = _PYTHON.match(text, behind.end())
    lines = (text if python is None else python[1]).rstrip().splitlines()
    last = next((place for place in reversed(range(len(lines))) if not lines[place].startswith(" ")), len(lines) - 1)
    while last > 0 and not lines[last - 1].startswith(" "):
        last -= 1
    kind, _, words = "\n".join(lines[last:]).partition(": ")
    trace = "\n".join(lines[:last])
    return Failure(FailureKind.EXCEPTION, cut(kind, 500), cut(words, MAX_TEXT), cut_front(f"{trace}\n", MAX_TRACE))


def failed_task(error: Exception) -> int | None:
    """Return the number of the task that failed a job; None where the error does not say it. PySpark hides it behind an error of a function."""
    found = _TASK.search(f"{error}\n{error.__context__}")
    return None if found is None else int(found[1])
