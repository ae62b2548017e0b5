"""A change of the policies of a store."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from ringcast_wire import StorePolicy


class PolicyChange(NamedTuple):
    """Policies of ``wanted`` that are there are set, those named in ``lift`` are removed, the others stay."""

    wanted: StorePolicy
    lift: frozenset[str] = frozenset()

    def of(self, policy: StorePolicy) -> StorePolicy:
        """What becomes of the policies of a store."""
        return msgspec.structs.replace(policy, **self.details())

    def details(self) -> dict[str, Any]:
        """What changes, with ``None`` for a policy that is removed."""
        given = {name: value for name, value in msgspec.structs.asdict(self.wanted).items() if value is not None}
        return given | dict.fromkeys(sorted(self.lift))
