"""Whether a text is an IP network, as an expression that runs in the JVM."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sql

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_V4 = rf"^{_OCTET}(?:\.{_OCTET}){{3}}/(?:3[0-2]|[12]?\d)\z"
_V6 = r"^[0-9a-fA-F:]+/(?:12[0-8]|1[01]\d|[1-9]?\d)\z"
_GROUP = r"^[0-9a-fA-F]{1,4}\z"
_GROUPS = 8


def is_ip_network(text: Column) -> Column:
    """Whether a text is what :class:`ipaddress.IPv4Network` or ``IPv6Network`` takes with a prefix length.

    Stricter than the former in a prefix length without leading zeros, and than the latter in no IPv4 address at the
    end and no zone.
    """
    address, prefix = sql.substring_index(text, "/", 1), sql.substring_index(text, "/", -1).try_cast("int")
    four = sql.transform(sql.split(address, r"\."), lambda part: part.try_cast("int"))
    six = _v6_groups(address)
    whole_v6 = (
        (sql.size(six) == _GROUPS)
        & sql.forall(six, lambda group: group.rlike(_GROUP))
        & ~sql.contains(address, sql.lit(":::"))
    )
    values = sql.transform(six, lambda group: sql.conv(group, 16, 10).try_cast("int"))
    return (
        sql.when(text.rlike(_V4), _no_host_bits(four, prefix, 8))
        .when(text.rlike(_V6) & whole_v6, _no_host_bits(values, prefix, 16))
        .otherwise(text.isNull())
    )


def _v6_groups(address: Column) -> Column:
    """The 8 groups of an address; another number of them, or a group that is none, if it is not one."""
    halves = sql.split(address, "::", 3)
    left, right = _half(halves[0]), _half(sql.get(halves, sql.lit(1)))
    missing = _GROUPS - sql.size(left) - sql.size(right)
    filled = sql.concat(left, sql.array_repeat(sql.lit("0"), missing), right)
    none = sql.array().cast("array<string>")
    return sql.when(sql.size(halves) == 1, left).when((sql.size(halves) == 2) & (missing >= 1), filled).otherwise(none)


def _half(text: Column) -> Column:
    none = sql.array().cast("array<string>")
    return sql.when(sql.coalesce(text, sql.lit("")) == "", none).otherwise(sql.split(text, ":"))


def _no_host_bits(parts: Column, prefix: Column, bits: int) -> Column:
    """Whether every bit behind the prefix is 0, in numbers of so many bits each."""

    def is_zero(part: Column, index: Column) -> Column:
        host_bits = sql.least(sql.greatest((index + 1) * bits - prefix, sql.lit(0)), sql.lit(bits))
        return part % sql.power(sql.lit(2), host_bits).cast("int") == 0

    return sql.forall(sql.transform(parts, is_zero), lambda zero: zero)
