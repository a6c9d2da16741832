#!/bin/bash
# The long run of the fuzz targets: builds them with libFuzzer and sanitizers,
# runs each for a while, and prints a table of what they did.
#
#   tests/fuzz/long_run.sh [--seconds N] [--out DIR] [TARGET]...
#
# N: of each target, 60 by default. DIR: where new inputs are kept, and what
# broke something (default: a new folder below /tmp); given again, a run goes on
# from there. Needs Debian's clang and libclang-rt-14-dev.
#
# Exit status: 0 nothing was found, 1 something was, 2 wrong options.
set -euo pipefail
shopt -s inherit_errexit

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=60
out=
targets=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help) sed -n '2,/^set -e/p' "${BASH_SOURCE[0]}" | sed '$d;s/^# \{0,1\}//'
      exit 0 ;;
    --seconds | --out)
      [[ $# -gt 1 ]] || { echo "long_run: $1 needs a value" >&2; exit 2; }
      if [[ $1 == --seconds ]]; then seconds=$2; else out=$2; fi
      shift ;;
    -*) echo "long_run: no such option: $1 (try --help)" >&2; exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
if ! [[ ${seconds} =~ ^[1-9][0-9]*$ ]]; then
  echo "long_run: --seconds takes a whole number, not '${seconds}'" >&2
  exit 2
fi
[[ -n ${out} ]] || out=$(mktemp -d /tmp/coxswain-fuzz-XXXXXX)
mkdir -p "${out}"
out=$(realpath "${out}")

cd "${root}"
bazel build --config=fuzz //tests/fuzz
# A copy: builds of other configurations replace what is here.
program=${out}/fuzz
cp -f "$(bazel info --config=fuzz bazel-bin)/tests/fuzz/fuzz" "${program}"

# Prints "TARGET RUNS FEATURES INPUTS", or why not.
run() {
  local target=$1
  local found=${out}/${target}
  mkdir -p "${found}/inputs" "${found}/broke"
  local seeds=()
  [[ ! -d tests/fuzz/corpus/${target} ]] ||
    seeds=("tests/fuzz/corpus/${target}")
  # A target that opens sockets gets slower with memory that ASan holds back.
  COXSWAIN_FUZZ_TARGET=${target} ASAN_OPTIONS=quarantine_size_mb=16 \
    "${program}" -max_total_time="${seconds}" -max_len=4096 \
    -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="${found}/broke/" "${found}/inputs" "${seeds[@]}" \
    > "${found}/log" 2>&1 || return 1
  awk -v target="${target}" '
    /number_of_executed_units/ { runs = $2 }
    / ft: / { for (i = 1; i < NF; i++) {
                if ($i == "cov:") cov = $(i + 1)
                if ($i == "ft:") ft = $(i + 1)
                if ($i == "corp:") { inputs = $(i + 1); sub("/.*", "", inputs) }
              } }
    END { printf "| `%s` | %d | %d | %d | %d |\n", target, runs, cov, ft, inputs }
  ' "${found}/log"
}

echo "| target | runs | edges | features | inputs |"
echo "|---|--:|--:|--:|--:|"
broken=0
listed=$("${program}" 2>&1 | sed -n 's/.*must be one of: //p' || true)
for target in ${listed}; do
  if [[ ${#targets[@]} -gt 0 && " ${targets[*]} " != *" ${target} "* ]]; then
    continue
  fi
  if ! run "${target}"; then
    broken=1
    echo "| \`${target}\` | found something: ${out}/${target}/log |"
  fi
done
echo "What was found is below ${out}" >&2
exit "${broken}"
