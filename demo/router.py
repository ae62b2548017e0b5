"""One worker process of the demo of releases: a router, which can't take a route to a backend that is gone."""

from __future__ import annotations

import asyncio
import json
import logging

import ringcast

from demo.release_lists import BACKENDS
from demo.worker import Application, main


class Router(Application):
    """Keeps the routes, and refuses one that it can't take: its handler raises."""

    def on_change(self, change: ringcast.Change) -> None:
        """The handler."""
        if not change.deleted and (backend := json.loads(change.value or "{}")["backend"]) not in BACKENDS:
            raise ValueError(f"there is no backend {backend}")
        super().on_change(change)


if __name__ == "__main__":
    # The demo shows what the service says of the routes that are refused; a line for each would hide that.
    logging.getLogger("ringcast").addHandler(logging.NullHandler())
    asyncio.run(main(Router()))
