"""What a connection of type ``poison`` may say: named fields in its extra, nothing else.

Who acts where a hook is used: the task that runs here, else the user of the shell or script.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.store import object_store_of
from airflow_poison.values.errors import SettingError, SourceError, SparkDistributionError
from airflow_poison.values.machine import shell_user

if TYPE_CHECKING:
    from airflow_poison.sources.source import Connection


def actor_here() -> str:
    """Return ``dag:<dag_id>/<run_id>/<task_id>`` in a task, else ``shell:<user>@<host>``."""
    from airflow.sdk import get_current_context

    try:
        task = get_current_context()["ti"]
    except RuntimeError:
        return shell_user()
    return f"dag:{task.dag_id}/{task.run_id}/{task.task_id}"


LOCAL_SPARK, AUTO = "local[*]", "auto"
SMALL_PASS = 20_000
"""So many messages are delivered without Spark where a connection's field ``spark`` is ``auto``, unless it says how many."""
PY_FILES, PARALLELISM = "spark.submit.pyFiles", "spark.default.parallelism"
"""Settings that are looked at here, too: a session of Spark Connect has neither."""
FIELDS = ("store", "storage_options", "credentials_conn_id", "spark", "spark_conf", "small_pass", "durable", "installation")
AWS_CONN_ID = "aws_conn_id"
"""What the field ``credentials_conn_id`` may be called where it names a connection of type ``aws``, as other providers call it."""
INSTALLATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", re.ASCII)
"""The id of an Airflow installation; it is part of run keys, which name folders."""
INSTALLATION_ALLOWED = "1 to 40 letters, digits, dots, underscores and hyphens, the first a letter or a digit"
_OTHER_FIELDS = {
    "host": "store: the folder or the URI of the queues",
    "schema": "store: the folder or the URI of the queues",
    "port": "store: the folder or the URI of the queues, or the endpoint in storage_options",
    "login": "storage_options, or credentials_conn_id: the id of a connection that has them",
    "password": "storage_options, or credentials_conn_id: the id of a connection that has them",
}
"""Fields that other types of connections have, and the field of the extra that has what they would say."""
_LOCAL = re.compile(r"^local(?:\[(\d+|\*)(?:,.+)?\])?$")
_MASTER = re.compile(r"^(local(\[.+\])?|yarn|[a-z0-9]+://.+)$")
_ALLOWED = (
    "auto, local[*], spark://host:port, yarn, k8s://…, sc://host:port (Spark Connect), or the id of a connection of type spark or spark_connect"
)


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """A connection's fields.

    :param store: root of the store, a folder or a URI; empty: the embedded default.
    :param storage_options: options of an object store, text by name.
    :param credentials_conn_id: the id of a connection that has what the options do not say; empty: none.
    :param spark: a Spark master, the address of a Spark Connect server, or the id of a connection of type ``spark`` or ``spark_connect``.
    :param spark_conf: Spark settings, text by name.
    :param small_pass: so many messages a pass delivers in the task itself, without Spark; 0: none.
    :param durable: whether every commit is forced to disk before it is acknowledged.
    :param installation: the id of this Airflow in the keys of what its tasks do; empty: the id in its metadata database.
    """

    store: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    spark: str = LOCAL_SPARK
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    small_pass: int = 0
    durable: bool = True
    installation: str = ""
    credentials_conn_id: str = ""

    @property
    def py_files(self) -> tuple[str, ...]:
        """The files that ``spark_conf`` ships to executors."""
        return tuple(filter(None, (name.strip() for name in self.spark_conf.get(PY_FILES, "").split(","))))

    @property
    def parallelism(self) -> int | None:
        """How many tasks a pass has, where ``spark_conf`` says so. Raises SettingError."""
        text = self.spark_conf.get(PARALLELISM)
        if text is None:
            return None
        if not text.isdecimal() or not int(text):
            raise SettingError(f"spark_conf[{PARALLELISM!r}]", text, "a whole number, 1 or more")
        return int(text)

    @classmethod
    def of(cls, connection: Any, conn_id: str) -> Self:
        """Return the fields of a connection. Raises SettingError for a field that is not read, because its queues would be in another store."""
        for name, instead in _OTHER_FIELDS.items():
            if getattr(connection, name):
                raise SettingError(f"{conn_id}.{name}", "…", f"nothing; write it into the extra, into the field {instead}")
        extra = connection.extra_dejson
        if not isinstance(extra, dict) or (not extra and (connection.extra or "").strip() not in {"", "{}", "null"}):
            raise SettingError(f"{conn_id}.extra", "…", 'a JSON object such as {"store": "/data/queues"}')
        return cls.parse(extra, conn_id)

    @classmethod
    def parse(cls, extra: Mapping[str, Any], conn_id: str) -> Self:
        """Return the fields of a connection's extra. Raises SettingError for an unknown field or a value of the wrong type."""
        unknown = sorted(set(extra) - {*FIELDS, AWS_CONN_ID})
        if unknown:
            raise SettingError(f"{conn_id}.extra.{unknown[0]}", "…", f"the fields {', '.join(FIELDS)} and no other")
        installation = _text(conn_id, "installation", extra.get("installation"))
        if installation and not INSTALLATION.fullmatch(installation):
            raise SettingError(f"{conn_id}.extra.installation", installation, INSTALLATION_ALLOWED)
        spark = _text(conn_id, "spark", extra.get("spark")) or LOCAL_SPARK
        return cls(
            store=_text(conn_id, "store", extra.get("store")),
            storage_options=_texts(conn_id, "storage_options", extra.get("storage_options")),
            spark=LOCAL_SPARK if spark == AUTO else spark,
            spark_conf=_texts(conn_id, "spark_conf", extra.get("spark_conf")),
            small_pass=_number(conn_id, "small_pass", extra.get("small_pass"), default=SMALL_PASS if spark == AUTO else 0),
            durable=_flag(conn_id, "durable", extra.get("durable"), default=True),
            installation=installation,
            credentials_conn_id=_credentials_conn_id(conn_id, extra),
        )


# Credentials of another connection --------------------------------------------------------------------------------------


_TYPES = {"S3": "aws", "Google Cloud Storage": "google_cloud_platform", "Azure": "wasb"}
"""The type of a connection that has credentials of an object store."""
_ELSEWHERE = {
    "aws": ("role_arn", "profile_name", "session_kwargs"),
    "google_cloud_platform": ("key_secret_name", "credential_config_file", "impersonation_chain"),
    "wasb": ("tenant_id", "managed_identity_client_id", "connection_string"),
}
"""Fields that name another source of credentials: without them the store would be used with other credentials."""
_UNDERSTOOD = {
    "aws": "login and password (the keys), and in the extra aws_session_token, region_name and endpoint_url",
    "google_cloud_platform": "key_path or keyfile_dict in the extra",
    "wasb": "login and password (account and key), or login and sas_token in the extra",
}
_SECRET = re.compile(r"key|secret|token|credentials|service_account|client_id", re.IGNORECASE)
"""The names of options with credentials or other secrets."""
_SAME = (
    re.compile(r"(aws_)?(default_)?region", re.IGNORECASE),
    re.compile(r"(aws_)?endpoint(_url(_s3)?)?", re.IGNORECASE),
    re.compile(r"(azure_storage_)?account_name", re.IGNORECASE),
)
"""Names of one and the same option."""


def secrets_of(options: Mapping[str, str]) -> list[str]:
    """Return the values of options that are to be masked."""
    return [value for name, value in options.items() if value and _SECRET.search(name)]


def options_with_credentials(settings: StoreConnection, conn_id: str, get_connection: Callable[[str], Any]) -> dict[str, str]:
    """Return a connection's storage options, and from the connection that it names for credentials what they do not say.

    The credentials come from one of the two: where the options have a key, a token or an account's file, none is taken from the other connection.

    :param conn_id: of the connection that has these settings.
    Raises SettingError for a connection that is not there, is of another type than the store wants, or says what cannot be done here.
    """
    from airflow.sdk.exceptions import AirflowNotFoundException

    other, where = settings.credentials_conn_id, f"{conn_id}.extra.credentials_conn_id"
    kind = _TYPES.get(object_store_of(settings.store))
    allowed = f"a connection of type {kind or ', '.join(_TYPES.values())}"
    try:
        connection = get_connection(other)
    except AirflowNotFoundException as error:
        raise SettingError(where, other, f"{allowed}; no connection has this id") from error
    if connection.conn_type not in (_TYPES.values() if kind is None else {kind}):
        raise SettingError(where, other, f"{allowed}, as the store {settings.store} wants; this one is of type {connection.conn_type}")
    given = settings.storage_options
    says_who = any(_SECRET.search(name) and "sse" not in name.lower() for name in given)
    found = {
        name: value
        for name, value in _options_of(connection, other).items()
        if not (says_who and _SECRET.search(name)) and not any(same.fullmatch(name) and any(map(same.fullmatch, given)) for same in _SAME)
    }
    return {**found, **given}


def _options_of(connection: Any, conn_id: str) -> dict[str, str]:
    """Return what a connection of another provider says, as storage options. Raises SettingError, which shows no value."""
    kind = connection.conn_type
    extra = {name.rpartition("__")[2] if name.startswith("extra__") else name: value for name, value in connection.extra_dejson.items()}
    there = next((name for name in _ELSEWHERE[kind] if extra.get(name)), None)
    if there is not None:
        raise SettingError(f"{conn_id}.extra.{there}", "…", f"nothing here, only {_UNDERSTOOD[kind]}; write storage_options instead")
    if kind == "google_cloud_platform":
        key = extra.get("keyfile_dict")
        found = {
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key) if isinstance(key, dict) else key,
            "GOOGLE_SERVICE_ACCOUNT": None if key else extra.get("key_path"),
        }
    elif kind == "wasb":
        token = str(extra.get("sas_token") or "").rpartition("?")[2]
        key = None if token else connection.password or extra.get("shared_access_key")
        found = {"AZURE_STORAGE_ACCOUNT_NAME": connection.login, "AZURE_STORAGE_ACCOUNT_KEY": key, "AZURE_STORAGE_SAS_TOKEN": token}
    else:
        key = connection.login or extra.get("aws_access_key_id")
        secret = connection.password or extra.get("aws_secret_access_key")
        if bool(key) != bool(secret):
            raise SettingError(
                f"{conn_id}.{'password' if key else 'login'}", "", "login and password, or neither: then they come from the environment"
            )
        of_s3 = (extra.get("service_config") or {}).get("s3") or {}
        found = {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
            "AWS_REGION": extra.get("region_name"),
            "AWS_ENDPOINT_URL": of_s3.get("endpoint_url") or extra.get("endpoint_url"),
        }
    return {name: str(value) for name, value in found.items() if value}


def _credentials_conn_id(conn_id: str, extra: Mapping[str, Any]) -> str:
    """Return the id of the connection that has credentials, under either name. Raises SettingError where both are given."""
    given = {name: found for name in ("credentials_conn_id", AWS_CONN_ID) if (found := _text(conn_id, name, extra.get(name)))}
    if len(given) > 1:
        raise SettingError(f"{conn_id}.extra.{AWS_CONN_ID}", given[AWS_CONN_ID], "one of credentials_conn_id and aws_conn_id, which are the same")
    return next(iter(given.values()), "")


def spark_master(spark: str, get_connection: Callable[[str], Any]) -> str:
    """Return the Spark master, or the address of a Spark Connect server, that a connection's field ``spark`` names.

    It names it itself, or through a connection of type ``spark`` or ``spark_connect``.

    :param get_connection: finds a connection by its id; asked only when ``spark`` is no master.
    Raises SettingError and SparkDistributionError.
    """
    if _MASTER.match(spark):
        return spark
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        connection = get_connection(spark)
    except AirflowNotFoundException as error:
        raise SettingError("spark", spark, f"{_ALLOWED}; no connection has this id") from error
    if connection.conn_type == "spark_connect":
        try:
            from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
        except ModuleNotFoundError as error:
            raise SparkDistributionError(
                f"The connection {spark!r} of type spark_connect is read by Airflow's Spark provider, which is not installed ({error}). "
                "Run: pip install 'airflow-poison[submit]', or write the server's address (sc://host:port) into the field spark."
            ) from error

        return str(SparkConnectHook(spark).get_connection_url())
    host = connection.host or ""
    master = host if connection.conn_type == "spark" and ("://" in host or not connection.port) else f"{connection.conn_type}://{host}"
    if connection.port:
        master = f"{master}:{connection.port}"
    if not _MASTER.match(master):
        raise SettingError("spark", master, _ALLOWED)
    return master


_FORMS = {"queue": "spark.yarn.queue", "namespace": "spark.kubernetes.namespace"}
"""Fields that a connection of type ``spark`` has in the provider's form, and the Spark settings that they are."""


def spark_settings(spark: str, get_connection: Callable[[str], Any]) -> dict[str, str]:
    """Return Spark settings in the extra of the connection that a field ``spark`` names: ``spark.*``, and its YARN queue and namespace.

    What else the extra says is of ``spark-submit``. Empty for a master. Call ``spark_master`` first, which says so where there is no such connection.
    """
    if _MASTER.match(spark):
        return {}
    extra = get_connection(spark).extra_dejson
    found = {_FORMS.get(name, name): value for name, value in extra.items() if value and (name in _FORMS or name.startswith("spark."))}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}


def cores_of(master: str) -> int | None:
    """Return how many tasks Spark runs at the same time, where its master says so: ``local[4]``; None for a cluster."""
    found = _LOCAL.match(master)
    if found is None:
        return None
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)


def _text(conn_id: str, name: str, value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise SettingError(f"{conn_id}.extra.{name}", value, "text")
    return (value or "").strip()


def _number(conn_id: str, name: str, value: object, *, default: int) -> int:
    """Return a whole number, given as one or as its text: forms give text."""
    if value is None or value == "":
        return default
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal()):
        raise SettingError(f"{conn_id}.extra.{name}", value, "a whole number of messages, 0 or more")
    return int(text)


def _flag(conn_id: str, name: str, value: object, *, default: bool) -> bool:
    """Return a JSON boolean, given as one or as its text: forms give text."""
    if value is None or value == "":
        return default
    known = {"true": True, "false": False}.get(str(value).strip().lower())
    if known is None:
        raise SettingError(f"{conn_id}.extra.{name}", value, "true or false")
    return known


def _texts(conn_id: str, name: str, value: object) -> dict[str, str]:
    """Return a JSON object, given as one or as its text, with every value as text. Never shows the value: it may hold a secret."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise SettingError(f"{conn_id}.extra.{name}", "…", 'a JSON object such as {"region": "eu-west-1"}')
    return {str(key): item if isinstance(item, str) else json.dumps(item) for key, item in value.items()}


def found_connection(conn_id: str) -> Connection:
    """Return a connection of Airflow's. Its secrets are masked in logs from then on. Raises SourceError when there is none."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException
    from airflow.sdk.log import mask_secret

    from airflow_poison.sources.source import Connection

    try:
        found = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise SourceError(f"There is no connection {conn_id!r}, which a source names. Add it to Airflow's connections. Nothing was sent.") from error
    extra = found.extra_dejson
    mask_secret([value for value in (found.password, extra) if value])
    return Connection(
        conn_id=conn_id,
        kind=found.conn_type or "",
        host=found.host or "",
        port=found.port,
        login=found.login or "",
        password=found.password or "",
        path=found.schema or "",
        extra=extra,
    )
