"""Whether a text of configuration or of a controller can be one header's name, value or bearer credential.

A line end in one would begin a header of its own; what is not ASCII cannot be sent at all.
"""

import re
from typing import Final

#: RFC 9110 section 5.6.2.
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Visible characters, and blanks between them.
_VALUE: Final = re.compile(r"[!-~]+(?: +[!-~]+)*")
_TOKEN: Final = re.compile(r"[!-~]+")

#: What is said of a credential that is none; never the credential.
NO_CREDENTIAL: Final = (
    "a credential that cannot be sent: it is empty, or holds blanks, control characters or what is not ASCII"
)


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def is_value(text: str) -> bool:
    return _VALUE.fullmatch(text) is not None


def is_credential(text: str) -> bool:
    """Of `Authorization: Bearer`."""
    return _TOKEN.fullmatch(text) is not None
