"""Run node/client.mjs against real relay workers and scripted engines: `make client-node`."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from llmgw_router.core.table import ModelRow
from tests.integration.router.harness import endpoint, router
from tests.integration.router.openai_engine import cold, cold_application, failing, openai_engine
from tests.integration.router.upstream import SSE_HEAD, Connection, Upstream, chunk, json_answer

SCRIPT = Path(__file__).parent / "node" / "client.mjs"
EMBEDDED = json.dumps({"object": "list", "data": [], "model": "m"}).encode()
BUSY = json_answer(b'{"error":{"message":"busy"}}', status=b"503 Busy", more=b"retry-after-ms: 20\r\n")


async def dying(connection: Connection) -> None:
    """Begins a stream and is gone."""
    await connection.request()
    await connection.send(SSE_HEAD + chunk(b'data: {"id":"c","choices":[{"delta":{"content":"x"}}]}\n\n'))
    connection.reset()


async def main(folder: Path) -> int:
    """The script's exit code."""
    models = (ModelRow(name="m", aliases=("gpt-4o",)), cold("org/big"))
    flaky = failing(BUSY, BUSY.replace(b"503", b"429"), json_answer(EMBEDDED))
    async with (
        Upstream(openai_engine) as sound,
        Upstream(flaky) as busy,
        Upstream(dying) as gone,
        cold_application(folder / "cold.sock", *models),
        router(folder) as one,
        router(folder, busy.port) as two,
        router(folder, gone.port) as three,
    ):
        await one.push([endpoint(0, sound.port)], models)
        urls = [f"http://127.0.0.1:{r.port}/v1" for r in (one, two, three)]
        process = await asyncio.create_subprocess_exec("node", str(SCRIPT), *urls)
        return await process.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(asyncio.run(main(Path(made))))
