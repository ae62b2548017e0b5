"""The data source as Spark sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from pyspark_ringcast._batch.read import Snapshot


class DefaultSource(DataSource):
    """``ringcast``: one config key of one store.

    Spark asks for the schema when a DataFrame is made, and sends this object, pickled, to whatever plans a query of
    it. So the snapshot that is taken for the schema is that of the DataFrame, however often it is planned.
    """

    defaults: ClassVar[Mapping[str, str]] = {}
    """Of options that are not given; see :func:`pyspark_ringcast.register`."""
    _snapshot: Snapshot | None = None

    def __init__(self, options: dict[str, str]) -> None:
        """Only keeps them."""
        self._given = frozenset(options)
        if self.defaults:
            from pyspark_ringcast._common.options import with_defaults

            options = with_defaults(options, self.defaults)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "ringcast"

    def schema(self) -> str:
        """The columns of a read; looks at the store, so that an unknown one is an error here and not in a task."""
        from pyspark_ringcast._common.column_options import read_schema

        self._snapshot = self._pinned()
        return read_schema(self._snapshot.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the snapshot that was taken with the schema, or of one taken now."""
        from pyspark_ringcast._batch.read import RingcastReader
        from pyspark_ringcast._common.options import refuse_options_of_streams

        snapshot = self._pinned()
        # Of the defaults, which are for streams too, only the feed changes what a batch read would have to give.
        feed = ["read_change_feed"] if snapshot.options.read_change_feed else []
        refuse_options_of_streams([*feed, *self._given])
        return RingcastReader(snapshot, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer, once the columns are checked and the store was found."""
        from pyspark_ringcast._batch.stage import StageWriter
        from pyspark_ringcast._batch.write import RingcastWriter
        from pyspark_ringcast._common.options import parse_options

        options = parse_options(self.options)
        return (StageWriter if options.release else RingcastWriter)(options, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of the changes."""
        from pyspark_ringcast._stream.source import RingcastStreamReader

        return RingcastStreamReader(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer of micro-batches; ``overwrite`` is Spark's output mode ``complete``."""
        from pyspark_ringcast._stream.sink import RingcastStreamWriter

        return RingcastStreamWriter(dict(self.options), schema, overwrite)

    def _pinned(self) -> Snapshot:
        from pyspark_ringcast._batch.read import take_snapshot
        from pyspark_ringcast._common.options import parse_options

        return self._snapshot or take_snapshot(parse_options(self.options))
