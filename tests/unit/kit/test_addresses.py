"""HOST:PORT as people mistype it."""

import pytest

from llmgw_kit.addresses import HostPort, parse_host_port, parse_host_ports
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.names import did_you_mean
from llmgw_kit.postgres import safe_dsn


@pytest.mark.parametrize(
    ("given", "host", "port", "shown"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80, "127.0.0.1:80"),
        (" host:0 ", "host", 0, "host:0"),
        ("[::1]:8080", "::1", 8080, "[::1]:8080"),
        ("*:7070", "*", 7070, "*:7070"),
    ],
)
def test_parsed_and_shown(given, host, port, shown):
    parsed = parse_host_port(given, what="--listen")
    assert parsed == HostPort(host, port)
    assert str(parsed) == shown


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("10.0.0.4", "has no port"),
        ("8080", "8080 has no host"),
        (":80", "has no host"),
        ("h:x", "port 'x'"),
        ("h:65536", "port '65536'"),
        ("::1:80", "not HOST:PORT"),
        ("h:", "port ''"),
        ("http://h:1", "is a URL"),
    ],
)
def test_refused_naming_what_was_given(given, said):
    with pytest.raises(InvalidRequest) as refused:
        parse_host_port(given, what="--listen")
    assert said in refused.value.text
    assert refused.value.text.startswith("--listen ")


def test_lists_and_loopback():
    assert len(parse_host_ports("a:1, b:2", what="--controller")) == 2
    with pytest.raises(InvalidRequest, match="is empty"):
        parse_host_ports(" , ", what="--controller")
    assert HostPort("127.0.0.2", 1).loopback
    assert not HostPort("0.0.0.0", 1).loopback


def test_the_nearest_name():
    assert did_you_mean("listn", ["listen", "drain"]) == " (did you mean 'listen'?)"
    assert did_you_mean("zzz", ["listen"]) == ""


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://u:secret@h:1/d?x=y", "postgresql://u@h:1/d"),
        ("postgresql://u:p@ss@h/d", "postgresql://u@h/d"),
        ("postgresql://h/d?password=x", "postgresql://h/d"),
        ("postgresql://u:p//ss@h/d", "postgresql://u@h/d"),
        ("postgresql://u@h/d?password=p@ss", "postgresql://..."),
        ("postgresql://u:p?x@h/d", "postgresql://..."),
        ("host=h password=hush", "(no scheme://)"),
    ],
)
def test_a_dsn_is_shown_without_its_password(dsn, shown):
    assert safe_dsn(dsn) == shown
