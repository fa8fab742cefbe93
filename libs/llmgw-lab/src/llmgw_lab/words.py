"""What the lab says to the person: where things listen, and what to paste next. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from llmgw_lab.ask import MESSAGES, question
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
    rest = {key: value for key, value in question(model).items() if key != "messages"}
    listed = ",\n    ".join(json.dumps(message) for message in MESSAGES[model])
    body = f'{json.dumps(rest)[:-1]},\n  "messages": [\n    {listed}]}}'
    messages = "".join(f"        {json.dumps(message)},\n" for message in MESSAGES[model])
    return f"""
The lab is up. Try:

curl -N {layout.router_url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'

.venv/bin/python - <<'EOF'
from openai import OpenAI

client = OpenAI(base_url="{layout.router_url}/v1", api_key="none")
answer = client.chat.completions.create(
    model="{model}",
    temperature=0,
    messages=[
{messages}    ],
)
print(answer.choices[0].message.content)
EOF

.venv/bin/llmgwctl --controller {layout.controllers} status

Logs are in {layout.log("*").parent}. Kill any service and watch: it is started again, engines live on.
Ctrl-C stops everything.
"""
