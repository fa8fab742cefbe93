"""A suggested catalog entry as YAML. Texts are quoted as JSON quotes them, which YAML reads alike."""

import json

from llmgw_mirror.core.origins import shown
from llmgw_mirror.core.suggest import IDLE_AFTER_S, Entry, Profile
from llmgw_mirror.core.versions import FileView

_MIB = 1024**2


def written(entry: Entry) -> str:
    """One model, for `llmgwctl model apply`."""
    lines = [f"name: {quoted(entry.name)}"]
    if entry.aliases:
        lines.append(f"aliases: [{', '.join(quoted(alias) for alias in entry.aliases)}]")
    lines += [f"idle_after_s: {IDLE_AFTER_S}", "weights:", f"  version: {quoted(entry.version)}"]
    if entry.entry_file is not None:
        lines.append(f"  entry_file: {quoted(entry.entry_file)}")
    lines.append("  files:")
    for file in entry.files:
        lines += _file(file, as_wished=entry.same_name)
    lines.append("profiles:")
    lines += [f"  - {{{_profile(one)}}}" for one in entry.profiles]
    return "\n".join(lines) + "\n"


def _file(file: FileView, *, as_wished: bool) -> list[str]:
    """Under the version's own name exactly what it was asked for, or the mirror takes it for other files;
    under another what was verified, so that the content is found here instead of fetched."""
    source = file.source
    sha256 = source.sha256 if as_wished else file.sha256
    size = source.size_bytes if as_wished else file.size_bytes
    lines = [
        f"    - path: {quoted(source.path)}",
        f"      url: {quoted(shown(source.url).removesuffix('?…'))}",
    ]
    if sha256 is not None:
        lines.append(f"      sha256: {sha256}")
    # The catalog has no file of no bytes; without its size it is taken as it comes.
    if size:
        lines.append(f"      size_bytes: {size}")
    return lines


def _profile(one: Profile) -> str:
    fit = one.fit
    said = [f"name: {quoted(one.name)}", f"engine: {one.engine}", f"gpu_class: {quoted(fit.gpu_class)}"]
    if fit.nodes > 1:
        said.append(f"nodes: {fit.nodes}")
    if fit.gpus_per_node > 1:
        said.append(f"gpus_per_node: {fit.gpus_per_node}")
    if fit.context_length is not None:
        said.append(f"context_length: {fit.context_length}")
    said.append(f"memory_bytes: {-(-fit.claim_bytes // _MIB)}MiB")
    return ", ".join(said)


def quoted(text: str) -> str:
    """What is not printable is escaped, also beyond JSON: YAML takes some of it for line ends."""
    return "".join(c if c.isprintable() else _escaped(c) for c in json.dumps(text, ensure_ascii=False))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
