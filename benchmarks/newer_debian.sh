#!/bin/sh
# Runs a command of this project in another release of Debian, to benchmark newer versions of servers.
# As root: sh benchmarks/newer_debian.sh sid FOLDER make bench-server
# The first run creates the folder (2 minutes, 600 MB). The mounts are private and end with the command.
set -eu
suite=$1 folder=$2
shift 2
python=$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')
case $python in
/usr) echo "the .venv uses the system's Python, which has another version there" >&2 && exit 1 ;;
esac
if [ ! -e "$folder/etc/debian_version" ]; then
    debootstrap --variant=minbase --include=beanstalkd,ca-certificates,make,rabbitmq-server,redis-server \
        "$suite" "$folder" http://deb.debian.org/debian
fi
mkdir -p "$folder$PWD" "$folder$python"
# shellcheck disable=SC2016
exec unshare --mount sh -euc '
    folder=$1 python=$2
    shift 2
    mount --bind "$PWD" "$folder$PWD"
    mount --bind "$python" "$folder$python"
    for each in dev proc sys; do mount --rbind "/$each" "$folder/$each"; done
    exec chroot "$folder" sh -c "cd \"\$0\" && exec \"\$@\"" "$PWD" "$@"
' sh "$folder" "$python" "$@"
