"""The config service without the entries of the audit log for rows: beside it, what they cost is measured.

As a program it is the service, with the same words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from ringcast_config_service.__main__ import main
from ringcast_config_service.repository.postgres import write as postgres_write
from ringcast_config_service.repository.sql import statements
from ringcast_config_service.repository.sql.statements import Postgres


@contextmanager
def without_audit() -> Iterator[None]:
    """As it was before there was an audit log."""
    with ExitStack() as stack:
        stack.enter_context(patch("ringcast_config_service.repository.writes.facts_of", lambda _: []))
        stack.enter_context(patch("ringcast_config_service.repository.postgres.new_rows.facts_of", lambda _: []))
        stack.enter_context(patch.object(postgres_write, "fact_columns", lambda _: []))
        for name, parts in statements.AT_ONCE.items():
            texts = [getattr(Postgres, part) for part in parts if part != "INSERT_AUDIT"]
            text = statements._at_once(*texts) if len(texts) > 1 else texts[0]
            stack.enter_context(patch.object(Postgres, name, text))
        yield


if __name__ == "__main__":
    with without_audit():
        main()
