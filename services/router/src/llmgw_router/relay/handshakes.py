"""Closing a listener so that nobody who was let in is thrown out.

The kernel completes a handshake before anybody accepts it, and closing the listener resets what it still
holds: connections that wait to be accepted, and handshakes whose last segment is on its way. Linux can move
them to another listener of the group (`net.ipv4.tcp_migrate_req`, 5.14), but at a stop there is none. So
beginnings are refused first, for as long as a handshake takes, and the listener goes on accepting meanwhile.
"""

import socket
import struct

#: How long a handshake that has begun may still take to complete: above the round trip of most networks.
SETTLE_S = 0.2

_SO_ATTACH_FILTER = 26
# Classic BPF (net/core/filter.c): for a TCP socket the packet begins with the TCP header, whose byte 13 holds
# the flags. SYN without ACK is a beginning, and is dropped; all else passes.
_PROGRAM = (
    (0x30, 0, 0, 13),  # A = byte 13
    (0x54, 0, 0, 0x12),  # A &= SYN | ACK
    (0x15, 0, 1, 0x02),  # if A != SYN skip one
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # pass whole
)


def refuse_beginnings(listener: socket.socket) -> bool:
    """Drop SYNs that come for this listener from now on; the sender tries again after a second, and finds the
    port closed. False: the kernel does not do that, and handshakes in progress will be reset."""
    # Needed once in a process's life, at its end.
    import ctypes

    code = b"".join(struct.pack("HBBI", *step) for step in _PROGRAM)
    room = ctypes.create_string_buffer(code, len(code))
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_PROGRAM), ctypes.addressof(room))
        )
    except OSError:
        return False
    return True
