#!/bin/bash
# Fill an empty data folder from the POSTGRES_* variables, then become the server.
set -euo pipefail

if [ "$(id -u)" = 0 ] && [ "${1:-}" = postgres ]; then
  chown -R postgres:postgres "$PGDATA" /var/run/postgresql
  exec gosu postgres "$0" "$@"
fi

fill() {
  local password=${POSTGRES_PASSWORD:-} user=${POSTGRES_USER:-postgres} secret
  [ -z "${POSTGRES_PASSWORD_FILE:-}" ] || password=$(< "$POSTGRES_PASSWORD_FILE")
  if [ -z "$password" ]; then
    echo "the database is empty and POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE is not set" >&2
    exit 1
  fi
  secret=$(mktemp)
  printf '%s\n' "$password" > "$secret"
  # shellcheck disable=SC2086 # POSTGRES_INITDB_ARGS holds several words
  initdb -D "$PGDATA" -U "$user" --pwfile "$secret" -A scram-sha-256 ${POSTGRES_INITDB_ARGS:-}
  rm -f "$secret"
  printf 'local all all trust\nhost all all all scram-sha-256\n' > "$PGDATA/pg_hba.conf"
  # Single-user mode makes the database before anyone can connect: whoever sees the port open sees it complete.
  local database=${POSTGRES_DB:-$user}
  if [ "$database" != postgres ]; then
    printf 'CREATE DATABASE "%s"\n' "$database" | postgres --single -D "$PGDATA" postgres > /dev/null
  fi
}

if [ "${1:-}" = postgres ]; then
  [ -s "$PGDATA/PG_VERSION" ] || fill
  set -- "$@" -c "listen_addresses=*"
fi
exec "$@"
