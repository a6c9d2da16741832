#!/usr/bin/env bash
# Installs the program, the C++ library and the C interface below a prefix, or
# removes them.
set -euo pipefail

usage() {
  cat << 'END'
usage: deploy/install.sh --prefix FOLDER [--built FOLDER]
       deploy/install.sh --prefix FOLDER --uninstall

  --prefix FOLDER  where bin, include, lib and share are, such as /usr/local
  --built FOLDER   take what Bazel has built here (cli/coxswain and
                   deploy/sdk/sdk) instead of building it
  --uninstall      remove what was installed there
END
}

die() {
  echo "install.sh: $*" >&2
  exit 1
}

prefix=
built=
uninstall=no
while [[ $# -gt 0 ]]; do
  case "$1" in
    --prefix)
      prefix="$(realpath --canonicalize-missing -- "${2:?--prefix is empty}")"
      shift
      ;;
    --built)
      built="$(realpath -- "${2:?--built is empty}")"
      shift
      ;;
    --uninstall) uninstall=yes ;;
    --help | -h)
      usage
      exit 0
      ;;
    *) die "unknown argument '$1': try --help" ;;
  esac
  shift
done
[[ -n "${prefix}" ]] || die "--prefix is missing: try --help"
list="${prefix}/share/coxswain/installed-files"

# Files first, then folders that are empty now.
remove_installed() {
  local name
  while read -r name; do
    rm -f -- "${prefix}/${name}"
  done < "${list}"
  sed 's|/[^/]*$||' "${list}" | sort -u | sort -r > "${list}.folders"
  rm -f -- "${list}"
  while read -r name; do
    # A folder may have been removed with one below it.
    (cd "${prefix}" && rmdir -p -- "${name}" 2> /dev/null) || true
  done < <(cat "${list}.folders"; rm -f -- "${list}.folders")
  (cd "${prefix}" && rmdir -p -- share/coxswain 2> /dev/null) || true
}

if [[ "${uninstall}" == yes ]]; then
  [[ -f "${list}" ]] || die "nothing is installed below '${prefix}'"
  remove_installed
  exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=deploy/layout.sh
source deploy/layout.sh
if [[ -z "${built}" ]]; then
  tools/run_bazel.sh build //cli:coxswain //deploy/sdk
  built="$(tools/run_bazel.sh info bazel-bin)"
fi
[[ -x "${built}/cli/coxswain" && -d "${built}/deploy/sdk/sdk" ]] ||
  die "'${built}' lacks cli/coxswain or deploy/sdk/sdk"

# All of it is made elsewhere first: what fails leaves the old files alone.
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
umask 022
install_program "${built}/cli/coxswain" "${work}" site-functions
cp -rL --no-preserve=all "${built}/deploy/sdk/sdk/." "${work}"
strip --strip-unneeded "${work}/lib/libcoxswain_c.so"
mkdir -p "${work}/share/coxswain"
(cd "${work}" && find . -type f -printf '%P\n' | sort) > "${work}.list"
mv "${work}.list" "${work}/share/coxswain/installed-files"
if [[ -f "${list}" ]]; then remove_installed; fi
mkdir -p "${prefix}"
cp -r "${work}/." "${prefix}"
echo "Installed below ${prefix}; to remove it:" \
  "deploy/install.sh --prefix ${prefix} --uninstall"
