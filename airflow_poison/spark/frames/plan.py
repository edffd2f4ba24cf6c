"""What stands in the plan of a transformation: what it must not do with the rows of a claim, and whose code works on them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_poison.spark.jobs import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def mixing_operator(plan: str, alias: str) -> str | None:
    """Return which operator of an analyzed plan mixes rows of the claim; None: none does; empty: the claim is not in the plan.

    A join mixes them when both its sides come from the claim.
    """
    nodes: list[tuple[int, str, bool]] = []
    for line in plan.splitlines():
        found = _NODE.match(line)
        if found is not None and (not nodes or line[:1] in ":+| "):
            marked = "+- " in line[: len(found[1]) + 3] or ":- " in line[: len(found[1]) + 3]
            nodes.append((len(found[1]) // 3 + marked, found[2], found[2] == "SubqueryAlias" and found[3].strip() == alias))
    below = [marked for _, _, marked in nodes]
    sides = [0] * len(nodes)
    for place in reversed(range(len(nodes))):
        if below[place]:
            parent = next((other for other in reversed(range(place)) if nodes[other][0] < nodes[place][0]), None)
            if parent is not None:
                below[parent] = True
                sides[parent] += 1
    if not any(below):
        return ""
    mixing = (
        name
        for (_, name, _), within, number in zip(nodes, below, sides, strict=True)
        if within and (name.startswith(_MIXING) or (number > 1 and name != "Union"))
    )
    return next(mixing, None)


def analyzed_plan(frame: DataFrame) -> str:
    """Return the analyzed plan of a DataFrame as Spark writes it."""
    if not is_connect(frame.sparkSession):
        return str(frame._jdf.queryExecution().analyzed().toString())  # noqa: SLF001  (there is no public way)
    return _explained(frame, "Analyzed").partition("\n")[2]


def optimized_plan(frame: DataFrame) -> str:
    """Return the optimized plan of a DataFrame as Spark writes it."""
    if not is_connect(frame.sparkSession):
        return str(frame._jdf.queryExecution().optimizedPlan().toString())  # noqa: SLF001  (there is no public way)
    return _explained(frame, "Optimized")


def _explained(frame: DataFrame, which: str) -> str:
    text: str = frame._explain_string(mode="extended")  # type: ignore[operator]  # noqa: SLF001  (explain() prints it)
    return text.partition(f"== {which} Logical Plan ==")[2].partition("\n== ")[0].strip()


def has_python(plan: str) -> bool:
    """Whether the JVM hands rows of an optimized plan to Python of the transformation: many at once, so that the current row is not known."""
    return any(
        word in line
        for line in plan.splitlines()
        if f"MapInArrow {BODIES_PARSER}(" not in line
        for word in ("Python", "Pandas", "ArrowEval", "InArrow")
    )
