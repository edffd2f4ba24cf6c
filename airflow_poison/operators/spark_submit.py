"""What ``spark-submit`` is told of a pass. The Spark provider's hook knows where it submits to; there is no public way to ask it."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_poison.core.errors import SettingError, SparkDistributionError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_poison.core.passes.submitted import Submission

_PYTHON_RUNNER = "org.apache.spark.deploy.PythonRunner"
"""What Spark itself runs Python applications with."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where is submitted to.

    :param binary: ``spark-submit``, or what it is called here.
    :param deploy_mode: ``cluster``: the cluster places the driver; else it runs beside the task.
    :param standalone: the driver is placed by a standalone cluster.
    :param tracked: the driver goes on without ``spark-submit``, and a later try of the task finds it again.
    """

    binary: str
    deploy_mode: str
    standalone: bool
    tracked: bool

    @classmethod
    def of(cls, hook: SparkSubmitHook) -> Self:
        """Ask a hook. Raises SettingError for a deploy mode that Spark does not have."""
        known = hook._connection  # noqa: SLF001
        deploy_mode = known["deploy_mode"] or "client"
        if deploy_mode not in {"client", "cluster"}:
            raise SettingError("deploy_mode", deploy_mode, "client or cluster, here or in the connection's extra field deploy-mode")
        standalone = bool(hook._should_track_driver_status)  # noqa: SLF001
        tracked = standalone or hook._should_track_driver_via_k8s_api() or hook._should_track_yarn_application_via_rm_api()  # noqa: SLF001
        return cls(known["spark_binary"], deploy_mode, standalone, bool(tracked))

    def find_binary(self) -> None:
        """Let the provider find ``spark-submit`` beside this Python, where pip puts it, when it is nowhere else. Raises SparkDistributionError."""
        if shutil.which(self.binary) is not None:
            return
        beside = str(Path(sys.executable).parent)
        if shutil.which(self.binary, path=beside) is None:
            raise SparkDistributionError(
                f"{self.binary} is not found: it is not on the task's PATH, nor in {beside}. Nothing was submitted. Install Spark there "
                "(pip install 'pyspark==4.1.3'), or name it with spark_binary or the connection's extra field spark-binary."
            )
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), beside])

    @property
    def conf(self) -> dict[str, str]:
        """Settings of a driver beside the task: it runs this Python, unless the environment names one."""
        wanted = self.deploy_mode == "client" and "PYSPARK_PYTHON" not in os.environ
        return {"spark.pyspark.python": sys.executable} if wanted else {}

    def command(self, submission: Submission) -> tuple[str, list[str], str | None]:
        """Return the application, its arguments, and the class to run it with: a standalone cluster places no Python driver by itself."""
        if not self.standalone:
            return submission.application, [submission.order], None
        return submission.no_classes, [submission.application, "", submission.order], _PYTHON_RUNNER
