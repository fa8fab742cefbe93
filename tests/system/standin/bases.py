"""Stand-ins for the public base images, under the same names, made from Debian's packages.

Run it as `python tests/system/standin/bases.py`; a second run finds its images and does nothing. An image of
that name that is not ours (someone pulled the public one) is left alone and used. Nothing here is part of the
product, and nothing of the machine (mirror, certificates) gets into the project's own Dockerfiles.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .docker import Docker, EngineError, call

HERE = Path(__file__).parent
SUITE = "bookworm"
DEBOOTSTRAP_IMAGE = f"llmgw-standin/debootstrap:{SUITE}"
BASE_IMAGE = f"llmgw-standin/base:{SUITE}"
#: Holds the recipe's hash, which tells our image from a pulled one and a current one from an old one.
#: A child image inherits it, so only the images of this module may be asked.
LABEL = "llmgw.standin.recipe"
#: A third of the bootstrapped system, and nothing that runs.
LEFT_OUT = (
    "./var/cache/apt/*",
    "./var/lib/apt/lists/*",
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./usr/share/locale/*",
)
#: Where Debian, then Fedora, then OpenSSL's default keep the trust anchors of this machine.
CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
#: Measured: debootstrap 20–35 s and each package layer 10–25 s on two idle cores, eight times that where
#: ten test runs share them.
STEP_S = 600.0


@dataclass(frozen=True)
class StandIn:
    """One public image and the folder with the recipe of its double."""

    image: str
    folder: str


STAND_INS = (
    StandIn("python:3.11-slim-bookworm", "python"),
    StandIn("postgres:15-bookworm", "postgres"),
    StandIn("redis:7-bookworm", "redis"),
)


def ensure_bases(docker: Docker) -> tuple[str, ...]:
    """Make the base images that are missing or whose recipe changed; return what was made."""
    if all(docker.has_image(item.image) and docker.label(item.image, LABEL) is None for item in STAND_INS):
        return ()  # Public images throughout: this machine need not even know apt.
    sources = debian_sources()
    base_recipe = _digest(
        sources.encode(), *(pattern.encode() for pattern in LEFT_OUT), *_files(HERE / "base.Dockerfile")
    )
    made: list[str] = []
    for stand_in in STAND_INS:
        extra = {"ca-bundle.crt": ca_bundle()} if stand_in.folder == "python" else {}
        recipe = _digest(base_recipe.encode(), *_files(HERE / stand_in.folder), *extra.values())
        if not _is_wanted(docker, stand_in.image, recipe):
            continue
        if docker.label(BASE_IMAGE, LABEL) != base_recipe:
            print(f"bases: making Debian {SUITE} from its packages", flush=True)
            _debootstrap(docker, sources)
            with _context(HERE / "base.Dockerfile", {"sources.list": sources.encode()}) as folder:
                _build(docker, BASE_IMAGE, folder, base_recipe)
        with _context(HERE / stand_in.folder, extra) as folder:
            _build(docker, stand_in.image, folder, recipe)
        made.append(stand_in.image)
    return tuple(made)


def _is_wanted(docker: Docker, image: str, recipe: str) -> bool:
    if not docker.has_image(image):
        return True
    label = docker.label(image, LABEL)
    # Unlabelled: the public image, which is better than any double.
    return label is not None and label != recipe


def debian_sources() -> str:
    """The `sources.list` for a stand-in, with the mirrors that this machine's own apt uses.

    Raises `EngineError` where apt knows no mirror of the suite (not a Debian of that release).
    """
    fields = "$(REPO_URI) $(CODENAME) $(COMPONENT)"
    printed = call(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"], timeout_s=30)
    lines = []
    for uri, codename, component in sorted(
        {tuple(line.split()) for line in printed.splitlines() if line.count(" ") == 2}
    ):
        if codename.startswith(SUITE) and component == "main":
            lines.append(f"deb {uri} {codename} {component}")
    if not any(line.split()[2] == SUITE for line in lines):
        raise EngineError(
            f"the base images are missing, and apt here knows no Debian {SUITE} to make stand-ins from\n"
            f"  try: docker pull {' && docker pull '.join(stand_in.image for stand_in in STAND_INS)}"
        )
    return "\n".join(lines) + "\n"


def ca_bundle() -> bytes:
    """This machine's trust anchors: SSL_CERT_FILE if set, else the distribution's bundle."""
    for name in (os.environ.get("SSL_CERT_FILE", ""), *CA_BUNDLES):
        if name and Path(name).is_file():
            return Path(name).read_bytes()
    raise EngineError(f"no certificate bundle found; set SSL_CERT_FILE (tried {', '.join(CA_BUNDLES)})")


def _files(recipe: Path) -> Iterator[bytes]:
    for path in (
        [recipe] if recipe.is_file() else sorted(path for path in recipe.rglob("*") if path.is_file())
    ):
        yield path.name.encode()
        yield path.read_bytes()


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        # Length first, so that moving a byte from one file to the next is a change too.
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _debootstrap(docker: Docker, sources: str) -> None:
    mirror = next(line.split()[1] for line in sources.splitlines() if line.split()[2] == SUITE)
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise EngineError(
            "making stand-ins needs root and debootstrap\n"
            "  try: sudo apt-get install debootstrap, then run this as root; "
            f"or docker pull {' && docker pull '.join(stand_in.image for stand_in in STAND_INS)}"
        )
    with tempfile.TemporaryDirectory(prefix="llmgw-standin-") as name:
        root, archive = Path(name) / "root", Path(name) / "root.tar"
        call(["debootstrap", "--variant=minbase", SUITE, root, mirror], timeout_s=STEP_S)
        left_out = [f"--exclude={pattern}" for pattern in LEFT_OUT]
        call(["tar", "-C", root, "--one-file-system", *left_out, "-cf", archive, "."], timeout_s=STEP_S)
        docker("import", archive, DEBOOTSTRAP_IMAGE, timeout_s=STEP_S)


@contextmanager
def _context(recipe: Path, extra: dict[str, bytes]) -> Iterator[Path]:
    """A build folder: the recipe's files and what only this machine can add."""
    with tempfile.TemporaryDirectory(prefix="llmgw-standin-") as name:
        folder = Path(name)
        if recipe.is_dir():
            shutil.copytree(recipe, folder, dirs_exist_ok=True)
        else:
            shutil.copy(recipe, folder / "Dockerfile")
        for file, content in extra.items():
            (folder / file).write_bytes(content)
        yield folder


def _build(docker: Docker, image: str, folder: Path, recipe: str) -> None:
    # The classic front end: it is in every engine, and BuildKit would ask a registry for the FROM line first.
    classic = Docker(docker.host, {"DOCKER_BUILDKIT": "0"})
    classic("build", "--quiet", "--label", f"{LABEL}={recipe}", "--tag", image, folder, timeout_s=STEP_S)
    print(f"bases: {image} made", flush=True)
