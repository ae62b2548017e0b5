"""A real etcd server from the machine (Debian's package etcd-server), on free ports of 127.0.0.1."""

from __future__ import annotations

import shutil
from pathlib import Path

from ringcast_testkit._ports import ReservedPort
from ringcast_testkit._process import ManagedProcess, ManagedServer


def etcd_binary() -> Path | None:
    """The server on ``PATH``; ``None`` if there is none."""
    found = shutil.which("etcd")
    return Path(found) if found else None


class EtcdServer(ManagedServer):
    """A cluster of one; ``directory`` keeps its data over restarts, ``flags`` are further ones of its command line.

    ``scheme`` is ``https`` for one whose flags name certificates.
    """

    def __init__(self, directory: Path, *flags: str, scheme: str = "http") -> None:
        self._directory = directory
        self._flags = flags
        self._scheme = scheme
        self._port, self._peer_port = ReservedPort(), ReservedPort()

    @property
    def port(self) -> int:
        """TCP port of client connections; it stays the same over restarts."""
        return self._port.number

    @property
    def address(self) -> str:
        """``127.0.0.1:<port>``."""
        return self._port.address

    def start(self) -> None:
        """Starts the server and returns once it serves.

        Raises:
            FileNotFoundError: there is no etcd on this machine.
        """
        binary = etcd_binary()
        if binary is None:
            raise FileNotFoundError("etcd is not on PATH: install Debian's package etcd-server")
        client, peer = f"{self._scheme}://{self._port.address}", f"http://{self._peer_port.address}"
        words = ["--data-dir", str(self._directory), "--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        words += ["--initial-cluster", f"default={peer}", *self._flags]
        process = ManagedProcess("etcd", [binary, *words])
        self._process = process
        # It says "serving insecure client requests", or "serving client requests securely", by its version.
        process.wait_until(lambda: any("ready to serve client requests" in line for line in list(process.log)))
