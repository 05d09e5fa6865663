"""A Spark session with what the pipeline needs: a Java, our own Python for the workers, and times in UTC."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from spark_integration.java import prepare_java

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def spark_session(name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> Any:
    """The session of this process, made if there is none.

    Without a `master` it is the one that spark-submit or the configuration names, else all cores of this machine.
    """
    os.environ.update(prepare_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # another one would not have this package
    from pyspark.sql import SparkSession  # needs the variables above

    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if master is not None:
        builder = builder.master(master)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
