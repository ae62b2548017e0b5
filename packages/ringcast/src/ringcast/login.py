"""How a tool logs in to NATS: by the environment variables and the file that a worker reads.

For programs that look at a cluster from outside, such as the ``ringcast`` command.
"""

from __future__ import annotations

from ringcast._common.config import resolve_jetstream_api, resolve_login

__all__ = ["resolve_jetstream_api", "resolve_login"]
