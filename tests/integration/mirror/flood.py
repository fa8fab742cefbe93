"""A server that never stops answering, in a process of its own. Prints its port."""

import socketserver

#: By path: what is sent first, and then for ever.
FLOODS = {
    b"/interim": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" * 1000),
    b"/continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    b"/answers": (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 1000),
    b"/lines": (b"HTTP/1.1 200 OK\r\n", b"".join(b"X-%d: a\r\n" % n for n in range(1000))),
}


class Flood(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            more = self.request.recv(65536)
            if not more:
                return
            head += more
        path = head.split()[1].partition(b"?")[0]
        first, then = FLOODS.get(path, FLOODS[b"/interim"])
        try:
            self.request.sendall(first)
            while True:
                self.request.sendall(then)
        except OSError:
            return


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Flood) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
