"""TLS handshakes that fail: gRPC has no hook for them in Python, and says so on standard error alone."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

from ringcast_config_service.refusals import NO_CERTIFICATE, NO_HANDSHAKE, REFUSED_CERTIFICATE

_FAILED: Final = re.compile(rb"Handshake failed with error \w+: error:[^:]*:[^:]*:[^:]*:(\w+)(?:: ([^\r\n]*))?")
_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": NO_CERTIFICATE,
    "CERTIFICATE_VERIFY_FAILED": REFUSED_CERTIFICATE,
}
_MAX_LINE: Final = 64 * 1024
_MAX_ERROR: Final = 200
_END_S: Final = 1.0
_HIDDEN_BY: Final = ("NONE", "ERROR")


class Handshakes:
    """Tells of each failed one: ``on_failed(reason, error)``, from a thread of its own.

    ``reason`` is one of ``HANDSHAKE_REASONS``; ``error`` is what the TLS library says, at most 200 characters. It does
    not say whose the connection was.
    """

    def __init__(self) -> None:
        self.on_failed: Callable[[str, str], None] = lambda reason, error: None

    @property
    def hidden_by(self) -> str:
        """What keeps gRPC from saying anything, as in the environment; empty: nothing does."""
        verbosity = os.environ.get("GRPC_VERBOSITY", "")
        return f"GRPC_VERBOSITY={verbosity}" if verbosity.upper() in _HIDDEN_BY else ""

    @contextlib.contextmanager
    def watch_stderr(self) -> Iterator[None]:
        """Reads meanwhile what libraries write to standard error, and passes on what is not of handshakes.

        What Python writes (log lines, tracebacks) goes there directly, so that nothing of it is lost when the process
        is killed. For the one owner of a process: two at once would take each other's.
        """
        direct, ours = os.dup(2), sys.stderr
        source, sink = os.pipe()
        os.dup2(sink, 2)
        os.close(sink)
        sys.stderr = open(direct, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        reader = threading.Thread(target=self._read, args=(source, direct), name="grpc-errors", daemon=True)
        reader.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # nobody reads any more
                sys.stderr.flush()
            sys.stderr = ours
            os.dup2(direct, 2)  # the last end to write to: the reader comes to its end
            reader.join(_END_S)

    def _read(self, source: int, direct: int) -> None:
        rest = b""
        while data := os.read(source, _MAX_LINE):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _MAX_LINE:
                lines, rest = [*lines, rest], b""
            others = b"".join(line + b"\n" for line in lines if not self._tell(line))
            if others:
                _write(direct, others)
        if rest:
            _write(direct, rest)

    def _tell(self, line: bytes) -> bool:
        """Whether a line was of a handshake."""
        found = _FAILED.search(line)
        if found is None:
            return False
        kind, more = found[1].decode(), (found[2] or b"").decode(errors="replace")
        self.on_failed(_REASONS.get(kind, NO_HANDSHAKE), f"{kind}: {more}"[:_MAX_ERROR])
        return True


def _write(to: int, data: bytes) -> None:
    """What can't be written is lost, as it would have been; the reader must go on, or gRPC would wait for it."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(to, data) :]
