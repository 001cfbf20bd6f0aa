#!/bin/sh
# Runs a command as on a slow machine: it and its subprocesses together get half a core.
# Example: tests/slow_machine.sh .venv/bin/pytest tests/unit
#
# The limit is a cgroup: of version 2 or 1 as root, or one that systemd makes for a user. Without any of them the command
# is skipped. (The program cpulimit is not used, because it stops processes by signals, and so do the tests.)
set -eu
name=covey-slow-machine-$$
v2=/sys/fs/cgroup/$name
v1=/sys/fs/cgroup/cpu/$name

clean() { rmdir "$v2" "$v1" 2> /dev/null || true; }
trap clean EXIT

if mkdir "$v2" 2> /dev/null && echo "50000 100000" 2> /dev/null > "$v2/cpu.max"; then
  echo $$ > "$v2/cgroup.procs"
elif mkdir "$v1" 2> /dev/null && echo 100000 2> /dev/null > "$v1/cpu.cfs_period_us" \
  && echo 50000 2> /dev/null > "$v1/cpu.cfs_quota_us"; then
  echo $$ > "$v1/cgroup.procs"
elif command -v systemd-run > /dev/null && systemd-run --user --scope --quiet -p CPUQuota=50% true 2> /dev/null; then
  exec systemd-run --user --scope --quiet -p CPUQuota=50% "$@"
else
  echo "skipped: no cgroup with a limit of CPU time can be made here (run as root, or with systemd)"
  exit 0
fi
code=0
"$@" || code=$?
echo $$ 2> /dev/null > "$(dirname "$v2")/cgroup.procs" || echo $$ 2> /dev/null > "$(dirname "$v1")/cgroup.procs" || true
exit $code
