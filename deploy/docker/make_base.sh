#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat << 'END'
usage: make_base.sh [OPTION]... [IMAGE]

Makes a base image of Debian with debootstrap, where no registry can be reached
to pull one from, and imports it as IMAGE (default: coxswain-base:bookworm).
Needs root, debootstrap, and a Docker engine.

  --suite NAME    the release of Debian (default: bookworm)
  --mirror URL    where packages come from (default: as this machine's apt)
  --security URL  where security updates come from (default: likewise; "none")
  --help          show this
END
}

fail() {
  echo "make_base.sh: $*" >&2
  exit 1
}

suite=bookworm
mirror=""
security=""
image=""
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h)
      usage
      exit 0
      ;;
    --suite | --mirror | --security)
      [[ $# -ge 2 && -n "$2" ]] || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    -*) fail "unknown option '$1'; try --help" ;;
    *)
      [[ -z "${image}" ]] || fail "one IMAGE, not also '$1'"
      image="$1"
      shift
      ;;
  esac
done
[[ -n "${image}" ]] || image="coxswain-base:${suite}"

[[ "$(id -u)" -eq 0 ]] || fail "debootstrap needs root"
for command in debootstrap docker; do
  command -v "${command}" > /dev/null || fail "${command} is not installed"
done

# The first place from which apt here has packages of release $1.
place_of() {
  apt-get indextargets --format '$(REPO_URI) $(RELEASE)' |
    awk -v release="$1" '$2 == release && !found { print $1; found = 1 }'
}
[[ -n "${mirror}" ]] || mirror="$(place_of "${suite}")"
[[ -n "${mirror}" ]] ||
  fail "apt here knows no packages of ${suite}; give --mirror URL"
[[ -n "${security}" ]] || security="$(place_of "${suite}-security")"
[[ "${security}" != none ]] || security=""

folder="$(mktemp -d)"
trap 'rm -rf --one-file-system "${folder}"' EXIT
root="${folder}/root"
echo "Making ${suite} from ${mirror} ..." >&2
if ! debootstrap --variant=minbase "${suite}" "${root}" "${mirror}" \
  > "${folder}/log" 2>&1; then
  tail -n 20 "${folder}/log" >&2
  fail "debootstrap failed"
fi
{
  echo "deb ${mirror} ${suite} main"
  [[ -z "${security}" ]] || echo "deb ${security} ${suite}-security main"
} > "${root}/etc/apt/sources.list"
# Copyrights stay, as licences ask for.
cat > "${root}/etc/dpkg/dpkg.cfg.d/container" << 'END'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
END
find "${root}/usr/share/doc" -type f ! -name copyright -delete
rm -rf "${root}"/usr/share/{info,locale,man}/* "${root}"/var/log/* \
  "${root}"/var/cache/apt/*.bin "${root}"/var/cache/apt/archives/*.deb \
  "${root}"/var/lib/apt/lists/* "${root}"/etc/{hostname,resolv.conf}
tar -C "${root}" --numeric-owner --one-file-system -c . |
  docker import --change 'CMD ["bash"]' - "${image}"
