#!/usr/bin/env bash
# clang-format and clang-tidy over the project's C++ files.
#
#   tools/lint.sh             all files
#   tools/lint.sh FILE...     these only
#
# clang-tidy reads generated headers, so build first: bazel build //...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for tool in clang-format-14 clang-tidy-14; do
  command -v "${tool}" > /dev/null || {
    echo "lint.sh: no ${tool}. Install it: apt-get install ${tool}" >&2
    exit 1
  }
done

files=("$@")
if [[ ${#files[@]} -eq 0 ]]; then
  mapfile -t files < <(find base capi cli client deploy examples hooks proto \
    server tests \( -name '*.h' -o -name '*.cc' \) 2> /dev/null | sort)
fi
sources=()
for file in "${files[@]}"; do
  [[ "${file}" == *.cc ]] && sources+=("${file}")
done

status=0
clang-format-14 --dry-run -Werror "${files[@]}" || status=1
if [[ ${#sources[@]} -gt 0 ]]; then
  # -Wthread-safety checks the lock annotations, which gcc ignores.
  flags=(-std=c++17 -Wall -Wextra -Wthread-safety -I. -Ibazel-bin
    -isystem /usr/include/torch/csrc/api/include)
  printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -I {} \
    clang-tidy-14 --quiet {} -- "${flags[@]}" || status=1
fi
exit "${status}"
