"""One request to a scripted registry, and what may be answered to it."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from .hub_content import HubFile
from .scripted import Exchange, Request

if TYPE_CHECKING:
    from .hub_registry import HubRegistry


@dataclass
class HubRequest(Request):
    """`path` is unquoted and without its query; `raw` as it came."""

    method: str = "GET"
    raw: str = ""
    query: dict[str, list[str]] = field(default_factory=dict)
    body: bytes = b""
    #: Came to the second origin.
    on_cdn: bool = False

    @property
    def token(self) -> str | None:
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None

    def flag(self, name: str) -> bool:
        """requests says True, httpx true, JavaScript 1."""
        return self.query.get(name, [""])[-1].lower() in ("true", "1")


@dataclass
class HubExchange(Exchange):
    """An exchange whose content, if it is about a file, is that file's."""

    file: HubFile | None = None
    #: Sent with every head of the file's answers.
    extra: dict[str, str] = field(default_factory=dict)
    _headed: bool = False

    @property
    def hub(self) -> "HubRegistry":
        return cast("HubRegistry", self.upstream)

    @property
    def asked(self) -> HubRequest:
        assert isinstance(self.request, HubRequest)
        return self.request

    @property
    def content(self) -> bytes:
        assert self.file is not None, f"{self.request.path} is no file"
        return self.file.content

    @property
    def etag(self) -> str:
        assert self.file is not None, f"{self.request.path} is no file"
        return self.file.etag

    async def head(self, status: int, **headers: str | int) -> None:
        extra: dict[str, str | int] = {name.replace("-", "_"): value for name, value in self.extra.items()}
        await super().head(status, **(extra | headers))
        self._headed = True

    async def send(self, data: bytes) -> None:
        if not (self._headed and self.asked.method == "HEAD"):
            await super().send(data)

    async def json(self, said: Any, status: int = 200, **headers: str | int) -> None:
        body = json.dumps(said).encode()
        await self.head(status, Content_Type="application/json", Content_Length=len(body), **headers)
        await self.send(body)

    async def refuse(self, status: int, text: str, code: str | None = None) -> None:
        headers = {"X_Error_Message": text} | ({"X_Error_Code": code} if code else {})
        await self.json({"error": text}, status, **headers)
