#!/bin/sh
# Runs a command as on a slow machine: it and its subprocesses together get half a core.
# Example: tests/slow_machine.sh .venv/bin/pytest tests/unit
#
# The limit is a cgroup: of version 2 or 1 as root, or one that systemd makes for a user. Without any of them the command
# is skipped. (The program cpulimit is not used, because it stops processes by signals, and so do the tests.)
set -eu
root=/sys/fs/cgroup
group=covey-slow-machine-$$

# leave FOLDER: move this process back. Subprocesses that were left running keep the group.
leave() {
  echo $$ > "$1/cgroup.procs" || true
  rmdir "$1/$group" 2> /dev/null || echo "slow_machine.sh: $1/$group is still in use" >&2
}

# enter FOLDER FILE LIMIT: make a group below FOLDER, write LIMIT into its FILE and move this process there.
enter() {
  mkdir "$1/$group" 2> /dev/null || return 1
  if [ -f "$1/$group/$2" ] && { echo "$3" > "$1/$group/$2"; } 2> /dev/null; then
    trap 'code=$?; leave "'"$1"'"; exit $code' EXIT
    trap 'exit 143' TERM
    trap 'exit 130' INT
    echo $$ > "$1/$group/cgroup.procs"
  else
    rmdir "$1/$group"
    return 1
  fi
}

if enter "$root" cpu.max "50000 100000" || enter "$root/cpu" cpu.cfs_quota_us 50000; then
  "$@"
elif command -v systemd-run > /dev/null && systemd-run --user --scope --quiet -p CPUQuota=50% true 2> /dev/null; then
  exec systemd-run --user --scope --quiet -p CPUQuota=50% "$@"
else
  echo "skipped: no cgroup that limits CPU time can be made here; run it as root or on a system with systemd"
fi
