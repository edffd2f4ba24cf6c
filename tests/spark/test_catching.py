"""Plans that catch what rows raise: the other rows are as without, whatever the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType

from airflow_poison.spark.catching import PLACE, RAISED, caught

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    Transform = Callable[[DataFrame], DataFrame]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
ROWS = [(1, "1"), (2, "bad"), (3, "3"), (4, None), (5, "5")]
BAD = [2]
length = f.udf(lambda text: None if text is None else len(text), IntegerType(), useArrow=False)


@pytest.fixture
def given(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, "lookup_id long, kind string")


def names(df: DataFrame) -> DataFrame:
    return df.sparkSession.createDataFrame([(row[1], f"name of {row[1]}") for row in ROWS], "kind string, name string")


TRANSFORMS: dict[str, Transform] = {
    "one column": lambda df: df.selectExpr("cast(kind AS int) a"),
    "a part that two columns share": lambda df: df.selectExpr("cast(kind AS int) + 1 a", "cast(kind AS int) + 2 b"),
    "a column that others are made of": lambda df: df.withColumn("n", f.expr("cast(kind AS int)")).selectExpr("n", "n + 1 m", "n * n q"),
    "a column that is dropped": lambda df: df.withColumn("n", f.expr("cast(kind AS int)")).withColumn("m", f.expr("n + n")).select("m"),
    "beside a value by chance": lambda df: df.selectExpr("cast(kind AS int) a", "if(rand() < 2, kind, '') k"),
    "a value by chance": lambda df: df.selectExpr("cast(if(rand() < 2, kind, '') AS int) a", "kind"),
    "a query of its own": lambda df: df.select((f.expr("cast(kind AS int)") + f.expr("(SELECT max(id) FROM range(3))")).alias("a"), "kind"),
    "below a filter": lambda df: df.selectExpr("cast(kind AS int) a", "kind").where("a > 1 OR a IS NULL"),
    "in a filter": lambda df: df.where("cast(kind AS int) > 1").select("kind"),
    "several rows of one": lambda df: df.selectExpr("explode(array('7', kind)) e").selectExpr("cast(e AS int) i"),
    "a name that is used anew": lambda df: df.selectExpr("kind AS lookup_id", "cast(kind AS int) b").select("b"),
    "a struct": lambda df: df.selectExpr("named_struct('a', cast(kind AS int)) s", "kind k").select("s.a", "k"),
    "an array": lambda df: df.selectExpr("transform(array(kind), each -> cast(each AS int)) a"),
    "Variant": lambda df: df.selectExpr("cast(parse_json(kind) AS int) a"),
    "another table": lambda df: df.join(names(df), "kind").selectExpr("name", "cast(kind AS int) i"),
    "behind Python": lambda df: df.select((length("kind") + f.expr("cast(kind AS int)")).alias("a")),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_rows_that_raise_are_named_and_the_others_are_as_without(given: DataFrame, name: str) -> None:
    transform = TRANSFORMS[name]

    made = caught(transform(given.alias("claim")), given)

    assert made is not None
    expected = transform(given.sparkSession.createDataFrame([row for row in ROWS if row[0] not in BAD], given.schema))
    assert made.columns[-2:] == ["lookup_id", "_poison"]
    assert {row.lookup_id for row in made.where("_poison IS NOT NULL").collect()} == {*BAD}
    assert {row._poison for row in made.collect()} == {None, RAISED}
    good = made.where(f"lookup_id NOT IN ({', '.join(map(str, BAD))})").select(expected.columns)
    assert sorted(map(repr, good.collect())) == sorted(map(repr, expected.collect()))
    assert [field.dataType for field in good.schema] == [field.dataType for field in expected.schema]


def test_a_verdict_and_a_lookup_id_of_the_transformation_stay(given: DataFrame) -> None:
    frame = given.selectExpr("lookup_id + 100 AS lookup_id", "cast(kind AS int) a", "if(kind = '3', 'no', NULL) AS _poison")

    made = caught(frame, given)

    assert made is not None
    assert [tuple(row) for row in made.collect()] == [(1, 101, None), (None, 2, RAISED), (3, 103, "no"), (None, 104, None), (5, 105, None)]


def test_places_are_of_the_rows_that_functions_are_given(given: DataFrame) -> None:
    spread = given.coalesce(1)

    made = caught(spread.where("lookup_id > 1").select((length("kind") + 1).alias("a")), spread)

    assert made is not None
    assert made.columns[0] == PLACE
    assert [(row[PLACE], row.lookup_id) for row in made.collect()] == [(0, 2), (1, 3), (2, 4), (3, 5)]


NOT_CAUGHT: dict[str, Transform] = {
    "nothing is computed": lambda df: df.select("kind"),
    "rows that are mixed": lambda df: df.selectExpr("cast(kind AS int) a").distinct(),
    "functions, and another table": lambda df: df.join(names(df), "kind").select(length("name")),
    "functions in a subquery": lambda df: df.select(length("kind"), names(df).select(f.max(length("name"))).scalar()),
    "batches": lambda df: df.mapInArrow(same, "lookup_id long, kind string").selectExpr("kind"),
    "a column of our name": lambda df: df.selectExpr("cast(kind AS int) poison_place"),
}


def same(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


@pytest.mark.parametrize("name", NOT_CAUGHT)
def test_what_cannot_be_caught_is_known_before(given: DataFrame, name: str) -> None:
    assert caught(NOT_CAUGHT[name](given.alias("claim")), given) is None
