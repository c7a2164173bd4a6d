#!/usr/bin/env bash
# Start the shipped unit of a server under a real systemd, hang it, stop it.
#
#   sudo deploy/systemd/try.sh secagg-0.1.0-py3-none-any.whl
#
# Needs root, Linux and the Debian packages systemd and dbus.  A systemd of its own runs
# as the first process of new namespaces, over a copy of / that lies in memory and is
# gone at the end: a booting systemd tidies up (/tmp first), and must find nothing of
# ours.
set -euo pipefail

if [ "${1:-}" != inside ]; then
  [ "$(id -u)" = 0 ] || { echo "start this as root: it makes namespaces"; exit 1; }
  here=$(cd "$(dirname "$0")" && pwd)
  wheel=$(realpath "$1")
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
  timeout --signal=KILL 600 unshare --mount --pid --uts --ipc --fork \
    --kill-child "$here/try.sh" inside "$here" "$wheel" "$out" < /dev/null \
    > "$out/console" 2>&1 || true
  cat "$out/said" 2> /dev/null || true
  if ! grep -q '^ok: and once is enough' "$out/said" 2> /dev/null; then
    grep -v '^WARNING: Location' "$out/console" | tail -40
    exit 1
  fi
  exit 0
fi

umask 022
# The unit hides /home and /root, and with them a Python that is installed there.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
units=$2 wheel=$3 out=$4
mount --make-rprivate /
memory=$(mktemp -d)
mount -t tmpfs tmpfs "$memory"
mkdir "$memory/upper" "$memory/work" "$memory/root"
mount -t overlay overlay "$memory/root" \
  -o "lowerdir=/,upperdir=$memory/upper,workdir=$memory/work"
root=$memory/root
for each in run tmp var/lib var/tmp var/log etc/systemd/system; do
  mkdir -p "$root/$each" && mount -t tmpfs tmpfs "$root/$each"
done
mkdir -p "$root/run/out" "$root/tmp" && mount --bind "$out" "$root/run/out"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"

# What deploy/README.md says, from the installation to the start.
chroot "$root" python3 -m venv /opt/secagg
cp "$wheel" "$root/tmp/"
chroot "$root" /opt/secagg/bin/pip install -qq --disable-pip-version-check \
  "/tmp/$(basename "$wheel")[metrics]"
mkdir -p "$root/etc/secagg"
chroot "$root" /opt/secagg/bin/secagg pki init /etc/secagg/pki > /dev/null
cp "$units/../config/server.minimal.toml" "$root/etc/secagg/server.toml"
sed -i 's/^\[server\]/&\nmetrics_listen = "127.0.0.1:9464"/' \
  "$root/etc/secagg/server.toml"
cp "$units/secagg-server.service" "$root/etc/systemd/system/"

cat > "$root/etc/systemd/system/try.service" <<'UNIT'
[Unit]
After=secagg-server.service
[Service]
Type=oneshot
ExecStart=/bin/bash /run/try-inside.sh
ExecStopPost=/bin/systemctl poweroff --force --force
UNIT
cat > "$root/etc/systemd/system/try.target" <<'UNIT'
[Unit]
Wants=secagg-server.service try.service
UNIT
cat > "$root/run/try-inside.sh" <<'SCRIPT'
exec > /run/out/said 2>&1
property() { systemctl show --property "$1" --value secagg-server; }
must() {
  if [ "$2" = "$3" ]; then echo "ok: $1"; return; fi
  echo "NOT: $1: $2, not $3"
  systemctl status --no-pager --full secagg-server
  journalctl --no-pager --lines 30 --unit secagg-server
  exit 1
}
ask() { /opt/secagg/bin/python -c 'import sys, urllib.request as r
print(r.urlopen("http://127.0.0.1:9464" + sys.argv[1]).read().decode())' "$1"; }

must "it is active only when clients can connect" \
  "$(property ActiveState), $(property StatusText)" \
  "active, listening on 0.0.0.0:7400"
process=$(property MainPID)
most=$(ulimit -Hn)  # of this machine
must "it may open the files that the unit asks for" \
  "$(grep 'Max open files' "/proc/$process/limits" | tr -s ' ' | cut -d' ' -f5)" \
  "$(( most < 65536 ? most : 65536 ))"
must "it leaves no core dump" \
  "$(grep 'Max core' "/proc/$process/limits" | tr -s ' ' | cut -d' ' -f6)" 0
must "it has no privilege" \
  "$(grep CapEff "/proc/$process/status" | tr -d '\t')" CapEff:0000000000000000
must "its user is its own" "$(stat -c %U "/proc/$process")" secagg-server
must "it is ready" "$(ask /readyz)" ready
must "it measures itself" \
  "$(ask /metrics | grep -cE '^process_(open_fds|max_fds|start_time_seconds) ')" 3
sleep 40
must "the watchdog leaves it alone" "$(property MainPID)" "$process"

# docs/backup.md: a copy of a server that stands still.
copy=/run/copy
systemctl start dbus
systemctl freeze secagg-server
must "it stands still while it is copied" "$(property FreezerState)" frozen
cp --archive --reflink=auto /var/lib/secagg/server "$copy"
systemctl thaw secagg-server
sed 's#"/var/lib/secagg/server"#"/run/copy"#' /etc/secagg/server.toml > /run/copy.toml
must "a copy of a frozen server is sound" \
  "$(/opt/secagg/bin/secagg state check --copy --config /run/copy.toml | tail -1)" \
  "/run/copy is sound"
/opt/secagg/bin/secagg tasks pause sum-of-vectors --reason "what the copy does not know" \
  > /dev/null

kill -STOP "$process"
sleep 45
must "the watchdog restarts what hangs" "$(property NRestarts), $(property ActiveState)" "1, active"
systemctl stop secagg-server
must "stopped within its time, without an error" \
  "$(property ActiveState), $(property Result)" "inactive, success"

# docs/backup.md: restored, refused, and accepted on purpose.
rm -r /var/lib/secagg/server
cp --archive "$copy" /var/lib/secagg/server
! systemctl start secagg-server 2> /dev/null
must "a restored state is refused, and not tried again" \
  "$(property ActiveState), $(property ExecMainStatus)" "failed, 78"
once=/run/systemd/system/secagg-server.service.d
mkdir -p "$once"
printf '[Service]\nExecStart=\nExecStart=%s --restored\n' \
  '/opt/secagg/bin/secagg server --config /etc/secagg/server.toml' > "$once/once.conf"
systemctl daemon-reload && systemctl start secagg-server
must "it is accepted with --restored" "$(property ActiveState)" active
rm -r "$once" && systemctl daemon-reload && systemctl restart secagg-server
must "and once is enough" "$(property ActiveState)" active
systemctl stop secagg-server
systemd-analyze security --no-pager secagg-server | tail -1
SCRIPT
cd "$root"
mkdir -p run/old
pivot_root . run/old
exec unshare --net chroot . /bin/sh -c 'umount -l /run/old
  mount --make-rshared /
  ip link set lo up
  container=try exec /lib/systemd/systemd --system --unit=try.target \
    --log-target=console --show-status=no'
