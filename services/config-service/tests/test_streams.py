"""What the streams and buckets of a store are configured to be."""

from __future__ import annotations

from ringcast_config_service.nats.streams import StreamSizes, groups, leases, of_store, owners, wishes
from ringcast_wire import names


def test_data_and_leases_have_servers_of_their_own() -> None:
    sizes = StreamSizes(lease_tags=("keeps:leases",), data_tags=("keeps:data", "fast"))
    found = {
        config.name: config.placement.tags if config.placement is not None else None
        for config in (leases(sizes), *of_store("s", sizes), groups("s", sizes), owners("s", sizes), wishes("s"))
    }
    on_leases, on_data = ["keeps:leases"], ["keeps:data", "fast"]
    assert found == {
        "KV_config_leases": on_leases,
        "KV_config_meta_s": None,
        names.notify_stream("s"): on_data,
        "KV_config_nodes_s": on_leases,
        names.dead_stream("s"): on_data,
        "KV_config_groups_s": on_data,
        "KV_config_owners_s": on_leases,
        "KV_config_wishes_s": None,
    }
