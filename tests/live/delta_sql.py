"""A Spark with Delta Lake's own classes: ``python -m tests.live.delta_sql FOLDER`` runs each line of SQL that it reads; prints its rows as JSON."""
# ruff: noqa: T201

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(jars: str) -> None:
    """Run lines of SQL until there is none."""
    from pyspark.sql import SparkSession

    own = ":".join(str(jar) for name in ("delta-*", "unitycatalog-*") for jar in Path(jars).glob(f"{name}.jar"))  # Spark brings the others
    builder = SparkSession.builder.master("local[2]").config("spark.driver.extraClassPath", own).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    for line in sys.stdin:
        try:
            print(json.dumps([json.loads(row) for row in spark.sql(line).toJSON().collect()]), flush=True)
        except Exception as error:  # noqa: BLE001  (whatever it is, the test tells it)
            print(json.dumps(str(error)[:1_000]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
