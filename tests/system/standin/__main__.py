"""`python -m standin` from tests/system: make the base images, for `docker build` by hand.

The engine must be running; the system test starts one by itself where none is.
"""

import sys

from .bases import ensure_bases
from .docker import Docker, EngineError
from .engine import install_missing


def main() -> int:
    docker = Docker()
    try:
        install_missing()
        if not docker.answers():
            raise EngineError("no container engine answers; start Docker, or set DOCKER_HOST")
        made = ensure_bases(docker)
    except EngineError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    print(f"bases: {', '.join(made) if made else 'all present, nothing to do'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
