"""What names content that is being fetched: in leases, at parts on the disk, in logs.

A URL is named by its hash alone. A signed one is a credential, and leases stand in a database that others
read.
"""

import hashlib
import re

from llmgw_mirror.core.versions import Source

_BY_URL = "url:"
_HASHED = re.compile(r"url:[0-9a-f]{64}")


def content_key(source: Source) -> str:
    """What is fetched at most once at a time: the content where its hash is published, else the URL."""
    if source.sha256 is not None:
        return f"sha256:{source.sha256}"
    return _hashed(f"{_BY_URL}{source.url}")


def key_today(key: str) -> str:
    """A key as a part's label has it; older releases wrote the URL itself."""
    return _hashed(key) if key.startswith(_BY_URL) and not _HASHED.fullmatch(key) else key


def key_id(key: str) -> str:
    """How the files of a key's parts begin. As it ever was: parts of older releases are gone on with."""
    if _HASHED.fullmatch(key):
        return key.removeprefix(_BY_URL)[:32]
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _hashed(key: str) -> str:
    """Of the whole key, prefix included, since that is what names parts."""
    return _BY_URL + hashlib.sha256(key.encode()).hexdigest()
