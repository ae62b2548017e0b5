"""The settings of the auth callout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast_service import ConfigError, between, duration_s, setting
from ringcast_wire import InvalidInputError, NatsLogin, limits, names
from ringcast_wire.grpc import read_login_file
from ringcast_wire.worker_tokens import read_worker_tokens

if TYPE_CHECKING:
    from ringcast_config_service.callout.keys import Sealer, Signer


@dataclass(frozen=True, slots=True, kw_only=True)
class CalloutSettings:
    """The callout is on where a file of tokens is named; that one is read again when it changes."""

    token_file: str = setting(
        "",
        "Tokens of workers and agents that NATS is to let in, a line each (see the README); none: no auth callout.",
        flag="callout-tokens",
        metavar="FILE",
    )
    issuer_seed_file: str = setting(
        "",
        "Seed of the account key (SA…) that signs what workers may do; NATS knows it as issuer.",
        flag="callout-issuer",
        metavar="FILE",
    )
    xkey_seed_file: str = setting(
        "",
        "Seed of the curve key (SX…) that NATS encrypts its requests for; none: they come in the clear.",
        flag="callout-xkey",
        metavar="FILE",
    )
    user: str = setting("callout", "User on NATS of the connection that serves the callout.", flag="callout-user")
    password: str = setting(
        "",
        "Its password; best given by the environment, where no process list shows it.",
        flag="callout-password",
        secret=True,
    )
    password_file: str = setting(
        "",
        "File whose first line is that password; it is read again for each connection.",
        flag="callout-password-file",
        metavar="FILE",
    )
    valid_s: float = duration_s(
        "10m",
        "How long a worker's permissions hold; then it logs in again, up to a tenth earlier.",
        flag="callout-valid",
        allowed=between(2, 7 * 86_400),
    )
    requests: int = setting(
        1_024,
        "Requests of NATS that may wait for their turn; workers of more are refused when NATS has waited long enough.",
        flag="callout-requests",
        allowed=between(1, 65_536),
    )
    partitions: int = setting(
        limits.MAX_PARTITIONS,
        "Largest partition count of the stores: how many consumers a worker may need.",
        flag="callout-partitions",
        allowed=between(1, 4 * limits.MAX_PARTITIONS),
    )
    consumer_prefix: str = setting(
        "ringcast", "What the names of workers' consumers begin with.", flag="callout-consumer-prefix"
    )

    @property
    def on(self) -> bool:
        """Whether this instance serves the callout."""
        return bool(self.token_file)

    def check(self) -> None:
        """Looks whether the settings make sense together, and the files can be used.

        Raises:
            ConfigError: they don't; the message names the setting.
        """
        if not self.on:
            if self.issuer_seed_file or self.xkey_seed_file:
                raise ConfigError("callout_issuer or callout_xkey is given without callout_tokens: it turns them on")
            return
        password = self.password or self.password_file
        for name, value in (("callout_issuer", self.issuer_seed_file), ("callout_password", password)):
            if not value:
                raise ConfigError(f"callout_tokens is given without {name}: both are needed")
        try:
            NatsLogin(user=self.user, password=self.password, password_file=self.password_file).check_login()
            names.check_name("callout_consumer_prefix", self.consumer_prefix)
            read_worker_tokens(self.token_file)
        except InvalidInputError as error:
            raise ConfigError(str(error)) from error
        self.signer()
        self.sealer()

    def signer(self) -> Signer:
        """The key that signs.

        Raises:
            ConfigError: the file holds none.
        """
        from ringcast_config_service.callout.keys import Signer  # its libraries take time, and the callout may be off

        try:
            return Signer(_seed("callout_issuer", self.issuer_seed_file))
        except InvalidInputError as error:
            raise ConfigError(f"callout_issuer: {error}") from error

    def sealer(self) -> Sealer | None:
        """The key that decrypts; ``None``: requests are not encrypted.

        Raises:
            ConfigError: the file holds none.
        """
        if not self.xkey_seed_file:
            return None
        from ringcast_config_service.callout.keys import Sealer

        try:
            return Sealer(_seed("callout_xkey", self.xkey_seed_file))
        except InvalidInputError as error:
            raise ConfigError(f"callout_xkey: {error}") from error


def _seed(name: str, path: str) -> str:
    return read_login_file(name, path).decode("ascii", "replace").strip()
