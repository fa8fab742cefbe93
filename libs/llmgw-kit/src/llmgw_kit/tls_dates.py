"""When a certificate ends. The standard library verifies dates, and shows them to nobody who must watch them.

Just enough of X.509's encoding (RFC 5280 section 4.1, in DER) to reach `notAfter`.
"""

import re
import ssl
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def expires_at(pem: bytes) -> float | None:
    """Unix seconds at which the first certificate of a PEM file ends; None: it cannot be told."""
    found = _PEM.search(pem)
    if found is None:
        return None
    try:
        der = ssl.PEM_cert_to_DER_cert(found[0].decode("ascii"))
        return _not_after(der)
    except (ValueError, IndexError):
        return None


def _not_after(der: bytes) -> float:
    _, certificate, _ = _element(der)
    _, signed, _ = _element(certificate)
    tag, _, after = _element(signed)
    if tag == _VERSION:
        _, _, after = _element(after)  # the serial number
    for _ in range(2):  # signature algorithm, issuer
        _, _, after = _element(after)
    tag, validity, _ = _element(after)
    if tag != _SEQUENCE:
        raise ValueError("no validity where it should be")
    _, _, end = _element(validity)
    tag, text, _ = _element(end)
    # A year of two digits is in 1950..2049 (RFC 5280 section 4.1.2.5.1); later ones have four.
    shape = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}[tag]
    read = datetime.strptime(text.decode("ascii"), shape).replace(tzinfo=UTC)
    if tag == _UTC_TIME and read.year >= 2050:
        read = read.replace(year=read.year - 100)
    return read.timestamp()


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """(tag, content, what follows)."""
    length, at = data[1], 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if at + length > len(data):
        raise ValueError("cut short")
    return data[0], data[at : at + length], data[at + length :]
