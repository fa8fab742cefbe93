"""What the agent's settings refuse: a fault of typing stops the start, not a fetch hours later."""

import pytest

from llmgw_agent.settings import AgentSettings
from llmgw_kit.errors import StartupError
from llmgw_kit.settings import load


def test_mirrors_are_taken_without_their_last_slash() -> None:
    given = {"mirror": "http://m1:8071/, https://[fd00::2]:8071"}
    settings = load(AgentSettings, config=None, flags=given, environ={})
    assert settings.mirrors == ("http://m1:8071", "https://[fd00::2]:8071")
    assert load(AgentSettings, config=None, flags={}, environ={}).mirrors == ()


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("mirror", "m1:8071", "http://HOST:PORT"),
        ("mirror", "htp://m1:8071", "http://HOST:PORT"),
        ("mirror", "http://:8071", "http://HOST:PORT"),
        ("mirror", "http://m1:port", "http://HOST:PORT"),
        ("mirror", " , ", "http://HOST:PORT"),
        ("log_level", "loud", "'debug'"),
    ],
)
def test_refused(flag: str, value: str, says: str) -> None:
    with pytest.raises(StartupError) as refused:
        load(AgentSettings, config=None, flags={flag: value}, environ={})
    assert refused.value.text.startswith(f"--{flag.replace('_', '-')}:")
    assert says in refused.value.text
