#!/usr/bin/env bash
# Builds the Debian package of the program: coordinator, launcher, tools, and
# their units. Prints its path.
set -euo pipefail

usage() {
  cat << 'END'
usage: deploy/build_deb.sh [--program FILE] [--out FOLDER]

  --program FILE  take this coxswain instead of building one with Bazel
  --out FOLDER    where the package goes; by default the current folder
END
}

die() {
  echo "build_deb.sh: $*" >&2
  exit 1
}

program=
out="${PWD}"
while [[ $# -gt 0 ]]; do
  case "$1" in
    --program) program="$(realpath -- "${2:?--program needs a file}")" ;;
    --out) out="$(realpath -- "${2:?--out needs a folder}")" ;;
    --help | -h)
      usage
      exit 0
      ;;
    *) die "unknown argument '$1': try --help" ;;
  esac
  shift 2
done
[[ -d "${out}" ]] || die "there is no folder '${out}'"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/layout.sh
source deploy/layout.sh
for tool in dpkg-deb dpkg-shlibdeps; do
  command -v "${tool}" > /dev/null ||
    die "no ${tool} here: apt-get install dpkg-dev"
done
if [[ -z "${program}" ]]; then
  tools/run_bazel.sh build //cli:coxswain >&2
  program="$(tools/run_bazel.sh info bazel-bin)/cli/coxswain"
fi
[[ -x "${program}" ]] || die "'${program}' is no program"

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
root="${work}/root"
umask 022
mkdir -p "${root}/DEBIAN" "${work}/debian"

install_program "${program}" "${root}/usr" vendor-completions
gzip -9n "${root}/usr/share/man/man1/coxswain.1"
for unit in coxswain-coordinator.service coxswain-worker@.service; do
  install -D -m 644 "deploy/systemd/${unit}" \
    "${root}/lib/systemd/system/${unit}"
done
install -D -m 644 deploy/systemd/coordinator.env \
  "${root}/etc/coxswain/coordinator.env"
documents="${root}/usr/share/doc/coxswain"
install -D -m 644 deploy/debian/copyright "${documents}/copyright"
gzip -9nc CHANGELOG.md > "${documents}/changelog.gz"

# What the libraries that the program links belong to.
touch "${work}/debian/control"
depends="$(cd "${work}" &&
  dpkg-shlibdeps -O "${root}/usr/bin/coxswain" 2> "${work}/log")" || {
  cat "${work}/log" >&2
  die "the libraries of the program belong to no package"
}
sed -e "s|@VERSION@|$(program_version)|" \
  -e "s|@ARCHITECTURE@|$(dpkg --print-architecture)|" \
  -e "s|@DEPENDS@|${depends#shlibs:Depends=}|" \
  -e "s|@SIZE@|$(du -sk --apparent-size "${root}/usr" | cut -f 1)|" \
  deploy/debian/control.in > "${root}/DEBIAN/control"
echo /etc/coxswain/coordinator.env > "${root}/DEBIAN/conffiles"
for script in postinst prerm postrm; do
  install -m 755 "deploy/debian/${script}" "${root}/DEBIAN/${script}"
done
(cd "${root}" && find etc lib usr -type f -print0 | sort -z |
  xargs -0 md5sum) > "${root}/DEBIAN/md5sums"

package="${out}/coxswain_$(program_version)_$(dpkg --print-architecture).deb"
dpkg-deb --root-owner-group -Zxz -z2 --build "${root}" "${package}" \
  > /dev/null
echo "${package}"
