#!/usr/bin/env bash
# make_venv.sh NAME REQUIREMENTS [PIP OPTION]...
# Makes the virtual environment NAME below the user's cache, or makes it anew
# after a change of REQUIREMENTS, and prints its interpreter.
set -euo pipefail
shopt -s inherit_errexit

name="$1"
requirements="$2"
shift 2
# That of the user database, as Bazel's "~": tests have another HOME.
home="$(getent passwd "$(id -u)" | cut -d: -f6 || true)"
[[ -w "${home}" ]] || home="${HOME:-/tmp}"
folder="${XDG_CACHE_HOME:-${home}/.cache}/coxswain/${name}"
mkdir -p "$(dirname "${folder}")"
# One at a time: a second call finds it made.
exec 9> "${folder}.lock"
flock 9
if ! cmp -s "${requirements}" "${folder}/requirements.txt"; then
  python3 -m venv --clear "${folder}" >&2 || {
    echo "make_venv.sh: python3 -m venv failed: apt-get install" \
      "python3-venv" >&2
    exit 1
  }
  echo "Installing $(basename "${requirements}") into ${folder} ..." >&2
  "${folder}/bin/python" -m pip install --quiet --disable-pip-version-check \
    --requirement "${requirements}" "$@" < /dev/null >&2 || {
    echo "make_venv.sh: pip could not install ${requirements} into" \
      "${folder}; it needs a package index" >&2
    exit 1
  }
  # Last, so that it stands for a complete environment.
  cp "${requirements}" "${folder}/requirements.txt"
fi
echo "${folder}/bin/python"
