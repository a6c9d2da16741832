#!/usr/bin/env bash
# compare.sh [--steps N] [--hook SPEC]... [--json FILE]
# Trains examples/gpt with one process, and with 4 and 8 on several meshes, and
# compares losses, speed and what travels along each axis. quickstart.sh builds
# what it needs and calls it. Fails if a mesh has other losses than one process.
set -euo pipefail

steps=30
hooks=()
json=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --steps) steps="$2" ;;
    --hook) hooks+=("$2") ;;
    --json) json=(--json "$2") ;;
    *)
      echo "compare.sh: unknown option '$1'" >&2
      exit 2
      ;;
  esac
  shift 2
done
[[ ${#hooks[@]} -gt 0 ]] || hooks=(bf16)

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
coxswain="bazel-bin/cli/coxswain"
gpt="bazel-bin/examples/gpt/gpt"
report="bazel-bin/examples/gpt/report"

scratch="$(mktemp -d)"
trap 'rm -rf "${scratch}"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Trains on a mesh of so many processes; the rest are options of gpt.
train() {
  local processes="$1" mesh="$2"
  shift 2
  "${coxswain}" run --nproc "${processes}" --mesh "${mesh}" \
    --log-level warning -- "${gpt}" --events --dtype float64 --layers 2 \
    --texts 2 --steps "${steps}" "$@" < /dev/null |
    "${report}" progress --name "${mesh}${*:+ $*}" --into "${scratch}/events"
}

train 1 dp=1
train 4 dp=4 --zero 1
train 4 pp=2,tp=2
train 4 dp=2,tp=2 --sequence
train 8 pp=2,dp=2,tp=2
train 8 pp=2,dp=2,tp=2 --zero 1
for hook in "${hooks[@]}"; do
  train 8 pp=2,dp=2,tp=2 --zero 1 --hook "${hook}"
done
"${report}" table "${json[@]}" "${scratch}/events"

cat << END

Go on with a larger one, or with a mesh of your own:
  ${coxswain} run --nproc 4 --mesh pp=2,dp=2 -- \\
    ${gpt} --steps 1000 --features 128
  ${gpt} --help
docs/gpt.md explains the table, and the program.
END
