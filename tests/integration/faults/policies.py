"""The limits of the store, where a system has them: low enough that the load meets them all the time."""

from __future__ import annotations

from typing import Final

from ringcast_client import ConfigServiceClient
from ringcast_wire import LimitExceededError, StorePolicy

ROWS_A_KEY: Final = 200
"""Fewer than the load has ids for."""


def most_rows(keys: int) -> int:
    """What the store may have."""
    return ROWS_A_KEY * keys


def policy(keys: int) -> StorePolicy:
    """What the store is created with."""
    return StorePolicy(max_rows=most_rows(keys), max_keys=keys, max_rows_per_second=1_000_000)


async def not_exact(client: ConfigServiceClient, store: str, key: str, most: int, live: int) -> list[str]:
    """Fills the store up, and tells in sentences where it does not take exactly as many rows as it may."""
    if live > most:
        return [f"the store has {live} rows, {most} are allowed"]
    for number in range(most - live):
        try:
            await client.put(store, key, f"p-{number}", "fills up")
        except LimitExceededError as error:
            return [f"the store has {live + number} rows of {most} that are allowed, and takes no more: {error}"]
    try:
        await client.put(store, key, "p-over", "one too many")
    except LimitExceededError:
        return []
    return [f"the store took a row beyond the {most} that are allowed"]
