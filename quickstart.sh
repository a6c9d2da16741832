#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat << 'END'
usage: ./quickstart.sh [OPTION]...
       ./quickstart.sh --python [--workers N] [--epochs E]
       ./quickstart.sh --example gpt [--steps N] [--hook SPEC]... [--json FILE]

Trains a small convolutional network on Fashion-MNIST with several worker
processes on this machine, once per hook, and compares the hooks: accuracy,
bytes sent, speed. Installs what is missing with apt, builds with Bazel, and
starts a coordinator and the workers. Needs Debian 12, root or sudo, no GPU.

  --workers N     worker processes (default 2)
  --mode MODE     collective: workers exchange gradients among themselves
                  (default); parameter-server: through the coordinator
  --hook SPEC     how gradients are exchanged, or @FILE with a spec in YAML;
                  repeat it to compare several
                  (default: allreduce, bf16, "powersgd(rank=2,start_step=20)")
  --accumulate K  micro-batches per exchange (default 1)
  --epochs E      passes over the training data (default 2)
  --batch B       samples per worker and micro-batch (default 64)
  --device D      where to train: cpu; cuda, each worker on a GPU of its own;
                  cuda:N; auto (default): on GPUs where there are enough
  --json FILE     also write the results to FILE, replacing it
  --trace FILE    also write a trace of the steps of each worker, for
                  ui.perfetto.dev: rank 0 of trace.json to trace.rank0.json; of
                  several hooks, the first one's to trace.run1.rank0.json
  --namespaces    put half of the workers on each of two hosts, which are
                  network namespaces of this machine with a cable between them.
                  Needs root (sudo does)
  --python        train by PyTorch's DistributedDataParallel, Accelerate and
                  Trainer instead (examples/python), each followed. Downloads
                  torch from a package index, once (2.5 GB)
  --example gpt   train a small GPT on the bytes of a text instead: with one
                  process, and with 4 and 8 on several meshes (pipelines, data
                  and tensor parallelism), which must have the same losses; by
                  each --hook (default bf16) on the last of these
  --steps N       with --example: optimizer steps of each run (default 30)
  --help          show this

An option's value may also follow an equals sign: --workers=4.
END
}

fail() {
  echo "quickstart.sh: $*" >&2
  echo "Try ./quickstart.sh --help" >&2
  exit 2
}

# Checks one option; exits with an explanation if its value cannot be right.
# Hook specs are checked by the program, which knows them.
check() {
  local option="$1" value="$2"
  case "${option}" in
    --workers | --accumulate | --epochs | --batch | --steps)
      [[ "${value}" =~ ^[1-9][0-9]{0,8}$ ]] ||
        fail "${option} needs a whole number of at least 1, not '${value}'"
      [[ "${option}" != --workers || "${value}" -le 64 ]] ||
        fail "--workers: at most 64 make sense on one machine, not ${value}"
      ;;
    --mode)
      [[ "${value}" == collective || "${value}" == parameter-server ]] ||
        fail "--mode is collective or parameter-server, not '${value}'"
      ;;
    --device)
      [[ "${value}" =~ ^(auto|cpu|cuda(:[0-9]{1,3})?)$ ]] ||
        fail "--device is auto, cpu, cuda or cuda:N, not '${value}'"
      ;;
    --example)
      [[ "${value}" == gpt ]] ||
        fail "--example is gpt, not '${value}'"
      ;;
    --hook)
      [[ -n "${value}" ]] || fail "--hook needs a spec, such as allreduce"
      ;;
    --json | --trace)
      [[ -n "${value}" && "${value}" != */ && ! -d "${value}" ]] ||
        fail "${option} needs a file name, not '${value}'"
      [[ -d "$(dirname -- "${value}")" ]] ||
        fail "${option}: there is no folder for '${value}'"
      [[ -w "$(dirname -- "${value}")" ]] ||
        fail "${option}: cannot write to the folder of '${value}'"
      ;;
  esac
}

# The trace of run $2 of several: "out/trace.json" becomes
# "out/trace.run2.json".
trace_of_run() {
  local folder="${1%/*}" name="${1##*/}"
  case "${name}" in
    ?*.*) echo "${folder}/${name%.*}.run$2.${name##*.}" ;;
    *) echo "${folder}/${name}.run$2" ;;
  esac
}

workers=2
mode=collective
device=auto
hooks=()
json=""
trace=""
training=()
python=""
namespaces=""
example=""
steps=""
epochs=1
others=""  # an option that does not go with --python
beside=""  # an option that does not go with --example
while [[ $# -gt 0 ]]; do
  option="${1%%=*}"
  case "${option}" in
    --help | -h)
      usage
      exit 0
      ;;
    --python)
      [[ "$1" == --python ]] || fail "--python takes no value"
      python=yes
      shift
      continue
      ;;
    --namespaces)
      [[ "$1" == --namespaces ]] || fail "--namespaces takes no value"
      namespaces=yes
      others="$1"
      beside="$1"
      shift
      continue
      ;;
    --workers | --mode | --hook | --accumulate | --epochs | --batch) ;;
    --device | --json | --trace | --example | --steps) ;;
    *) fail "unknown option '$1'" ;;
  esac
  if [[ "$1" == *=* ]]; then
    value="${1#*=}"
    shift
  else
    [[ $# -ge 2 && "$2" != --* ]] || fail "${option} needs a value"
    value="$2"
    shift 2
  fi
  check "${option}" "${value}"
  case "${option}" in
    --workers) ;;
    --epochs) epochs="${value}" ;;
    *) others="${option}" ;;
  esac
  case "${option}" in
    --example | --steps | --hook | --json) ;;
    *) beside="${option}" ;;
  esac
  case "${option}" in
    --workers) workers="${value}" ;;
    --mode) mode="${value}" ;;
    --hook)
      # From here on the working folder is this script's.
      [[ "${value}" != @* ]] || value="@$(realpath -- "${value#@}")"
      hooks+=("${value}")
      ;;
    --json) json="$(realpath -- "${value}")" ;;
    --trace) trace="$(realpath -- "${value}")" ;;
    --device) device="${value}" ;;
    --example) example="${value}" ;;
    --steps) steps="${value}" ;;
    *) training+=("${option}" "${value}") ;;
  esac
done
[[ -z "${python}" || -z "${others}" ]] ||
  fail "--python and ${others} do not go together"
[[ -z "${example}" || -z "${beside}" ]] ||
  fail "--example and ${beside} do not go together"
[[ -z "${steps}" || -n "${example}" ]] || fail "--steps needs --example gpt"
[[ -n "${example}" || ${#hooks[@]} -gt 0 ]] ||
  hooks=(allreduce bf16 "powersgd(rank=2,start_step=20)")
if [[ "${mode}" == parameter-server ]]; then
  # What goes through the coordinator is in the CPU's memory.
  [[ "${device}" != cuda* ]] ||
    fail "--mode parameter-server does not go with --device ${device}"
  device=cpu
fi
training+=(--device "${device}")
nodes=(here)
if [[ -n "${namespaces}" ]]; then
  [[ ${EUID} -eq 0 ]] ||
    fail "--namespaces makes network namespaces, which needs root: run it as" \
      "root, or with sudo"
  PATH="${PATH}:/usr/sbin:/sbin"
  command -v ip > /dev/null ||
    fail "--namespaces needs the command ip: install the package iproute2"
  ((workers % 2 == 0)) ||
    fail "--namespaces has two hosts: --workers must be even, not ${workers}"
  nodes=("quickstart-$$-bow" "quickstart-$$-stroke")
fi

cd "$(dirname "${BASH_SOURCE[0]}")"
tools/install_deps.sh
if [[ -n "${python}" ]]; then
  tools/install_deps.sh python3-venv
  python="$(tools/install_torch.sh)"
fi

build=(
  tools/run_bazel.sh build --show_result=0
  "--ui_event_filters=-info,-warning,-debug"
)
if [[ -t 2 ]]; then
  build+=(--ui_actions_shown=1)
else
  build+=(--noshow_progress)
fi
echo "Building (the first time takes some minutes) ..." >&2
if [[ -n "${python}" ]]; then
  "${build[@]}" //cli:coxswain //capi:libcoxswain_c.so < /dev/null
  export COXSWAIN_LIBRARY="${PWD}/bazel-bin/capi/libcoxswain_c.so"
  export PYTHONPATH="${PWD}/python${PYTHONPATH:+:${PYTHONPATH}}"
  for program in ddp accelerate_train trainer; do
    echo "examples/python/${program}.py on ${workers} ranks ..." >&2
    bazel-bin/cli/coxswain run --nproc "${workers}" --no-prefix \
      --log-level warning -- "${python}" "examples/python/${program}.py" \
      --epochs "${epochs}" < /dev/null
  done
  exit 0
fi
if [[ -n "${example}" ]]; then
  "${build[@]}" //cli:coxswain //examples/gpt //examples/gpt:report < /dev/null
  compare=()
  [[ -z "${steps}" ]] || compare+=(--steps "${steps}")
  [[ -z "${json}" ]] || compare+=(--json "${json}")
  for hook in "${hooks[@]}"; do compare+=(--hook "${hook}"); done
  exec "examples/${example}/compare.sh" "${compare[@]}"
fi
"${build[@]}" //cli:coxswain //examples/fashion_mnist:train \
  //examples/fashion_mnist:report < /dev/null

coxswain="bazel-bin/cli/coxswain"
trainer="bazel-bin/examples/fashion_mnist/train"
report="bazel-bin/examples/fashion_mnist/report"

for hook in "${hooks[@]}"; do
  # A wrong spec, or a device that is not there, is an error before anything is
  # started.
  where="$("${trainer}" --hook "${hook}" "${training[@]}" --check \
    --check-workers "${workers}")"
done
echo "${where}" >&2

scratch="$(mktemp -d)"
coordinator=""
clean_up() {
  [[ -z "${coordinator}" ]] || kill "${coordinator}" 2> /dev/null || true
  wait
  rm -rf "${scratch}"
  [[ -z "${namespaces}" ]] || for node in "${nodes[@]}"; do
    ip netns del "${node}" 2> /dev/null || true
  done
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs a command on a host: here, or in the network namespace of that name.
on() {
  local node="$1"
  shift
  if [[ -n "${namespaces}" ]]; then
    exec ip netns exec "${node}" "$@"
  else
    exec "$@"
  fi
}

host=127.0.0.1
serve=()
if [[ -n "${namespaces}" ]]; then
  host=10.79.0.1
  serve=(--insecure)  # in a network of its own
  for node in "${nodes[@]}"; do
    ip netns add "${node}"
    ip -n "${node}" link set lo up
  done
  ip link add cable netns "${nodes[0]}" type veth \
    peer name cable netns "${nodes[1]}"
  for i in 0 1; do
    ip -n "${nodes[i]}" addr add "10.79.0.$((i + 1))/24" dev cable
    ip -n "${nodes[i]}" link set cable up
  done
fi

# The coordinator says on its first line of output that it is listening.
mkfifo "${scratch}/ready"
# In a session of its own, so that Ctrl-C ends the launcher first.
on "${nodes[0]}" setsid "${coxswain}" serve --listen "${host}:0" \
  --state-dir "${scratch}/state" --port-file "${scratch}/port" \
  --log-level warning "${serve[@]}" > "${scratch}/ready" &
coordinator=$!
exec 3< "${scratch}/ready"
read -r -t 30 -u 3 || {
  echo "quickstart.sh: the coordinator did not start" >&2
  exit 1
}
address="${host}:$(< "${scratch}/port")"
echo "Coordinator at ${address}; workers: ${workers}; mode: ${mode};" \
  "hooks to compare: ${#hooks[@]}" >&2

# Runs a launcher on each host with these arguments.
launch_all() {
  local launcher=(here "${coxswain}" run "$@")
  if [[ -n "${namespaces}" ]]; then
    on "${nodes[0]}" "${coxswain}" run --node "${nodes[0]}" "$@" &
    launcher=("${nodes[1]}" "${coxswain}" run --node "${nodes[1]}" "$@")
  fi
  # In the foreground, where Ctrl-C reaches it.
  (on "${launcher[@]}") || return
  [[ -z "${namespaces}" ]] || wait $!
}

run=0
for hook in "${hooks[@]}"; do
  run=$((run + 1))
  launch=(--nnodes "${#nodes[@]}" --nproc $((workers / ${#nodes[@]}))
    --coordinator "${address}" --job "quickstart-${run}")
  [[ "${mode}" == collective ]] || launch+=(--backend parameter_server)
  if [[ -n "${trace}" ]]; then
    file="${trace}"
    [[ ${#hooks[@]} -eq 1 ]] || file="$(trace_of_run "${trace}" "${run}")"
    launch+=(--trace "${file}")
  fi
  launch_all "${launch[@]}" -- \
    "${trainer}" --events --hook "${hook}" "${training[@]}" < /dev/null |
    "${report}" progress --hook "${hook}" --into "${scratch}/results"
done

table=("${report}" table --world "${workers}" --mode "${mode}")
[[ -z "${json}" ]] || table+=(--json "${json}")
"${table[@]}" "${scratch}/results"
[[ -z "${trace}" ]] ||
  echo "Traces are in ${trace%/*}: open them in ui.perfetto.dev" >&2
