"""Keys of the file, in a whole router: lists by key (W59), and a file that is read again while it serves."""

import asyncio
from pathlib import Path

import openai
import pytest

from llmgw_kit.testing.processes import Cage

from .process import RouterProcess, call, engine

ALL, SOME = "sk-llmgw-may-use-everything", "sk-llmgw-may-use-only-one"


async def models(router: RouterProcess, key: str | None, path: str = "/v1/models") -> tuple[int, list[str]]:
    headers = {} if key is None else {"x-api-key": key}
    answer = await call("GET", f"{router.url}{path}", headers=headers)
    if answer.status != 200:
        return answer.status, []
    return 200, [one["id"] for one in answer.json.get("data", [answer.json])]


def write(config: Path, url: str, *keys: str) -> None:
    listed = "".join(f"  - {one}\n" for one in keys)
    config.write_text(
        f"endpoints: ['a={url}=m,org/m']\nlisten: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\nworkers: 1\n"
        f"keys:\n{listed}"
    )
    config.chmod(0o600)


async def test_lists_hold_what_a_key_may_use_and_a_key_goes_with_its_line(cage: Cage, tmp_path: Path) -> None:
    config = tmp_path / "router.yaml"
    some = f"{{id: some, key: {SOME}, models: [org/m]}}"
    async with engine(cage, tmp_path, "m", "org/m") as url:
        write(config, url, ALL, some)
        router = await RouterProcess.spawn(cage, tmp_path, "--config", str(config)).ready()
        assert await models(router, None) == (401, [])
        assert await models(router, ALL) == (200, ["m", "org/m"])
        assert await models(router, SOME) == (200, ["org/m"])
        assert (await models(router, SOME, "/v1/models/org/m"))[0] == 200
        assert (await models(router, SOME, "/v1/models/m"))[0] == 404
        assert (await call("GET", f"{router.url}/healthz")).status == 200

        with openai.OpenAI(base_url=f"{router.url}/v1", api_key=SOME, max_retries=0) as client:
            asked = [{"role": "user", "content": "hello"}]
            said = await asyncio.to_thread(client.chat.completions.create, model="org/m", messages=asked)  # type: ignore[call-overload]
            assert said.choices[0].message.content
            with pytest.raises(openai.NotFoundError):
                await asyncio.to_thread(client.chat.completions.create, model="m", messages=asked)  # type: ignore[call-overload]

        write(config, url, some)
        async with asyncio.timeout(30):
            while (await models(router, ALL))[0] != 401:
                await asyncio.sleep(0.05)
        assert await models(router, SOME) == (200, ["org/m"])
        assert SOME not in router.log
        await asyncio.to_thread(router.child.stop, grace_s=10.0)
