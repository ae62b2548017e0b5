"""The calls for the policies of stores."""

from __future__ import annotations

import msgspec
from ringcast_service import Context
from ringcast_wire import POLICY_RANGES, StorePolicy
from ringcast_wire.grpc import ConfigServiceServicer, pb

from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.grpc.input import answer
from ringcast_config_service.grpc.rows import authorship
from ringcast_config_service.policies import Policies, PolicyState


class PolicyCalls(ConfigServiceServicer):
    """Shows and changes what stores allow."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    async def GetStorePolicy(self, request: pb.GetStorePolicyRequest, context: Context) -> pb.StorePolicyInfo:
        return _message(await answer(context, self._policies.show(request.name)))

    async def SetStorePolicy(self, request: pb.SetStorePolicyRequest, context: Context) -> pb.StorePolicyInfo:
        given = request.policy
        wanted = StorePolicy(**{name: getattr(given, name) for name in POLICY_RANGES if given.HasField(name)})
        by = authorship(caller_of(context))
        return _message(await answer(context, self._policies.change(request.name, wanted, request.lift, by=by)))


def _message(state: PolicyState) -> pb.StorePolicyInfo:
    policy = pb.StorePolicy(**msgspec.structs.asdict(state.policy))
    return pb.StorePolicyInfo(name=state.store, policy=policy, rows=state.rows, bytes=state.bytes, keys=state.keys)
