#!/usr/bin/env bash
# clang-format, the annotations of locks, and clang-tidy over the C++ files.
#
#   tools/lint.sh                   all files: hours of clang-tidy
#   tools/lint.sh FILE...           these only
#   tools/lint.sh --changed [BASE]  format and locks of all files; clang-tidy of
#                                   the sources that differ from BASE (HEAD~1)
#
# Needs no build. COXSWAIN_LINT_MOST (16) bounds the sources that --changed
# gives to clang-tidy, at some 10 s each; those left out are named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for tool in clang-format-14 clang-tidy-14 clang++-14 protoc grpc_cpp_plugin; do
  command -v "${tool}" > /dev/null || {
    echo "lint.sh: no ${tool}. Install what it needs:" \
      "tools/install_deps.sh clang-14 clang-format-14 clang-tidy-14" >&2
    exit 1
  }
done

folders=(base capi cli client deploy examples hooks schedule server tests train
  transport)
formatted=()
locks=false
sources=()
if [[ "${1:-}" == --changed ]]; then
  base="${2:-HEAD~1}"
  mapfile -t formatted < <(git ls-files -- "${folders[@]/%//*.h}" \
    "${folders[@]/%//*.cc}")
  locks=true
  if git rev-parse --quiet --verify "${base}^{commit}" > /dev/null; then
    mapfile -t sources < <(git diff --name-only --diff-filter=d "${base}" -- \
      "${folders[@]/%//*.cc}")
  else
    echo "lint.sh: ${base} is not in this clone: no clang-tidy" >&2
  fi
  most="${COXSWAIN_LINT_MOST:-16}"
  if [[ "${#sources[@]}" -gt "${most}" ]]; then
    echo "lint.sh: no clang-tidy for: ${sources[*]:most}" >&2
    sources=("${sources[@]:0:most}")
  fi
elif [[ $# -gt 0 ]]; then
  formatted=("$@")
else
  mapfile -t formatted < <(git ls-files -- "${folders[@]/%//*.h}" \
    "${folders[@]/%//*.cc}")
  locks=true
fi
if [[ "${1:-}" != --changed ]]; then
  for file in "${formatted[@]}"; do
    [[ "${file}" != *.cc ]] || sources+=("${file}")
  done
fi

status=0
# Prints what a part found, and how long it took.
part() {
  local name="$1" begun="${SECONDS}"
  shift
  "$@" || {
    echo "lint.sh: ${name} has findings" >&2
    status=1
  }
  echo "lint.sh: ${name}: $((SECONDS - begun)) s" >&2
}

# xargs and not one call: more files than a command line may have.
format() {
  printf '%s\0' "${formatted[@]}" |
    xargs -0 clang-format-14 --dry-run -Werror
}

# -Wthread-safety checks the lock annotations, which gcc ignores.
tidy() {
  printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -I {} \
    clang-tidy-14 --quiet {} -- -std=c++17 -Wall -Wextra -Wthread-safety \
    -I. "-I${generated}" -isystem /usr/include/torch/csrc/api/include
}

part "format of ${#formatted[@]} files" format
if "${locks}" || [[ ${#sources[@]} -gt 0 ]]; then
  generated="$(mktemp -d)"
  trap 'rm -rf "${generated}"' EXIT
  # One by one: programs of tests have messages of the same names.
  while read -r proto; do
    protoc -I. "--cpp_out=${generated}" "--grpc_out=${generated}" \
      "--plugin=protoc-gen-grpc=$(command -v grpc_cpp_plugin)" "${proto}"
  done < <(git ls-files '*.proto')
fi
if "${locks}"; then
  part "annotations of locks" tools/check_locks.py "${generated}"
fi
if [[ ${#sources[@]} -gt 0 ]]; then
  part "clang-tidy of ${#sources[@]} sources" tidy
fi
exit "${status}"
