"""`keys:` of the file: forms, what is refused, and what having keys opens."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from llmgw_kit.errors import StartupError
from llmgw_kit.settings import effective, load
from llmgw_router.core.keys import digest_of
from llmgw_router.main import cli
from llmgw_router.settings import RouterSettings, check
from llmgw_router.settings_keys import KeyEntry, file_warning

KEY = "sk-llmgw-of-a-test-that-is-long"
DIGEST = f"sha256:{digest_of(KEY.encode()).hex()}"
ENGINE = "endpoints: ['e=http://127.0.0.1:1=m']\n"


def made(tmp_path: Path, text: str) -> RouterSettings:
    path = tmp_path / "router.yaml"
    path.write_text(ENGINE + text)
    settings = load(RouterSettings, config=path, flags={})
    check(settings)
    return settings


def test_a_key_and_its_digest_are_the_same_key(tmp_path: Path) -> None:
    plain = made(tmp_path, f"keys: ['{KEY}']\n")
    hashed = made(tmp_path, f"keys: ['{DIGEST}']\n")
    assert [one.row() for one in plain.keys] == [one.row() for one in hashed.keys]
    assert plain.keys[0].row().key_id == f"key-{digest_of(KEY.encode()).hex()[:8]}"
    assert KEY not in effective(plain)


def test_all_of_a_key(tmp_path: Path) -> None:
    (entry,) = made(
        tmp_path,
        f"""keys:
- id: team-a
  digest: {DIGEST}
  tenant: acme/research
  models: [m]
  profiles: [batch]
  explain: true
  expires: 2027-01-31T00:00:00Z
""",
    ).keys
    row = entry.row()
    assert (row.key_id, row.tenant, row.models, row.profiles) == (
        "team-a",
        "acme/research",
        ("m",),
        ("batch",),
    )
    assert row.explain
    assert row.expires_unix_s == 1801353600.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("keys: [sk-short]\n", "could be guessed"),
        ("keys: ['sha256:abcd']\n", "64 hexadecimal digits"),
        (f"keys: [{{digest: '{KEY}'}}]\n", "64 hexadecimal digits"),
        (f"keys: [{{key: '{KEY}', digest: '{DIGEST}'}}]\n", "either"),
        ("keys: [{id: x}]\n", "either"),
        (f"keys: ['{KEY}', '{DIGEST}']\n", "the same key"),
        (f"keys: [{{id: x, key: '{KEY}'}}, {{id: x, key: '{KEY}2'}}]\n", "two keys have the id x"),
        (f"keys: [{{key: '{KEY}', expires: 2027-01-31T00:00:00}}]\n", "zone"),
        (f"keys: ['{KEY}']\ndatabase_url: postgresql://h/d\n", "exclude each other"),
        (f"keys: ['{KEY}']\nrequire_keys: false\n", "guard nothing"),
        ("database_url: postgresql://h/d\nrequire_keys: false\nlisten: 0.0.0.0:1\n", "no API key guards it"),
        ("database_url: mysql://h/d\n", "postgresql://"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_no_key_is_repeated(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(StartupError) as refused:
        made(tmp_path, text)
    said = "\n".join(refused.value.lines())
    assert told in said
    assert KEY not in said


@pytest.mark.parametrize("guard", [f"keys: ['{DIGEST}']\n", "database_url: postgresql://u:p@h/d\n"])
def test_keys_open_the_port_beyond_loopback(tmp_path: Path, guard: str) -> None:
    assert str(made(tmp_path, guard).client_address) == "0.0.0.0:8080"
    assert str(made(tmp_path, "").client_address) == "127.0.0.1:8080"
    with pytest.raises(StartupError, match="no API key guards it"):
        made(tmp_path, "listen: 0.0.0.0:8080\n")
    assert made(tmp_path, guard + "listen: 0.0.0.0:8080\n").worker_config().keys_required
    assert not made(tmp_path, "").worker_config().keys_required


def test_plain_keys_in_a_file_that_others_read_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text("")
    plain, hashed = (KeyEntry.model_validate(text) for text in (KEY, DIGEST))
    path.chmod(0o644)
    said = file_warning((plain,), path)
    assert said is not None
    assert "chmod 600" in said
    assert KEY not in said
    assert file_warning((hashed,), path) is None
    path.chmod(0o600)
    assert file_warning((plain,), path) is None
    assert file_warning((plain,), None) is None


def test_key_new_prints_a_key_with_its_digest(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["key", "new"])
    assert result.exit_code == 0
    words = dict(line.split() for line in result.output.splitlines()[:2])
    assert words["digest"] == f"sha256:{digest_of(words['key'].encode()).hex()}"
    yaml = "\n".join(line[2:] for line in result.output.splitlines()[3:]) + "\n"
    (entry,) = made(tmp_path, yaml).keys
    assert entry.row().digest == digest_of(words["key"].encode())


def test_a_database_may_be_for_usage_only_and_then_nobody_is_let_in_from_afar(tmp_path: Path) -> None:
    guarded = made(tmp_path, "database_url: postgresql://h/d\n")
    assert (guarded.guarded, guarded.worker_config().keys_required) == (True, True)
    assert not guarded.client_address.loopback
    usage_only = made(tmp_path, "database_url: postgresql://h/d\nrequire_keys: false\n")
    assert (usage_only.guarded, usage_only.worker_config().keys_required) == (False, False)
    assert usage_only.client_address.loopback
    assert usage_only.records_usage


@pytest.mark.parametrize(
    ("more", "told"),
    [("", "off"), ("usage: told\n", "off"), ("usage_file: u.jsonl\n", "asked"),
     ("usage_file: u.jsonl\nusage: told\n", "told"), ("database_url: postgresql://h/d\n", "asked")],
)  # fmt: skip
def test_engines_are_asked_for_usage_only_where_somebody_takes_it(
    tmp_path: Path, more: str, told: str
) -> None:
    """Bodies are not spliced, and events not held back, for a counter alone."""
    assert made(tmp_path, more).worker_config().telemetry.usage == told


def test_the_example_of_the_page_is_taken_as_it_stands(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "router.md").read_text()
    example = page.split("\n## Keys\n")[1].split("```yaml\n")[1].split("```")[0]
    (entry,) = made(tmp_path, example).keys
    assert entry.row().key_id == "ci"
