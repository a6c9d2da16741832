#!/usr/bin/env bash
# Runs bazel in this workspace, with a home folder for its cache even where the
# environment names none (some CI runners, cron, systemd).
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
exec bazel "$@"
