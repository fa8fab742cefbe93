"""The `docker` command line, run bounded and loud: every call has a time-out and says what failed.

One engine is addressed per `Docker` value, so that a daemon of our own and the user's never mix.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class EngineError(RuntimeError):
    """A container engine is missing or refused; the text says what to do next."""


def call(
    command: Sequence[str | Path],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes | None = None,
) -> str:
    """Run a command to its end and return its standard output.

    Raises `EngineError` with the command's last words when it fails, hangs or is not installed.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env=None if env is None else dict(env),
            cwd=cwd,
            input=stdin if stdin is not None else b"",
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as err:
        raise EngineError(f"{words[0]} is not installed; try: apt-get install docker.io debootstrap") from err
    except subprocess.TimeoutExpired as err:
        tail = last_lines(err.stdout, err.stderr)
        raise EngineError(f"{' '.join(words)}\n  did not end within {timeout_s:g} s\n{tail}") from err
    if done.returncode != 0:
        tail = last_lines(done.stdout, done.stderr)
        raise EngineError(f"{' '.join(words)}\n  ended with {done.returncode}\n{tail}")
    return done.stdout.decode(errors="replace")


def last_lines(*streams: bytes | None, count: int = 40) -> str:
    """The end of what a program printed, indented, for an error message."""
    lines = [line for stream in streams if stream for line in stream.decode(errors="replace").splitlines()]
    return "\n".join(f"    {line}" for line in lines[-count:])


@dataclass(frozen=True)
class Docker:
    """One engine. `host` is a DOCKER_HOST value; None: whatever the environment's default is."""

    host: str | None = None
    extra_env: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The environment for `docker` and Compose to reach this engine."""
        env = {**os.environ, **self.extra_env}
        if self.host is not None:
            env["DOCKER_HOST"] = self.host
            env.pop("DOCKER_CONTEXT", None)
        return env

    def __call__(self, *words: str | Path, timeout_s: float = 60, stdin: bytes | None = None) -> str:
        """Run `docker WORDS…` and return what it printed."""
        return call(["docker", *words], timeout_s=timeout_s, env=self.env, stdin=stdin)

    def answers(self) -> bool:
        """Whether a daemon is behind the socket, not merely whether the client is installed."""
        try:
            self("version", "--format", "{{.Server.Version}}", timeout_s=10)
        except EngineError:
            return False
        return True

    def label(self, image: str, label: str) -> str | None:
        """One label of an image; None when the image or the label is not there."""
        try:
            value = self(
                "image", "inspect", "--format", f'{{{{index .Config.Labels "{label}"}}}}', image
            ).strip()
        except EngineError:
            return None
        return value or None

    def has_image(self, image: str) -> bool:
        """Whether the engine holds an image under this name."""
        try:
            self("image", "inspect", "--format", "{{.Id}}", image)
        except EngineError:
            return False
        return True
