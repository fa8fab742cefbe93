"""One sound request for each line of the table of routes, so that a test can walk them all."""

from llmgw_router.core.routes import ROUTES, Content, Route

BOUNDARY = b"bOuNd-7"
FORM_TYPE = b"multipart/form-data; boundary=" + BOUNDARY
#: Audio in which everything occurs that could be taken for something else.
AUDIO = b"RIFF\0\xff\r\n\r\n--bOuNd\r\n{" + bytes(range(256)) * 40


def form(model: bytes = b"m", *, first: bool = False, audio: bytes = AUDIO) -> bytes:
    """A transcription's form; the model stands behind the file, as some clients send it."""
    line = b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data; "
    named = line + b'name="model"\r\n\r\n' + model + b"\r\n"
    file = line + b'name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + audio + b"\r\n"
    parts = named + file if first else file + named
    return parts + line + b'name="language"\r\n\r\nen\r\n--' + BOUNDARY + b"--\r\n"


def path_of(route: Route) -> bytes:
    return route.path.replace(b"{id}", b"resp_7")


def request(
    route: Route, *, method: bytes | None = None, more: bytes = b"", query: bytes = b"", extra: bytes = b""
) -> bytes:
    """As a client sends it. `extra`: members of a JSON body, each with a comma behind it."""
    method = method or route.methods[0]
    head = b"%b %b%b HTTP/1.1\r\nhost: router\r\n%b" % (method, path_of(route), query, more)
    if route.content is Content.HELD and method != b"POST":
        return head + b"\r\n"
    if route.content in (Content.FORM, Content.EITHER):
        body, kind = form(), FORM_TYPE
    else:
        body, kind = b'{%b"model":"m"}' % extra, b"application/json"
    return head + b"content-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


#: Each line with each of its methods.
EACH = [(route, method) for route in ROUTES for method in route.methods]
