"""Whether values of one Protobuf schema can be read with another, as JSON and on the wire.

A value is JSON, so the reader has to know each name that is in it, and to read the same text as the same. What readers
make of it is often a message on the wire, so each number has to stay what it was. And what was once used must not come
to mean something else: who takes a field away reserves its number and its name, for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ringcast_wire._schemas.compatibility import Budget, IncompatibleError
from ringcast_wire._schemas.protobuf import EnumType, Field, MessageType, ProtobufSchema, Reserved

_WIDER: Final = {
    "int32": frozenset({"int64"}),
    "uint32": frozenset({"uint64", "int64"}),
    "sint32": frozenset({"sint64"}),
}
"""Types that read all values of another one, in JSON and on the wire."""


def compare_protobuf(reader: ProtobufSchema, writer: ProtobufSchema, budget: Budget, *, writer_is_newer: bool) -> None:
    """Checks that all values of one schema (``writer``) can be read with another, and that the newer one of the two
    keeps what the older has reserved.

    Raises:
        IncompatibleError: they can't, or it does not.
    """
    _Comparison(reader, writer, budget, writer_is_newer=writer_is_newer).run()


class _Comparison:
    def __init__(
        self, reader: ProtobufSchema, writer: ProtobufSchema, budget: Budget, *, writer_is_newer: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._budget = budget
        self._writer_is_newer = writer_is_newer
        self._pending: list[tuple[str, str]] = []
        self._known: set[tuple[str, str]] = set()

    def run(self) -> None:
        self._later(self._reader.message, self._writer.message)
        if self._writer.uses_any:
            for name in self._writer.messages:
                if name not in self._reader.messages:
                    raise _breaks(name, "an Any may have it, and it is not there in the schema that reads")
                self._later(name, name)
        while self._pending:
            reader, writer = self._pending.pop()
            if writer in self._writer.messages:
                self._message(self._reader.messages[reader], self._writer.messages[writer])
            else:
                self._enum(self._reader.enums[reader], self._writer.enums[writer])

    def _later(self, reader: str, writer: str) -> None:
        if (reader, writer) not in self._known:
            self._known.add((reader, writer))
            self._pending.append((reader, writer))

    def _message(self, reader: MessageType, writer: MessageType) -> None:
        readers = {each.number: each for each in reader.fields}
        for field in writer.fields:
            self._budget.step()
            found = readers.get(field.number)
            if found is None or field.name != found.name:
                raise _breaks(field.place, _not_there(field, found, reader))
            self._field(found, field)
        self._oneofs(reader, writer)
        self._reservations(writer.name, reader.reserved, writer.reserved)
        if self._writer_is_newer:
            left = {each.number for each in writer.fields}
            removed = ((each.name, each.number) for each in reader.fields if each.number not in left)
            self._removed(writer.name, removed, writer.reserved)

    def _field(self, reader: Field, writer: Field) -> None:
        place = writer.place
        if reader.json_name != writer.json_name:
            said = f"it is {writer.json_name!r} in JSON, and {reader.json_name!r} in the schema that reads"
            raise _breaks(place, said)
        if (shape := _shape(writer)) != (wanted := _shape(reader)):
            raise _breaks(place, f"{shape} can't be read as {wanted}")
        if reader.key != writer.key and reader.key not in _WIDER.get(writer.key, ()):
            raise _breaks(place, f"keys of the type {writer.key} can't be read as {reader.key}")
        self._type(reader, writer)
        if (default := _default(self._writer, writer)) != (wanted := _default(self._reader, reader)):
            said = f"left out it is {default or 'empty'}, and {wanted or 'empty'} in the schema that reads"
            raise _breaks(place, said)

    def _type(self, reader: Field, writer: Field) -> None:
        if reader.type == writer.type:
            names = reader.type_name, writer.type_name
            known = (*self._reader.messages, *self._reader.enums), (*self._writer.messages, *self._writer.enums)
            if all(name in those for name, those in zip(names, known, strict=True)):
                self._later(*names)
                return
            if names[0] == names[1]:
                return
        elif reader.type in _WIDER.get(writer.type, ()):
            return
        one, other = writer.type_name or writer.type, reader.type_name or reader.type
        raise _breaks(writer.place, f"{one} can't be read as {other}")

    def _oneofs(self, reader: MessageType, writer: MessageType) -> None:
        """Of fields that the reader has in one oneof only one may be there: so it has to be with the writer."""
        written = {each.number: each for each in writer.fields}
        first: dict[str, Field] = {}
        for each in reader.fields:
            found = written.get(each.number)
            if not each.oneof or found is None:
                continue
            before = first.setdefault(each.oneof, found)
            if before is not found and not (found.oneof and found.oneof == before.oneof):
                said = f"it may be there beside {before.name!r}, and not in the oneof of the schema that reads"
                raise _breaks(found.place, said)

    def _enum(self, reader: EnumType, writer: EnumType) -> None:
        for name, number in writer.values.items():
            self._budget.step()
            if name not in reader.values:
                raise _breaks(f"{writer.name}.{name}", "the enum that reads has no such value")
            if reader.values[name] != number:
                said = f"its number is {number}, and {reader.values[name]} in the enum that reads"
                raise _breaks(f"{writer.name}.{name}", said)
        if reader.closed and not writer.closed:
            raise _breaks(writer.name, "it is open (proto3), and closed (proto2) in the schema that reads")
        self._reservations(writer.name, reader.reserved, writer.reserved)
        if self._writer_is_newer:
            removed = (
                (name, None if number in writer.numbers else number)
                for name, number in reader.values.items()
                if name not in writer.values
            )
            self._removed(writer.name, removed, writer.reserved)

    def _reservations(self, place: str, reader: Reserved, writer: Reserved) -> None:
        older, newer = (reader, writer) if self._writer_is_newer else (writer, reader)
        for start, end in older.numbers:
            self._budget.step()
            if not newer.covers(start, end):
                if end == start + 1:
                    raise _breaks(place, f"number {start} was reserved, and has to stay so")
                raise _breaks(place, f"numbers {start} to {end - 1} were reserved, and have to stay so")
        for name in sorted(older.names - newer.names):
            raise _breaks(place, f"the name {name!r} was reserved, and has to stay so")

    def _removed(self, place: str, removed: Iterator[tuple[str, int | None]], reserved: Reserved) -> None:
        for name, number in removed:
            self._budget.step()
            if number is not None and not reserved.has(number):
                raise _breaks(f"{place}.{name}", f"it was taken away, and its number {number} is not reserved")
            if name not in reserved.names:
                raise _breaks(f"{place}.{name}", "it was taken away, and its name is not reserved")


def _breaks(place: str, said: str) -> IncompatibleError:
    return IncompatibleError(f"at {place}: {said}")


def _not_there(field: Field, found: Field | None, reader: MessageType) -> str:
    """What is wrong with a field whose number is not that of the same name in the schema that reads."""
    named = next((each for each in reader.fields if each.name == field.name), None)
    if named is not None:
        return f"its number is {field.number}, and {named.number} in the schema that reads"
    if found is not None:
        return f"its number {field.number} is that of {found.name!r} in the schema that reads"
    return "there is no such field in the schema that reads"


def _shape(field: Field) -> str:
    return "a map" if field.key else "a list" if field.repeated else "one value"


def _default(schema: ProtobufSchema, field: Field) -> str:
    """What a field is that is left out, as it is written; empty: the zero of its type."""
    enum = None if field.repeated else schema.enums.get(field.type_name)
    return field.default or (enum.default if enum is not None else "")
