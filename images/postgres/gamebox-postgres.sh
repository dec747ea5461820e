#!/bin/sh
# start | stop | reset | status | serve: the server of this sandbox, in ~/postgres, on a socket in /tmp and on 127.0.0.1:5432.
# serve stays in the foreground, as services.postgres() needs it.
set -eu
data=$HOME/postgres
log=$data/server.log

# What is lost with the sandbox need not reach a disk.
options="-c unix_socket_directories=/tmp -c listen_addresses=127.0.0.1 -c fsync=off -c full_page_writes=off"

make() {
    [ -f "$data/PG_VERSION" ] ||
        initdb --no-sync --username=postgres --auth=trust --encoding=UTF8 --locale=C.UTF-8 --pgdata="$data" >/dev/null
}

start() {
    make
    pg_ctl --pgdata="$data" --log="$log" --wait --silent -o "$options" start || {
        cat "$log" >&2
        exit 1
    }
    echo "PostgreSQL answers: psql connects to it."
}

case "${1:-}" in
start)
    if pg_ctl --pgdata="$data" status >/dev/null 2>&1; then echo "PostgreSQL is running already."; else start; fi ;;
stop) pg_ctl --pgdata="$data" --mode=fast --wait --silent stop ;;
reset)
    if pg_ctl --pgdata="$data" status >/dev/null 2>&1; then
        pg_ctl --pgdata="$data" --mode=immediate --wait --silent stop
    fi
    rm -rf "$data"
    start ;;
status) pg_ctl --pgdata="$data" status ;;
serve)
    make
    if [ "${GAMEBOX_DATABASE:-postgres}" != postgres ]; then
        echo "CREATE DATABASE $GAMEBOX_DATABASE" | postgres --single -D "$data" postgres >/dev/null
    fi
    # shellcheck disable=SC2086  # a list of words
    exec postgres -D "$data" $options ;;
*)
    echo "usage: gamebox-postgres start|stop|reset|status|serve" >&2
    exit 2 ;;
esac
