#!/bin/sh
# start | stop | reset | status: the server of this sandbox, in ~/postgres, on a socket in /tmp and on 127.0.0.1:5432.
set -eu
data=$HOME/postgres
log=$data/server.log

start() {
    if [ ! -f "$data/PG_VERSION" ]; then
        initdb --no-sync --username=postgres --auth=trust --encoding=UTF8 --locale=C.UTF-8 --pgdata="$data" >/dev/null
    fi
    # What is lost with the sandbox need not reach a disk.
    pg_ctl --pgdata="$data" --log="$log" --wait --silent \
        -o "-c unix_socket_directories=/tmp -c listen_addresses=127.0.0.1 -c fsync=off -c full_page_writes=off" start || {
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
*)
    echo "usage: gamebox-postgres start|stop|reset|status" >&2
    exit 2 ;;
esac
