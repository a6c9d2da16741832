#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat << 'END'
usage: ./run_tests.sh [--sanitizers | --all] [BAZEL OPTION | TARGET]...

Installs what is missing, builds, and runs the tests. The last line of output
is "N passed, N failed" and counts test cases; the exit status is 0 only if
nothing failed and something ran.

  --sanitizers  run the tests under AddressSanitizer + UBSan and under
                ThreadSanitizer instead
  --all         run them plainly and under the sanitizers
  --help        show this

Anything else goes to "bazel test". Without a TARGET all tests are run. Left
out by default are tests tagged bench, gpu or long; for example
  ./run_tests.sh --test_tag_filters=long
END
}

configs=(plain)
options=()
targets=()
for argument in "$@"; do
  case "${argument}" in
    --help | -h)
      usage
      exit 0
      ;;
    --sanitizers) configs=(asan tsan) ;;
    --all) configs=(plain asan tsan) ;;
    -//* | //* | :* | @*) targets+=("${argument}") ;;
    -*) options+=("${argument}") ;;
    *) targets+=("${argument}") ;;
  esac
done
[[ ${#targets[@]} -gt 0 ]] || targets=(//...)

cd "$(dirname "${BASH_SOURCE[0]}")"
# Whatever ends this script early, the count is its last line.
trap 'echo "0 passed, 1 failed"' EXIT
tools/install_deps.sh --tests
tools/fetch_kubernetes_schemas.sh

events="$(mktemp -d)"
trap 'rm -rf "${events}"; echo "0 passed, 1 failed"' EXIT
runs=()
for config in "${configs[@]}"; do
  flags=(--keep_going "--build_event_json_file=${events}/${config}")
  [[ "${config}" == plain ]] || flags+=("--config=${config}")
  code=0
  tools/run_bazel.sh test "${flags[@]}" "${options[@]}" -- "${targets[@]}" \
    < /dev/null || code=$?
  runs+=("${events}/${config}:${code}")
done

status=0
python3 tools/test_summary.py "${runs[@]}" || status=$?
trap - EXIT
rm -rf "${events}"
exit "${status}"
