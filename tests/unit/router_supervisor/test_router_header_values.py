"""What configuration and controllers put into headers can only be one value of one header."""

from pathlib import Path

import pytest
import yaml

from llmgw.v1 import routing_pb2 as pb
from llmgw_kit.errors import StartupError
from llmgw_kit.settings import load
from llmgw_router.settings import RouterSettings, check
from llmgw_router.wire import BadRoutes, endpoint_row

UNSENDABLE = [
    "",
    "s3cret\r\nx-inject: yes",
    "s3cret\n",
    "s3cret\x00",
    "s3 cret",
    " s3cret",
    "s3crèt",
    "\x7fs3cret",
]


def made(tmp_path: Path, **file: object) -> RouterSettings:
    path = tmp_path / "router.yaml"
    path.write_text(yaml.safe_dump({"endpoints": ["a=http://h:1=m"], **file}))
    settings = load(RouterSettings, config=path, flags={})
    check(settings)
    return settings


def refusal(tmp_path: Path, **file: object) -> str:
    with pytest.raises(StartupError) as caught:
        made(tmp_path, **file)
    return "\n".join(caught.value.lines())


@pytest.mark.parametrize("credential", UNSENDABLE, ids=repr)
def test_a_credential_that_is_no_bearer_token_is_refused_and_not_repeated(
    tmp_path: Path, credential: str
) -> None:
    entry = {"id": "a", "url": "http://h:1", "models": ["m"], "credential": credential}
    says = refusal(tmp_path, endpoints=[entry])
    assert "endpoint a" in says
    assert "credential" in says
    assert "s3" not in says


@pytest.mark.parametrize("credential", UNSENDABLE, ids=repr)
def test_a_controller_cannot_send_one_either(credential: str) -> None:
    message = pb.Endpoint(
        endpoint_id="r@2", replica_id="r", group_epoch=2, model="m", url="http://h:1", credential=credential
    )
    with pytest.raises(BadRoutes, match=r"r@2.*credential") as caught:
        endpoint_row(message)
    assert "s3" not in str(caught.value)


def test_any_visible_token_is_a_credential(tmp_path: Path) -> None:
    token = "".join(chr(code) for code in range(0x21, 0x7F))
    entry = {"id": "a", "url": "http://h:1", "models": ["m"], "credential": token}
    assert made(tmp_path, endpoints=[entry]).static_endpoints()[0].credential == token


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"authorization": "Bearer s3cret\r\nx-inject: yes"}, "authorization"),
        ({"authorization": "s3cret\n"}, "authorization"),
        ({"authorization": ""}, "authorization"),
        ({"authorization": "s3crèt"}, "authorization"),
        ({"x y": "s3cret"}, "x y"),
        ({"": "s3cret"}, "header name"),
        ({"x:y": "s3cret"}, "x:y"),
        ({"Content-Length": "3"}, "Content-Length"),
        ({"host": "s3cret"}, "host"),
    ],
    ids=str,
)
def test_headers_of_exports_are_headers(tmp_path: Path, headers: dict[str, str], says: str) -> None:
    told = refusal(tmp_path, tracing={"endpoint": "http://c:4318", "headers": headers})
    assert says in told
    assert "s3cr" not in told


def test_a_header_of_exports_may_hold_blanks(tmp_path: Path) -> None:
    settings = made(
        tmp_path, tracing={"endpoint": "http://c:4318", "headers": {"authorization": "Bearer a b"}}
    )
    assert settings.tracing.headers["authorization"].get_secret_value() == "Bearer a b"


@pytest.mark.parametrize("name", ["authorization", "Cookie", "api-key", "X-Api-Key", "proxy-authorization"])
def test_a_secret_is_no_session(tmp_path: Path, name: str) -> None:
    """Never kept, and sessions are."""
    assert "session_header" in refusal(tmp_path, choosing={"session_header": name})
