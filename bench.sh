#!/usr/bin/env bash
set -euo pipefail
# Also for what fails inside $(...).
shopt -s inherit_errexit

usage() {
  cat << 'END'
usage: ./bench.sh [OPTION]... [NAME]...

Measures Coxswain side by side with its peers: both in one run, in turns, one
thread each, on one core (or on one core for each of two processes). Installs what is missing, builds with Bazel, and ends
with a table. docs/benchmarks.md says how to read it. Needs Debian 12.

  NAME              a benchmark, or several as in 'cast_*' (default: all);
                    quote a pattern, so that the shell leaves it alone
  --list            show the names and what they measure
  --json FILE       also write all samples to FILE, replacing it
  --markdown FILE   also write the table to FILE, between its markers if it
                    has them, as docs/benchmarks.md does
  --samples N       rounds to take, instead of what each benchmark suggests
  --help            show this

A ratio says how many times better Coxswain is than the peer. The exit status
is 0 also when a goal is missed or a row skipped (some need root), and 1 when
something could not be measured.

The peers (pip packages) go to a virtual environment below
${XDG_CACHE_HOME:-~/.cache}/coxswain. COXSWAIN_BENCH_PYTHON names another
interpreter that has them; nothing is installed into that.
END
}

for argument in "$@"; do
  case "${argument}" in
    --help | -h)
      usage
      exit 0
      ;;
  esac
done

# File names are those of the caller's folder.
arguments=()
expects_file=""
list=""
for argument in "$@"; do
  case "${argument}" in
    --list) list=yes ;;
    --json=* | --markdown=*)
      file="${argument#*=}"
      argument="${argument%%=*}=$(realpath -m -- "${file}")"
      ;;
  esac
  [[ -z "${expects_file}" ]] || argument="$(realpath -m -- "${argument}")"
  expects_file=""
  [[ "${argument}" != --json && "${argument}" != --markdown ]] ||
    expects_file=yes
  arguments+=("${argument}")
done

cd "$(dirname "${BASH_SOURCE[0]}")"
driver=tests/bench/bench.py
# A wrong argument is an error before anything is installed.
command -v python3 > /dev/null || tools/install_deps.sh
python3 "${driver}" --check "${arguments[@]}"
[[ -z "${list}" ]] || exit 0

if [[ -n "${COXSWAIN_BENCH_PYTHON:-}" ]]; then
  python="${COXSWAIN_BENCH_PYTHON}"
  tools/install_deps.sh
else
  tools/install_deps.sh python3-venv
  # The one that the tests in Python have, too.
  python="$(COXSWAIN_TORCH='' tools/install_torch.sh)"
fi
"${python}" -c "import numpy, torch" || {
  echo "bench.sh: ${python} lacks a peer. Install what" \
    "tests/python/requirements.txt lists, or unset COXSWAIN_BENCH_PYTHON" >&2
  exit 1
}

build=(
  tools/run_bazel.sh build --show_result=0
  "--ui_event_filters=-info,-warning,-debug"
)
[[ -t 2 ]] || build+=(--noshow_progress)
echo "Building ..." >&2
"${build[@]}" //tests/bench:libcoxswain_bench.so \
  //tests/bench/worker //tests/bench/worker:comm_worker \
  //tests/bench/worker:gloo_worker \
  //tests/bench/schedule:schedule_worker \
  //tests/bench/scale:scale_worker //tests/bench/scale:etcd_worker \
  //tests/bench/checkpoint:checkpoint_worker \
  //tests/bench/bulk:bulk_worker \
  //tests/bench/parameter_server:parameter_worker \
  //cli:coxswain //capi:libcoxswain_c.so < /dev/null

exec "${python}" "${driver}" \
  --library "${PWD}/bazel-bin/tests/bench/libcoxswain_bench.so" \
  --worker "${PWD}/bazel-bin/tests/bench/worker/worker" \
  --comm-worker "${PWD}/bazel-bin/tests/bench/worker/comm_worker" \
  --gloo-worker "${PWD}/bazel-bin/tests/bench/worker/gloo_worker" \
  --schedule-worker "${PWD}/bazel-bin/tests/bench/schedule/schedule_worker" \
  --scale-worker "${PWD}/bazel-bin/tests/bench/scale/scale_worker" \
  --etcd-worker "${PWD}/bazel-bin/tests/bench/scale/etcd_worker" \
  --bulk-worker "${PWD}/bazel-bin/tests/bench/bulk/bulk_worker" \
  --checkpoint-worker \
  "${PWD}/bazel-bin/tests/bench/checkpoint/checkpoint_worker" \
  --parameter-worker \
  "${PWD}/bazel-bin/tests/bench/parameter_server/parameter_worker" \
  --coxswain "${PWD}/bazel-bin/cli/coxswain" \
  --c-library "${PWD}/bazel-bin/capi/libcoxswain_c.so" \
  "${arguments[@]}"
