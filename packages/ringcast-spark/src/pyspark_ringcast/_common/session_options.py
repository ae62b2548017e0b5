"""Options of a call that has a session, and so its configuration, at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ringcast_wire import InvalidInputError

from pyspark_ringcast._common.options import Options, check_option, parse_options, with_defaults

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


def session_options(spark: SparkSession, given: Mapping[str, object]) -> Options:
    """The options that are given, as Spark takes them (``True`` is ``true``), and the session's defaults of others.

    Raises:
        InvalidInputError: an option is wrong, as in :func:`pyspark_ringcast._common.options.parse_options`.
    """
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    return parse_options(with_defaults(texts, session_defaults(spark)))
