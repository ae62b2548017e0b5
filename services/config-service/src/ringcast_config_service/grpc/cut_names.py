"""Certificates with a name that gRPC cuts off.

gRPC for Python passes names on as C strings: of the common name ``deploy\\0.example`` it passes ``deploy``. An
authority that signs such a name would let its owner pass for another. So the service looks for a NUL in the
certificate itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from cryptography import x509

_UNREADABLE: Final = (
    ValueError,
    TypeError,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What ``cryptography`` raises where a certificate breaks a rule (TypeError: a name of a type that none may have)."""


@lru_cache(256)
def has_cut_name(pem: bytes) -> bool:
    """Whether a common name or an alternative name in a certificate has a NUL; also where it can't be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of long names: every client can send one, and they are cut elsewhere
            return any("\0" in name for name in _names(x509.load_pem_x509_certificate(pem)))
    except _UNREADABLE:
        return True


def _names(certificate: x509.Certificate) -> Iterator[str]:
    """The common names of the owner and of the signer, and the alternative names that are text."""
    for name in (certificate.subject, certificate.issuer):
        for attribute in name.get_attributes_for_oid(x509.NameOID.COMMON_NAME):
            yield attribute.value if isinstance(attribute.value, str) else attribute.value.decode("latin-1")
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    for kind in (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier):
        yield from found.get_values_for_type(kind)
