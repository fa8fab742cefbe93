"""What a container daemon changes in the host's network, noted before and put back after."""

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from .docker import EngineError, call

LINKS = Path("/sys/class/net")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
#: What dockerd writes into the packet filter; nothing else is ever taken back.
DOCKERS = re.compile(r"\bDOCKER\b|DOCKER-|docker0|\bbr-[0-9a-f]{12}\b")


@dataclass(frozen=True)
class HostNetwork:
    """Packet filter rules by "program table", links by name, and the forwarding switch."""

    rules: dict[str, list[str]]
    links: list[str]
    forwarding: str

    @classmethod
    def read(cls) -> "HostNetwork":
        """How it stands now."""
        return cls(_rules(), sorted(os.listdir(LINKS)), FORWARDING.read_text().strip())

    @classmethod
    def from_json(cls, text: str) -> "HostNetwork":
        """What `to_json` wrote."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """For the next run, if this one is killed."""
        return json.dumps(asdict(self))

    def restore(self) -> None:
        """Take back what has appeared since and is Docker's; rules that others made meanwhile stay."""
        for where, now in _rules().items():
            program, table = where.split()
            old = self.rules.get(where, [])
            new = [rule for rule in now if rule not in old and DOCKERS.search(rule)]
            edit = [program, "-w", "5", "-t", table]
            for rule in new:
                if rule.startswith("-A "):
                    call([*edit, "-D", *rule.split()[1:]], timeout_s=15)
            # Chains go last: one that a rule still names cannot go.
            for rule in new:
                if rule.startswith("-N "):
                    call([*edit, "-X", rule.split()[1]], timeout_s=15)
            for rule in old:
                if rule.startswith("-P FORWARD ") and rule not in now:
                    call([*edit, *rule.split()], timeout_s=15)
        for link in sorted(set(os.listdir(LINKS)) - set(self.links)):
            if DOCKERS.search(link):
                call(["ip", "link", "delete", link], timeout_s=15)
        FORWARDING.write_text(self.forwarding)


def _rules() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for program in ("iptables", "ip6tables"):
        for table in ("filter", "nat"):
            try:
                printed = call([program, "-w", "5", "-t", table, "-S"], timeout_s=15)
            except EngineError:
                continue  # No such table in this kernel: nothing can have been added to it either.
            found[f"{program} {table}"] = printed.splitlines()
    return found
