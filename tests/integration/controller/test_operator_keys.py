"""`llmgwctl key` and `usage` against a real controller on Postgres."""

import hashlib
import json

import asyncpg

from .controller_bench import Controllers
from .test_operator_commands import ctl


async def test_a_key_is_made_shown_once_listed_and_revoked(
    controllers: Controllers, migrated_dsn: str
) -> None:
    controller = await controllers.start(dsn=migrated_dsn).until_ready()
    code, out, _ = await ctl(controller, "key", "list")
    assert code == 0
    assert "next: llmgwctl key create NAME" in out

    words = (
        "key",
        "create",
        "ci",
        "--tenant",
        "acme/x",
        "--model",
        "tiny",
        "--model",
        "nope",
        "--expires",
        "2h",
    )
    code, out, _ = await ctl(controller, *words, "--dry-run")
    assert (code, "dry run" in out, "sk-llmgw-" in out) == (0, True, False)
    code, out, _ = await ctl(controller, *words, "--output", "json")
    made = json.loads(out)
    assert (code, made["schema"], made["models"], made["state"]) == (
        0,
        "llmgw.key-create/1",
        ["tiny", "nope"],
        "good",
    )
    assert "no model nope" in made["warnings"][0]
    secret = made["key"]
    assert secret.startswith(made["begins"])

    connection = await asyncpg.connect(migrated_dsn)
    (row,) = await connection.fetch("SELECT * FROM api_keys")
    assert row["digest"] == hashlib.sha256(secret.encode()).digest()
    assert secret not in repr(dict(row))
    assert secret not in controller.child.log.read_text()

    code, out, _ = await ctl(controller, "key", "create", "second")
    second = out.splitlines()[0]
    assert second.startswith("sk-llmgw-")
    assert "llmgwctl key revoke key-" in out
    code, out, _ = await ctl(controller, "key", "list")
    assert (code, "2 good keys" in out, secret in out) == (0, True, False)
    assert all(len(line) <= 100 for line in out.splitlines())

    code, out, err = await ctl(controller, "key", "revoke", "key-zz")
    assert (code, out) == (64, "")
    assert "llmgwctl key list --all" in err
    code, _, err = await ctl(controller, "key", "revoke", "key-")
    assert code == 1
    assert "could be any of" in err
    code, out, _ = await ctl(controller, "key", "revoke", made["id"], "--dry-run")
    assert await connection.fetchval("SELECT count(revoked_at) FROM api_keys") == 0
    code, out, _ = await ctl(controller, "key", "revoke", made["begins"])
    assert (code, "within 2 s" in out) == (0, True)
    code, out, _ = await ctl(controller, "key", "revoke", made["id"])
    assert (code, "already" in out) == (0, True)
    assert await connection.fetchval(
        "SELECT revoked_at IS NOT NULL FROM api_keys WHERE key_id = $1", made["id"]
    )
    code, out, _ = await ctl(controller, "key", "list", "--all", "--output", "json")
    assert [one["state"] for one in json.loads(out)["keys"]] == ["good", "revoked"]
    code, out, _ = await ctl(controller, "events", "--subject", made["id"])
    assert "key_revoked" in out
    await connection.close()


async def test_what_cannot_be_a_key_is_refused_whole(controllers: Controllers, migrated_dsn: str) -> None:
    controller = await controllers.start(dsn=migrated_dsn).until_ready()
    for words in (("create", " "), ("create", "x", "--tenant", "a//b"), ("create", "x", "--model", "")):
        code, out, _ = await ctl(controller, "key", *words)
        assert (code, out) == (64, "")
    code, out, _ = await ctl(controller, "usage", "--by", "model", "--since", "3h")
    assert (code, "nothing was used" in out) == (0, True)
    code, out, _ = await ctl(controller, "usage", "--output", "json")
    assert json.loads(out)["usage"] == []


async def test_a_controller_without_a_database_makes_no_keys(controllers: Controllers) -> None:
    controller = await controllers.start().until_ready()
    code, out, err = await ctl(controller, "key", "create", "x")
    assert (code, out) == (1, "")
    assert "no database" in err
