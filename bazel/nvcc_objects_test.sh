#!/usr/bin/env bash
# usage: nvcc_objects_test.sh OBJECT OBJECT
# Each action of nvcc has a temporary folder of its own, and leaves none behind.
set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

[[ $# -eq 2 ]] || fail "two objects expected, not: $*"
first="$(< "$1")"
second="$(< "$2")"
[[ "${first}" == /* && "${second}" == /* ]] ||
  fail "not absolute: '${first}', '${second}'"
[[ "${first##*/}" != "${second##*/}" ]] ||
  fail "two actions have the same temporary folder, ${first}"
for folder in "${first}" "${second}"; do
  [[ ! -e "${folder}" ]] || fail "${folder} was left behind"
done
echo "PASSED: ${first##*/} and ${second##*/}"
