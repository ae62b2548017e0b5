"""A client whose certificate is replaced in its file shows the new one, and nobody opens it again."""

from __future__ import annotations

from pathlib import Path

import trustme
from ringcast_client import ConfigServiceClient
from ringcast_testkit import ConfigServiceProcess, NatsServer, until
from ringcast_wire.grpc import ServiceLogin


def issue(authority: trustme.CA, name: str, cert: Path, key: Path) -> None:
    """Writes what the authority signs."""
    issued = authority.issue_cert(f"{name}.example.org", "127.0.0.1", common_name=name)
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))


async def test_a_client_takes_up_a_certificate_that_was_replaced(tmp_path: Path, nats_server: NatsServer) -> None:
    """Both authorities count for a while: the file of those that may sign has both."""
    old, new = trustme.CA(), trustme.CA()
    ca, both, cert, key = (tmp_path / name for name in ("ca", "both", "cert", "key"))
    old.cert_pem.write_to_path(str(ca))
    both.write_bytes(old.cert_pem.bytes() + new.cert_pem.bytes())
    issue(old, "service", tmp_path / "service-cert", tmp_path / "service-key")
    issue(old, "first", cert, key)
    options = ("--tls-cert", str(tmp_path / "service-cert"), "--tls-key", str(tmp_path / "service-key"))
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(
        tmp_path, nats_url=nats_server.url, database=database, options=(*options, "--client-ca", str(both))
    ) as service:
        login = ServiceLogin(tls_ca_file=str(ca), tls_cert_file=str(cert), tls_key_file=str(key))
        async with ConfigServiceClient(service.address, login=login) as client:
            assert (await client.who_am_i()).principal == "certificate:first"
            issue(new, "second", cert, key)

            async def is_second() -> bool:
                return (await client.who_am_i()).principal == "certificate:second"

            await until(is_second)
            key.unlink()  # what it has goes on counting
            assert (await client.who_am_i()).principal == "certificate:second"
