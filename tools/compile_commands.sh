#!/usr/bin/env bash
# Writes compile_commands.json, which clangd reads: how each source is compiled.
#
#   tools/compile_commands.sh [TARGET]...     //... by default
#
# Builds the generated sources of the targets first, without a compilation.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=("$@")
[[ ${#targets[@]} -gt 0 ]] || targets=(//...)
set="set(${targets[*]})"

# Files that join several sources, and headers of messages.
generated="$(mktemp)"
commands="$(mktemp ./.compile_commands.XXXXXX)"
trap 'rm -f "${generated}" "${commands}"' EXIT
tools/run_bazel.sh query "
  filter('\.part[0-9]+.*\.genrule\$', deps(${set}) intersect //...) union
  kind('_codegen rule', deps(${set}) intersect //...)" > "${generated}"
if [[ -s "${generated}" ]]; then
  tools/run_bazel.sh build "--target_pattern_file=${generated}"
fi
tools/run_bazel.sh aquery "mnemonic(CppCompile, deps(${set}))" \
  --output=jsonproto --include_artifacts=false |
  tools/compile_commands.py "${PWD}" \
    "$(tools/run_bazel.sh info execution_root)" > "${commands}"
mv "${commands}" compile_commands.json
chmod +r compile_commands.json
