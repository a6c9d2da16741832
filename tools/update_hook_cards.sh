#!/usr/bin/env bash
# Writes what `coxswain hooks --markdown` prints between the two lines
# <!-- cards --> of docs/hooks.md. Run it after a change to a hook's options,
# help or cost card; a test compares the two.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/run_bazel.sh build //cli:coxswain
cards="$(mktemp)"
page="$(mktemp)"
trap 'rm -f "${cards}" "${page}"' EXIT
bazel-bin/cli/coxswain hooks --markdown > "${cards}"
awk -v cards="${cards}" '
  $0 != "<!-- cards -->" { if (!inside) print; next }
  { print; inside = !inside }
  inside { while ((getline line < cards) > 0) print line }
' docs/hooks.md > "${page}"
cat "${page}" > docs/hooks.md
