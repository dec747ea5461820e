#!/bin/sh
# Runs a command as the user that it is run by: no program of a sandbox gets privileges. Options of sudo are read and left out.
while [ $# -gt 0 ]; do
    case $1 in
    -u | -g | -h | -p | -C | -D | -R | -T | -U) shift 2 ;;
    --) shift && break ;;
    -[lv] | --list | --validate) exit 0 ;;
    -*) shift ;;
    *) break ;;
    esac
done
if [ "$(id -u)" != 0 ]; then
    echo "sudo: this sandbox gives no privileges; running as $(id -un)" >&2
fi
# As sudo does, it takes variables before the command.
exec env "$@"
