"""Profiles that keys of a database name and this router does not have. Pure."""

from collections.abc import Collection, Iterable

from llmgw_router.core.keys import KeyRow


class ProfilesOfKeys:
    """Each pair of key and profile is told once: keys are read again and again."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def strange(self, rows: Iterable[KeyRow], profiles: Collection[str]) -> list[str]:
        """What is to be said of these keys."""
        said = []
        for row in rows:
            for name in row.profiles or ():
                pair = (row.key_id, name)
                if name in profiles:
                    self._told.discard(pair)
                elif pair not in self._told:
                    self._told.add(pair)
                    said.append(
                        f"key {row.key_id} has the profile {name!r}, which this router does not have; there "
                        f"are: {', '.join(sorted(profiles))}. Add it under `profiles:`, or make another key"
                    )
        return said
