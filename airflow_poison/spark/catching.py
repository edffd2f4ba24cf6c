"""Plans in which an error that a row raises is a null, so that one job finds all rows that raise, and loses nothing of the others.

Spark's ``TryEval`` catches what the expressions below it raise. The columns of a transformation, level by level from the messages up, are evaluated
so. Where one is null, a struct of it is tried, too: a row with a null in place of such a struct has raised. Columns that cannot be made twice are put
into one struct at once. The lookup id goes along where the transformation drops it.
"""

from __future__ import annotations

from functools import reduce
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_poison.delivery.handlers import POISON_COLUMN
from airflow_poison.values.schema import LOOKUP_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame

RAISED = "poison: a column of this row raises an error"
"""In ``_poison``: of a row that has raised."""
PLACE = "poison_place"
"""The column that says which row of which partition a row was when Python functions were given it: the partition's number in the upper 31 bits."""
PLACE_BITS = 33
ROW, NUMBER, FAILED = "_poison_row", "_poison_id", "_poison_failed"
"""Columns of rows that are transformed in place: a struct with the given row, its lookup id and its verdict, of a row that fails, or for which a
Python function returns null; the lookup id alone, where a row that does not fail needs it; and whether it fails."""
_PARENTS = frozenset({"Project", "Filter", "SubqueryAlias"})


class _NotCaughtError(Exception):
    """A plan in which rows are not known to be of one message, or of which Spark does not say what it is."""


class _Level(NamedTuple):
    """A part of a plan: its rows have the columns that it had, the lookup id, and whether they have raised.

    :param raised: an attribute; None: nothing can have raised.
    """

    plan: Any
    raised: Any | None


def caught(frame: DataFrame, given: DataFrame, *, in_place: bool = False, instead: DataFrame | None = None, catches: bool = True) -> DataFrame | None:
    """Return the rows of a DataFrame: without those that raise, for each of which there is one with ``RAISED`` in ``_poison``.

    ``lookup_id`` and ``_poison`` are its last columns, whether it had them or not, and ``PLACE`` the first one where it has Python functions, whose
    errors are not caught here. None where that cannot be had of its plan.

    :param given: from which it was made. Of a classic session.
    :param in_place: the last columns are ``ROW`` and ``FAILED``, and ``NUMBER`` before them where a given row may make several rows, or has Python
        functions. Also of a plan in which nothing can raise.
    :param instead: is read in place of ``given``: it has the same columns, without what counts its rows.
    :param catches: whether errors are caught; else the first one fails the job, which is faster.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    try:
        plan = _Catching(given, in_place=in_place, instead=instead, catches=catches).all_of(_analyzed(frame))
        session: Any = frame.sparkSession
        rows = _jvm(frame).org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)  # noqa: SLF001  (there is no public way)
    except (_NotCaughtError, Py4JError, PySparkException, TypeError):  # a release whose plans are made otherwise
        return None
    return ClassicDataFrame(rows, session)


def _jvm(frame: DataFrame) -> Any:
    return frame.sparkSession.sparkContext._jvm  # noqa: SLF001  (there is no public way)


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001  (there is no public way)


def is_chain(frame: DataFrame, given: DataFrame) -> bool:
    """Whether each row of a DataFrame is made of one row of ``given`` alone, and each of these makes one at most: then Spark reads all of them."""
    return _Catching(given).is_chain(_analyzed(frame))


def is_projection(frame: DataFrame, given: DataFrame) -> bool:
    """Whether each row of ``given`` makes one row of a DataFrame, which is made of it alone."""
    return _Catching(given).is_chain(_analyzed(frame), _PARENTS - {"Filter"})


def reading(frame: DataFrame, given: DataFrame, other: DataFrame) -> DataFrame | None:
    """Return a DataFrame that reads another one in place of ``given``, whose columns that one has. None where that cannot be had of its plan."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    session: Any = frame.sparkSession
    try:
        plan = _Catching(given, instead=other).reading(_analyzed(frame))
        rows = _jvm(frame).org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)  # noqa: SLF001  (there is no public way)
    except (Py4JError, PySparkException, TypeError):  # a release whose plans are made otherwise
        return None
    return ClassicDataFrame(rows, session)


class _Catching:
    """Rewrites the plan of a transformation.

    :param given: the messages. The others: see ``caught``.
    """

    def __init__(self, given: DataFrame, *, in_place: bool = False, instead: DataFrame | None = None, catches: bool = True) -> None:
        self._jvm = _jvm(given)
        catalyst = self._jvm.org.apache.spark.sql.catalyst
        self._of, self._logical = catalyst.expressions, catalyst.plans.logical
        self._literal, self._nothing = getattr(self._of, "Literal$").__getattr__("MODULE$"), self._jvm.scala.Option.empty()
        self._given = _analyzed(given)
        self._read = self._given if instead is None else _analyzed(instead)
        self._id = next(each for each in self._listed(self._given.output()) if each.name() == LOOKUP_ID)
        self._always = self._of.GreaterThanOrEqual(self._id, self._of.UnaryMinus(self._id, True))  # noqa: FBT003  (Spark's signature)
        patterns = self._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._python, self._subquery = patterns.PYTHON_UDF(), patterns.PLAN_EXPRESSION()
        self._place: Any | None = None
        self._row = self._listed(self._given.output()) if in_place else []
        self._null: Any | None = None
        self._catches = catches

    def all_of(self, plan: Any) -> Any:
        """Return the rows of a plan as ``caught`` has them."""
        level = self._level(plan)
        chain = self.is_chain(plan)
        if (level.raised is None and not self._row) or (self._place is not None and not chain):
            raise _NotCaughtError  # nothing is computed; or functions of other tables may raise, whose errors are caught as well
        raised = level.raised or self._named(self._no(), "poison_raised")
        there = {each.name(): each for each in self._listed(plan.output())}
        if there.keys() & {PLACE, ROW, NUMBER, FAILED}:
            raise _NotCaughtError
        verdict_column = there.pop(POISON_COLUMN, None) or self._text(None)
        number = there.pop(LOOKUP_ID, None)
        verdict = self._of.If(raised, self._text(RAISED), verdict_column)
        places = [self._named(each, PLACE) for each in self._places()]
        if not self._row:
            known = self._id if number is None else self._of.If(raised, self._id, number)
            return self._logical.Project(
                self._seq([*places, *there.values(), self._named(known, LOOKUP_ID), self._named(verdict, POISON_COLUMN)]), level.plan
            )
        if level.raised is None:
            level = level._replace(plan=self._logical.Project(self._seq([*self._listed(level.plan.output()), raised]), level.plan))
            verdict = self._of.If(raised.toAttribute(), self._text(RAISED), verdict_column)
        fails = self._of.IsNotNull(verdict)
        kept = fails if self._null is None else self._of.Or(fails, self._null)
        row = self._fields((each.name(), each) for each in self._row)
        ours = self._when(kept, self._fields((("row", row), ("id", self._id), ("said", verdict))))  # one null costs less than many
        numbers = [] if chain and self._place is None else [self._named(self._id, NUMBER)]
        return self._logical.Project(self._seq([*places, *there.values(), *numbers, self._named(ours, ROW), self._named(fails, FAILED)]), level.plan)

    def reading(self, plan: Any) -> Any:
        """Return a plan that reads ``instead`` in place of ``given``."""
        if plan.fastEquals(self._given):
            return self._read
        return plan.withNewChildren(self._seq([self.reading(each) for each in self._listed(plan.children())]))

    def _level(self, plan: Any) -> _Level:
        if plan.fastEquals(self._given):
            return _Level(self._read, None)
        name = plan.nodeName()
        if name not in _PARENTS:
            plan = self._widened(plan)
            if all(plan.outputSet().contains(each) for each in (self._id, *self._row)):
                return _Level(plan, None)
            raise _NotCaughtError
        below = self._level(plan.child())
        if name == "SubqueryAlias":  # names are resolved
            return below
        if not self._catches:
            return _Level(self._uncaught(plan, below.plan), None)
        if self._place is None and any(each.containsPattern(self._python) for each in self._listed(plan.expressions())):
            below = self._placed(below)
        return self._filtered(plan, below) if name == "Filter" else self._projected(plan, below)

    def _uncaught(self, plan: Any, below: Any) -> Any:
        """Return a Filter or a Project of other rows, with what goes along."""
        if plan.nodeName() == "Filter":
            return self._logical.Filter(plan.condition(), below)
        return self._logical.Project(self._seq(self._unique([*self._listed(plan.projectList()), *self._carried()])), below)

    def _widened(self, plan: Any) -> Any:
        """Return a plan whose projections keep what goes along."""
        if plan.fastEquals(self._given):
            return self._read
        before = self._listed(plan.children())
        below = [self._widened(each) for each in before]
        wide = plan if all(map(is_, below, before)) else plan.withNewChildren(self._seq(below))
        if plan.nodeName() != "Project":
            return wide
        there, out = wide.child().outputSet(), plan.outputSet()
        missing = [each for each in (self._id, *self._row) if there.contains(each) and not out.contains(each)]
        return self._logical.Project(self._seq([*self._listed(plan.projectList()), *missing]), wide.child()) if missing else wide

    def _placed(self, below: _Level) -> _Level:
        """Return the rows that Python functions are given with their places."""
        place = self._named(self._of.MonotonicallyIncreasingID(), PLACE)
        self._place = place.toAttribute()
        return below._replace(plan=self._logical.Project(self._seq([*self._listed(below.plan.output()), place]), below.plan))

    def is_chain(self, plan: Any, parts: frozenset[str] = _PARENTS) -> bool:
        """Whether there is nothing but such parts below, nor another table in the plan's expressions."""
        while not plan.fastEquals(self._given):
            if plan.nodeName() not in parts or self._listed(plan.subqueries()):
                return False
            plan = plan.child()
        return True

    def _projected(self, plan: Any, below: _Level) -> _Level:
        columns = self._listed(plan.projectList())
        kept = [each for each in columns if self._is_attribute(each)]
        made = [each for each in columns if not self._is_attribute(each)]
        nulls = self._nulls(made)
        carried = self._carried(below)
        if not made:
            return _Level(self._logical.Project(self._seq(self._unique([*columns, *carried])), below.plan), below.raised)
        once = [each for each in made if not self._may_be_repeated(each)]
        numbers = {self._number(each) for each in once}
        again = [each for each in made if self._number(each) not in numbers]
        tried = [self._named(self._tried(self._struct([each.child() for each in once])), "poison_tried")] if once else []
        alone = [self._as(each, self._tried(each.child())) for each in again]
        needed = [found for each in again for found in self._listed(each.references().toSeq())]
        level = self._logical.Project(self._seq([*tried, *alone, *nulls, *self._unique([*kept, *carried, *needed])]), below.plan)
        self._null = nulls[0].toAttribute() if nulls else self._null
        raises = [self._of.IsNull(each.toAttribute()) for each in tried]
        for each, made_alone in zip(again, alone, strict=True):
            raises.append(self._of.And(self._of.IsNull(made_alone.toAttribute()), self._of.IsNull(self._tried(self._struct([each.child()])))))
        there = {self._number(each): self._as(each, self._field(tried[0].toAttribute(), place)) for place, each in enumerate(once)}
        there |= {self._number(each): made_alone.toAttribute() for each, made_alone in zip(again, alone, strict=True)}
        seen = [each if self._is_attribute(each) else there[self._number(each)] for each in columns]
        return self._noting(level, self._unique([*seen, *self._carried()]), reduce(self._of.Or, raises), below.raised)

    @staticmethod
    def _number(column: Any) -> int:
        return int(column.exprId().id())

    def _may_be_repeated(self, column: Any) -> bool:
        """Whether to make a value once more says the same, and costs little."""
        return bool(column.deterministic()) and not any(column.containsPattern(each) for each in (self._python, self._subquery))

    def _filtered(self, plan: Any, below: _Level) -> _Level:
        tried = self._named(self._tried(self._struct([plan.condition()])), "poison_tried")
        columns = self._unique([*self._listed(plan.output()), *self._carried()])
        carried = [] if below.raised is None else [below.raised]
        level, row = self._logical.Project(self._seq([tried, *columns, *carried]), below.plan), tried.toAttribute()
        stays = self._of.Or(self._of.IsNull(row), self._field(row, 0))
        level = self._logical.Filter(stays if below.raised is None else self._of.Or(below.raised, stays), level)
        return self._noting(level, columns, self._of.IsNull(row), below.raised)

    def _carried(self, below: _Level | None = None) -> list[Any]:
        """Return what goes along."""
        raised = [] if below is None or below.raised is None else [below.raised]
        return [self._id, *self._places(), *self._row, *([] if self._null is None else [self._null]), *raised]

    def _nulls(self, columns: Sequence[Any]) -> list[Any]:
        """Return a column that is true where a Python function in other columns returns null, in place alone."""
        functions = [found for each in columns for found in self._functions(each)] if self._row and self._place is not None else []
        found = self._null
        for each in functions:
            is_null = self._of.IsNull(each)
            found = is_null if found is None else self._of.Or(found, is_null)
        return [self._named(found, "poison_null")] if functions else []

    def _functions(self, expression: Any) -> list[Any]:
        if expression.getClass().getSimpleName() == "PythonUDF":
            return [expression]
        return [found for each in self._listed(expression.children()) for found in self._functions(each)]

    def _places(self) -> list[Any]:
        return [] if self._place is None else [self._place]

    def _noting(self, plan: Any, columns: Sequence[Any], raises: Any, before: Any | None) -> _Level:
        """Return a level with these columns that says whether a row has raised, here or before."""
        raised = self._named(raises if before is None else self._of.Or(before, raises), "poison_raised")
        return _Level(self._logical.Project(self._seq([*columns, raised]), plan), raised.toAttribute())

    def _tried(self, expression: Any) -> Any:
        """Return an expression that is null where this one raises.

        It stands in a branch, from which Spark takes no common parts to evaluate them before, where nothing catches what they raise.
        """
        return self._when(self._always, self._of.TryEval(expression))

    def _struct(self, expressions: Sequence[Any]) -> Any:
        """Return a struct of expressions, which is null for no row."""
        return self._fields((f"c{place}", each) for place, each in enumerate(expressions))

    def _fields(self, named: Iterable[tuple[str, Any]]) -> Any:
        return self._of.CreateNamedStruct(self._seq([part for name, each in named for part in (self._text(name), each)]))

    def _when(self, condition: Any, value: Any) -> Any:
        """Return a value where a condition is true, and else null."""
        return self._of.CaseWhen(self._seq([self._jvm.scala.Tuple2(condition, value)]), self._nothing)

    def _no(self) -> Any:
        return self._literal.create(False, self._jvm.org.apache.spark.sql.types.DataType.fromDDL("boolean"))  # noqa: FBT003  (Spark's)

    def _as(self, column: Any, value: Any) -> Any:
        """Return a value as the column that it is in the plan."""
        return self._of.Alias(
            value,
            column.name(),
            column.exprId(),
            column.qualifier(),
            self._jvm.scala.Option.apply(column.metadata()),
            self._seq([]),
        )

    def _field(self, row: Any, place: int) -> Any:
        return self._of.GetStructField(row, place, self._nothing)

    def _named(self, expression: Any, name: str) -> Any:
        return self._of.Alias(expression, name, self._of.NamedExpression.newExprId(), self._seq([]), self._nothing, self._seq([]))

    def _text(self, value: str | None) -> Any:
        return self._literal.create(value, self._jvm.org.apache.spark.sql.types.DataType.fromDDL("string"))

    @staticmethod
    def _is_attribute(expression: Any) -> bool:
        return str(expression.getClass().getSimpleName()) == "AttributeReference"

    @staticmethod
    def _unique(attributes: Sequence[Any]) -> list[Any]:
        return list({int(each.exprId().id()): each for each in attributes}.values())

    def _seq(self, values: Sequence[Any]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for each in values:
            found.add(each)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()

    def _listed(self, values: Any) -> list[Any]:
        return [values.apply(place) for place in range(values.length())]
