#!/bin/sh
# What the public image's first process does: a cluster with one user and one database, once, and then the server.
set -eu
data=/var/lib/postgresql/data
mkdir -p "$data"
chown -R postgres "$data"
if [ ! -f "$data/PG_VERSION" ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  chown postgres /tmp/password
  setpriv --reuid=postgres --regid=postgres --init-groups initdb -D "$data" -U "$POSTGRES_USER" --pwfile=/tmp/password \
    --auth-host=scram-sha-256 --auth-local=trust > /dev/null
  rm /tmp/password
  echo "host all all all scram-sha-256" >> "$data/pg_hba.conf"
  echo "CREATE DATABASE $POSTGRES_DB;" |
    setpriv --reuid=postgres --regid=postgres --init-groups postgres --single -j -D "$data" postgres > /dev/null || true
fi
exec setpriv --reuid=postgres --regid=postgres --init-groups postgres -D "$data" -c listen_addresses='*' \
  -c unix_socket_directories=/var/run/postgresql
