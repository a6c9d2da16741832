#!/usr/bin/env bash
# install_deps.sh [--tests] [PACKAGE]...
# Installs the Debian packages that the build needs, with --tests those that
# only some tests need, and those named, as far as they are not there yet.
# Prints nothing and needs no rights when all of them are.
set -euo pipefail

tests=()
if [[ "${1:-}" == --tests ]]; then
  shift
  tests=(
    # The status page in a browser.
    chromium chromium-driver python3-selenium
    # The manifests for Kubernetes, and the compose file.
    python3-jsonschema python3-pip python3-yaml
    # Packages of the program, what looks at them and at the units, and a build
    # of a program outside.
    cmake dpkg-dev groff-base systemd
    # The commands of docs/operations.md.
    curl openssl procps
    # The wheel, and what it is tested beside.
    python3-venv
    # The proxy in front of an exposed coordinator.
    haproxy
  )
  # Other packages than Debian's bring one, too.
  command -v kubectl > /dev/null || tests+=(kubernetes-client)
  # For the batch script; a node of a Slurm keeps its own.
  { command -v slurmctld && command -v munged; } > /dev/null ||
    tests+=(munge slurm-wlm)
fi

packages=(
  # Build tools.
  bazel-bootstrap bazel-rules-java g++ pkg-config python3
  # gRPC, Protocol Buffers, Abseil.
  libabsl-dev libgrpc++-dev libprotobuf-dev protobuf-compiler
  protobuf-compiler-grpc
  # Exchange, training framework and the data it trains on.
  dataset-fashion-mnist jargon-text libtorch-dev zlib1g-dev
  # libtorch calls whatever libblas.so.3 is: this one, and not the reference.
  libopenblas0-pthread
  # State, checksums, configuration, command line, JSON.
  libcli11-dev libisal-dev libsqlite3-dev libyaml-cpp-dev nlohmann-json3-dev
  # Certificates.
  libssl-dev
  # The coordinator's HTTP and its metrics.
  libcpp-httplib-dev prometheus-cpp-dev
  # Vector instructions of whatever CPU the program runs on.
  libhwy-dev
  # Tests; etcd-server for those of its state store, iproute2 for those with
  # several network namespaces, libgloo-dev for the benchmarks' peer, spin for
  # models.
  etcd-server iproute2 libgloo-dev libgmock-dev libgtest-dev spin
  "${tests[@]}" "$@"
)

die() {
  echo "install_deps.sh: $*" >&2
  exit 1
}

command -v dpkg-query > /dev/null ||
  die "this is not a Debian system; install the equivalents of: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
  state="$(dpkg-query -W -f '${db:Status-Status}' "${package}" 2> /dev/null ||
    true)"
  [[ "${state}" == installed ]] || missing+=("${package}")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ "$(id -u)" -ne 0 ]]; then
  command -v sudo > /dev/null || die "these packages are missing and neither" \
    "root nor sudo is at hand. As root: apt-get install ${missing[*]}"
  as_root=(sudo)
fi

log="$(mktemp)"
trap 'rm -f "${log}"' EXIT

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y \
    -o DPkg::Lock::Timeout=300 "$@" < /dev/null >> "${log}" 2>&1
}

install() {
  apt install --no-install-recommends "${missing[@]}"
}

echo "Installing ${#missing[@]} packages: ${missing[*]}" >&2
# Package lists are fetched only where they are absent or too old to install.
if ! apt-cache show --no-all-versions "${missing[@]}" > /dev/null 2>&1 ||
  ! install; then
  apt update || true
  if ! install; then
    cat "${log}" >&2
    die "apt-get could not install: ${missing[*]}"
  fi
fi
