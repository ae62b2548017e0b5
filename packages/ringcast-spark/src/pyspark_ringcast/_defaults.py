"""Defaults of options from a session's configuration.

Spark gives a source that is written in Python its options and nothing of the configuration. So the source is
registered once more, with what the configuration says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ringcast_wire import InvalidInputError

from pyspark_ringcast._common.options import check_option
from pyspark_ringcast._source import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX: Final = "spark.ringcast."


def session_defaults(spark: SparkSession) -> dict[str, str]:
    """What ``spark.ringcast.<option>`` says in the configuration of a session.

    Raises:
        InvalidInputError: there is no such option.
    """
    found = {}
    for name, text in spark.conf.getAll.items():
        if name.startswith(PREFIX):
            option = name.removeprefix(PREFIX)
            try:
                check_option(option)
            except InvalidInputError as error:
                raise InvalidInputError(f"{name} in the configuration: {error}", field=name) from None
            found[option] = text
    return found


def register(spark: SparkSession) -> None:
    """Has ``spark.ringcast.<option>`` be the default of each option, in this session and as it is configured now.

    An option that a read or write gives wins over it, and it wins over the environment (``RINGCAST_…``). Register again
    after ``spark.conf.set``.

    Raises:
        InvalidInputError: the configuration names an option that there is not.
    """
    members = {"defaults": session_defaults(spark), "__module__": DefaultSource.__module__}
    spark.dataSource.register(type(DefaultSource.__name__, (DefaultSource,), members))
