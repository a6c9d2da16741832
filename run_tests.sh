#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat << 'END'
usage: ./run_tests.sh [--sanitizers | --all] [--times FILE]
                      [BAZEL OPTION | TARGET]...

Installs what is missing, builds, and runs the tests. The last lines of output
are the slowest tests and compilations and "N passed, N failed", which counts
test cases; the exit status is 0 only if nothing failed and something ran.

  --sanitizers  run the tests under AddressSanitizer + UBSan and under
                ThreadSanitizer instead
  --all         run them plainly and under the sanitizers
  --times FILE  also write how long each test, compilation and phase took to
                FILE, as JSON
  --help        show this

Anything else goes to "bazel test". Without a TARGET all tests are run. Left
out by default are tests tagged bench, gpu or long; for example
  ./run_tests.sh --test_tag_filters=long

Tests of the Python package need torch, which tools/install_torch.sh installs
once into the user's cache (2.5 GB to load). COXSWAIN_TORCH=2.6 takes that
version, and COXSWAIN_TORCH_PYTHON an interpreter that has torch.
END
}

configs=(plain)
options=()
targets=()
times=()
while [[ $# -gt 0 ]]; do
  argument="$1"
  shift
  case "${argument}" in
    --help | -h)
      usage
      exit 0
      ;;
    --sanitizers) configs=(asan tsan) ;;
    --all) configs=(plain asan tsan) ;;
    --times)
      if [[ $# -eq 0 || ! -d "$(dirname -- "$1")" ]]; then
        echo "run_tests.sh: --times needs a file in a folder that exists" >&2
        exit 2
      fi
      times=(--times "$(realpath -- "$(dirname -- "$1")")/$(basename -- "$1")")
      shift
      ;;
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

# Whether tests of the Python package may run, which the sanitizers leave out.
runs_python() {
  [[ "${configs[0]}" == plain ]] || return 1
  local target
  for target in "${targets[@]}"; do
    case "${target}" in
      //... | //tests/... | //tests/python*) return 0 ;;
    esac
  done
  return 1
}
if runs_python; then
  tools/build_wheel.sh --install-tools > /dev/null
  # The environment with torch, unless one is named.
  if [[ -z "${COXSWAIN_TORCH_PYTHON:-}" ]]; then
    COXSWAIN_TORCH_PYTHON="$(tools/install_torch.sh)"
  fi
  options=("--test_env=COXSWAIN_TORCH_PYTHON=${COXSWAIN_TORCH_PYTHON}"
    "${options[@]}")
fi

events="$(mktemp -d)"
trap 'rm -rf "${events}"; echo "0 passed, 1 failed"' EXIT
runs=()
for config in "${configs[@]}"; do
  flags=(--keep_going "--build_event_json_file=${events}/${config}"
    "--profile=${events}/${config}.profile.gz")
  [[ "${config}" == plain ]] || flags+=("--config=${config}")
  code=0
  tools/run_bazel.sh test "${flags[@]}" "${options[@]}" -- "${targets[@]}" \
    < /dev/null || code=$?
  runs+=("${events}/${config}:${code}")
done

status=0
python3 tools/test_summary.py "${times[@]}" "${runs[@]}" || status=$?
trap - EXIT
rm -rf "${events}"
exit "${status}"
