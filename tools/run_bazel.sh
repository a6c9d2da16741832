#!/usr/bin/env bash
# Runs bazel in this workspace, with a home folder for its cache even where the
# environment names none (some CI runners, cron, systemd). Keeps the compile
# cache below COXSWAIN_CACHE_GIB (20).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z "${HOME:-}" || ! -w "${HOME}" ]]; then
  HOME="$(getent passwd "$(id -u)" | cut -d: -f6 || true)"
  if [[ -z "${HOME}" || ! -w "${HOME}" ]]; then
    HOME="${TMPDIR:-/tmp}/coxswain-home-$(id -u)"
    mkdir -p "${HOME}"
  fi
  export HOME
fi
if [[ "${1:-}" == build || "${1:-}" == test ]]; then
  # Bazel's "~", as in .bazelrc, is the home folder of the user database.
  cache="${HOME}/.cache/coxswain-bazel"
  python3 tools/prune_cache.py "${cache}" "${COXSWAIN_CACHE_GIB:-20}"
  exec bazel "$1" "--disk_cache=${cache}" "${@:2}"
fi
exec bazel "$@"
