"""What leases cost grows with the workers, not with their square, and a death is known to all after a lease."""

from __future__ import annotations

from ringcast_wire import limits

from tests.simulation.lease_traffic import measure


def test_an_idle_worker_hears_as_much_in_a_large_fleet_of_many_stores_as_in_a_small_one() -> None:
    small, large = measure(1, 8), measure(10, 40)
    assert large.messages_per_s < small.messages_per_s * 1.05 + 0.1
    assert large.messages_per_s < 4.0, "three neighbours and two others every 2.5 s, and its own refreshes"


def test_all_know_of_a_death_soon_after_the_lease_has_ended() -> None:
    one, many = measure(1, 40), measure(1, 40, deaths=20)
    assert limits.LEASE_TTL_S / 2 <= one.taken_over_s <= limits.LEASE_SEEN_TO_END_S + 0.5
    assert many.taken_over_s <= limits.LEASE_SEEN_TO_END_S + 2.0  # one ring after the other
