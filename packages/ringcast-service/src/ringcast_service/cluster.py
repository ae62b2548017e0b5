"""The settings of a process that registers in the cluster. Apart from the rest: only it needs ringcast-meta."""

from __future__ import annotations

import socket
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ringcast_meta import MetadataStore, check_address, open_store
from ringcast_meta.cluster import is_member_address
from ringcast_wire import InvalidInputError, NatsLogin, shown
from ringcast_wire.grpc import TLS_PREFIX

from ringcast_service._errors import ConfigError
from ringcast_service._settings import setting

if TYPE_CHECKING:
    from ringcast_meta.etcd import EtcdLogin


_EVERYWHERE: Final = ("", "0.0.0.0", "[::]", "::")  # noqa: S104


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The registration is on where a store is named."""

    store: str = setting(
        "",
        "Metadata store where this process says that it is there: nats://host:4222/config_cluster, or"
        " etcd://host:2379/ringcast (extra etcd); none: nowhere.",
        flag="cluster-store",
        metavar="ADDRESS",
    )
    address: str = setting(
        "",
        "Where others reach this process, HOST:PORT, as they find it there; tls:// before it for TLS. By default where"
        " it listens, and of 0.0.0.0 the name of the host.",
        flag="cluster-address",
        metavar="ADDRESS",
    )
    etcd_user: str = setting("", "User at etcd; needs a password.", flag="cluster-etcd-user")
    etcd_password: str = setting(
        "",
        "Its password; best given by the environment, where no process list shows it.",
        flag="cluster-etcd-password",
        secret=True,
    )
    etcd_tls_ca_file: str = setting(
        "", "Certificates that sign etcd's, with etcd+tls://.", flag="cluster-etcd-tls-ca-file", metavar="FILE"
    )
    etcd_tls_cert_file: str = setting(
        "", "Certificate to show to etcd.", flag="cluster-etcd-tls-cert-file", metavar="FILE"
    )
    etcd_tls_key_file: str = setting("", "Its key.", flag="cluster-etcd-tls-key-file", metavar="FILE")

    @property
    def on(self) -> bool:
        """Whether this process registers."""
        return bool(self.store)

    def check(self) -> None:
        """Looks whether the settings make sense together.

        Raises:
            ConfigError: they don't; the message names the setting.
        """
        if not self.on:
            return
        if self.address and not is_member_address(self.address):
            raise ConfigError(
                f"cluster_address {shown(self.address)} is not an address: HOST:PORT is expected, of up to 256"
                " characters, and tls:// may stand before it"
            )
        if self.address and self.address.removeprefix(TLS_PREFIX).rpartition(":")[0] in _EVERYWHERE:
            raise ConfigError(
                f"cluster_address {shown(self.address)} means the host of each client: name one that others reach"
            )
        try:
            if check_address(self.store) == "memory:":
                raise ConfigError("cluster_store memory: is of one process: nobody else would see this one")
            if self.store.startswith("etcd"):
                self._etcd_login().check_login()
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"cluster_store at etcd needs the package {error.name}: pip install 'ringcast-meta[etcd]'"
            ) from error
        except InvalidInputError as error:
            raise ConfigError(f"cluster_store: {error}") from error

    def reached_at(self, listens: str, *, uses_tls: bool = False) -> str:
        """The address that stands in the registration, of a process that listens there."""
        if self.address:
            return self.address
        host, _, port = listens.rpartition(":")
        # Where every interface is meant, the address means something to this host alone.
        host = socket.gethostname() if host in _EVERYWHERE else host
        return f"{TLS_PREFIX if uses_tls else ''}{host}:{port}"

    def open(
        self, nats_login: NatsLogin, *, inbox_prefix: str, jetstream_api: str = "$JS.API", replicas: int = 0
    ) -> AbstractAsyncContextManager[MetadataStore]:
        """Opens the store. With ``replicas`` a bucket of NATS that is not there is made, with so many copies.

        The login, the prefix of inboxes and the place of JetStream's API are those of the process at NATS.
        """
        if self.store.startswith("etcd"):
            return open_store(self.store, login=self._etcd_login())
        return open_store(
            self.store,
            login=nats_login,
            create=replicas > 0,
            replicas=replicas or 1,
            inbox_prefix=inbox_prefix,
            jetstream_api=jetstream_api,
        )

    def _etcd_login(self) -> EtcdLogin:
        from ringcast_meta.etcd import EtcdLogin

        return EtcdLogin(
            user=self.etcd_user,
            password=self.etcd_password,
            tls_ca_file=self.etcd_tls_ca_file,
            tls_cert_file=self.etcd_tls_cert_file,
            tls_key_file=self.etcd_tls_key_file,
        )
