"""One client of the mirror's benchmark, in a process of its own: connects, says so, waits for a line, reads
the file once and throws it away, and prints the seconds from its request to the last byte.

    python mirror_client.py PORT PATH BYTES [CA CERT KEY]
"""

import socket
import ssl
import sys
import time

READ_BYTES = 1 << 19


def main() -> None:
    port, path, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sock: socket.socket = socket.create_connection(("127.0.0.1", port))
    if len(sys.argv) > 4:
        context = ssl.create_default_context(cafile=sys.argv[4])
        context.load_cert_chain(sys.argv[5], sys.argv[6])
        sock = context.wrap_socket(sock, server_hostname="127.0.0.1")
    print("connected", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n".encode())
    buffer = bytearray(READ_BYTES)
    taken = sock.recv_into(buffer)
    head, _, body = bytes(buffer[:taken]).partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise SystemExit(f"answered {head!r}")
    taken = len(body)
    while count := sock.recv_into(buffer):
        taken += count
    took = time.monotonic() - began
    if taken != size:
        raise SystemExit(f"{taken} bytes of {size}")
    print(took, flush=True)


if __name__ == "__main__":
    main()
