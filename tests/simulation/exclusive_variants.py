"""Broken machines of ``sticky_variants`` in real workers: the judge of ``exclusive`` has to notice each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

from ringcast._coordination.sticky import leader, ownership

from tests.simulation import sticky_variants
from tests.simulation.broker import Broker
from tests.simulation.sticky_variants import Variant

_NAMES: Final = (
    "no_fence",
    "trusts_the_marker",
    "takes_silence_for_the_end",
    "gives_away_early",
    "activates_before_released",
    "resumes_its_token",
    "releases_before_the_last_call",
    "leader_with_memory",
    "founds_at_once",
    "ignores_wishes",
    "table_without_compare_and_set",
)
_SUFFIX: Final = "_at_work"

VARIANTS: Final[Mapping[str, Variant]] = {f"{name}{_SUFFIX}": sticky_variants.VARIANTS[name] for name in _NAMES}


def _put_any_table(broker: Broker, name: str, key: str, value: bytes | None, last: int, among: str = "") -> int:
    """A compare-and-set, but for a table."""
    return (
        broker.overwrite(name, key, value)
        if key.endswith(".lead.table")
        else _put(broker, name, key, value, last, among)
    )


_put: Final = Broker.put


@contextmanager
def applied(name: str) -> Iterator[None]:
    """Breaks the workers of this process."""
    machines = VARIANTS[name].machines
    with ExitStack() as stack:
        for module, attribute, broken in (
            (ownership, "Fence", machines.fence),
            (ownership, "Ownership", machines.ownership),
            (leader, "LeaseEvidence", machines.evidence),
            (leader, "Leader", machines.leader),
            (Broker, "put", Broker.put if machines.is_compared else _put_any_table),
        ):
            stack.enter_context(patch.object(module, attribute, broken))
        yield
