"""What counts of a file of a descriptor set: no comments, options, services or extensions. Each part is built
from known fields only, so nothing comes along that this build does not know."""

from __future__ import annotations

from google.protobuf import descriptor_pb2 as pb
from google.protobuf.descriptor_pb2 import FieldDescriptorProto


def json_name_of(name: str) -> str:
    """What JSON calls a field that says nothing of it."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def plain_file(file: pb.FileDescriptorProto, needs: list[str]) -> pb.FileDescriptorProto:
    """What counts of a file."""
    return pb.FileDescriptorProto(
        name=file.name,
        package=file.package,
        syntax=file.syntax or "proto2",
        dependency=needs,
        message_type=map(_plain_message, file.message_type),
        enum_type=map(_plain_enum, file.enum_type),
    )


def _plain_message(proto: pb.DescriptorProto) -> pb.DescriptorProto:
    return pb.DescriptorProto(
        name=proto.name,
        field=map(_plain_field, proto.field),
        nested_type=map(_plain_message, proto.nested_type),
        enum_type=map(_plain_enum, proto.enum_type),
        oneof_decl=[pb.OneofDescriptorProto(name=each.name) for each in proto.oneof_decl],
        extension_range=[
            pb.DescriptorProto.ExtensionRange(start=each.start, end=each.end) for each in proto.extension_range
        ],
        reserved_range=[
            pb.DescriptorProto.ReservedRange(start=each.start, end=each.end) for each in proto.reserved_range
        ],
        reserved_name=proto.reserved_name,
        options=pb.MessageOptions(map_entry=True) if proto.options.map_entry else None,
    )


def _plain_field(each: FieldDescriptorProto) -> FieldDescriptorProto:
    return FieldDescriptorProto(
        name=each.name,
        number=each.number,
        label=each.label,
        type=each.type,
        type_name=each.type_name or None,
        default_value=each.default_value or None,
        json_name=each.json_name or json_name_of(each.name),
        oneof_index=each.oneof_index if each.HasField("oneof_index") else None,
        proto3_optional=each.proto3_optional or None,
    )


def _plain_enum(proto: pb.EnumDescriptorProto) -> pb.EnumDescriptorProto:
    numbers = [each.number for each in proto.value]
    return pb.EnumDescriptorProto(
        name=proto.name,
        value=[pb.EnumValueDescriptorProto(name=each.name, number=each.number) for each in proto.value],
        reserved_range=[
            pb.EnumDescriptorProto.EnumReservedRange(start=each.start, end=each.end) for each in proto.reserved_range
        ],
        reserved_name=proto.reserved_name,
        options=pb.EnumOptions(allow_alias=True) if len({*numbers}) != len(numbers) else None,
    )
