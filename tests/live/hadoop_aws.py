"""Hadoop's own S3 file system, for sessions of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.given.drivers import SMALL
from tools.servers.maven import fetched

if TYPE_CHECKING:
    from collections.abc import Mapping

_HADOOP = "3.4.2"


def settings_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session that reads a bucket."""
    jars = fetched(f"hadoop-aws-{_HADOOP}", ("org.apache.hadoop", "hadoop-aws", _HADOOP))
    settings = {
        "endpoint": options["AWS_ENDPOINT_URL"],
        "access.key": options["AWS_ACCESS_KEY_ID"],
        "secret.key": options["AWS_SECRET_ACCESS_KEY"],
        "endpoint.region": options["AWS_REGION"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    given = {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
    return {**SMALL, "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar")))), **given}
