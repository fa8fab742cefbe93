"""What the lab says to the person: where things listen, and what to paste next. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_lab.ask import QUESTION, SYSTEM
from llmgw_lab.layout import CONTROLLERS, Layout, Node


def welcome(layout: Layout, part: str, nodes: Sequence[Node]) -> str:
    """Beside a part that came up."""
    if part == "router":
        return f"client API {layout.router_url}, admin http://{layout.address('router-admin')}"
    if part == "mirror":
        return f"gRPC {layout.address('mirror')}, weights http://{layout.address('mirror-http')}"
    if part in CONTROLLERS:
        return f"gRPC {layout.address(part)}"
    node = next(node for node in nodes if node.node_id == part)
    counts = {gpu.gpu_class: 0 for gpu in node.gpus}
    for gpu in node.gpus:
        counts[gpu.gpu_class] += 1
    return "agent with declared GPUs: " + ", ".join(f"{n} x {name}" for name, n in counts.items())


def paste(layout: Layout, model: str) -> str:
    """What to try next."""
    return f"""
The lab is up. Try:

  curl -N {layout.router_url}/v1/chat/completions -H 'Content-Type: application/json' -d '{{
    "model": "{model}", "stream": true, "temperature": 0, "max_tokens": 64,
    "messages": [{{"role": "system", "content": "{SYSTEM}"}},
                 {{"role": "user", "content": "{QUESTION}"}}]}}'

  .venv/bin/python - <<'EOF'
from openai import OpenAI

client = OpenAI(base_url="{layout.router_url}/v1", api_key="none")
answer = client.chat.completions.create(
    model="{model}",
    temperature=0,
    messages=[
        {{"role": "system", "content": "{SYSTEM}"}},
        {{"role": "user", "content": "{QUESTION}"}},
    ],
)
print(answer.choices[0].message.content)
EOF

  .venv/bin/llmgwctl --controller {layout.controllers} status

Logs are in {layout.log("*").parent}. Kill any service and watch: it is started again, engines live on.
Ctrl-C stops everything.
"""
