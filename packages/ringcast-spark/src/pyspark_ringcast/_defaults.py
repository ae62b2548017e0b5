"""Defaults of options from a session's configuration.

Spark gives a source that is written in Python its options and nothing of the configuration. So the source is
registered once more, with what the configuration says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_ringcast._common.session_options import session_defaults
from pyspark_ringcast._source import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Has ``spark.ringcast.<option>`` be the default of each option, in this session and as it is configured now.

    An option that a read or write gives wins over it, and it wins over the environment (``RINGCAST_…``). Register again
    after ``spark.conf.set``.

    Raises:
        InvalidInputError: the configuration names an option that there is not.
    """
    members = {"defaults": session_defaults(spark), "__module__": DefaultSource.__module__}
    spark.dataSource.register(type(DefaultSource.__name__, (DefaultSource,), members))
