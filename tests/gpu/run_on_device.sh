#!/bin/bash
# Checks and times Coxswain's kernels on a machine with a GPU. Needs nvcc, g++
# and this folder's repository; no network, no root, nothing to install.
#
#   tests/gpu/run_on_device.sh               all of it, in less than 10 minutes
#   tests/gpu/run_on_device.sh --build-only  compiles: needs no GPU
#   tests/gpu/run_on_device.sh --help
#
# Options: --out DIR (default: a new folder below /tmp) for what it builds and
# for results.json; --seconds N, its own deadline (default 560); --carried FILE,
# what tests/gpu/pack_conformance.sh has made (see docs/gpu.md).
# Variables: CUDA_HOME, COXSWAIN_CUDA_ARCHITECTURES (default: that of the GPU).
#
# Exit status: 0 all passed (what was skipped is listed), 1 something differs or
# failed, 2 wrong options, 3 no GPU, 4 no compiler, 5 does not compile.
set -u

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=
build_only=
seconds=560
carried=

usage() { sed -n '2,/^set -u/p' "${BASH_SOURCE[0]}" | sed '$d;s/^# \{0,1\}//'; }
fail() {
  echo "run_on_device: $2" >&2
  exit "$1"
}

while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --build-only) build_only=1 ;;
    --out | --seconds | --carried)
      [ $# -gt 1 ] || fail 2 "$1 needs a value"
      case "$1" in
        --out) out=$2 ;;
        --seconds) seconds=$2 ;;
        --carried) carried=$2 ;;
      esac
      shift ;;
    *) fail 2 "no such option: $1 (try --help)" ;;
  esac
  shift
done
case "$seconds" in
  '' | *[!0-9]*) fail 2 "--seconds takes a whole number, not '$seconds'" ;;
esac

left() { echo $((seconds - SECONDS)); }
skipped=()
skip() {
  echo "SKIPPED $1"
  skipped+=("$1")
}
failed=()

has_gpu() {
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ] ||
    compgen -G '/proc/driver/nvidia/gpus/*' >/dev/null ||
    nvidia-smi -L >/dev/null 2>&1
}
if [ -z "$build_only" ] && ! has_gpu; then
  fail 3 "no GPU on this machine (neither /dev/nvidia0 nor \
/proc/driver/nvidia/gpus is there): nothing was run. --build-only compiles all \
the same"
fi

cuda=${CUDA_HOME:-/usr/local/cuda}
[ -x "$cuda/bin/nvcc" ] || cuda=/usr
nvcc=$cuda/bin/nvcc
[ -x "$nvcc" ] || fail 4 "no nvcc in CUDA_HOME, /usr/local/cuda or /usr"
command -v g++ >/dev/null || fail 4 "no g++"
for folder in lib64 lib lib/x86_64-linux-gnu; do
  [ -e "$cuda/$folder/libcudart_static.a" ] && lib=$cuda/$folder && break
done
[ -n "${lib:-}" ] || fail 4 "no libcudart_static.a below $cuda"

architectures=${COXSWAIN_CUDA_ARCHITECTURES:-}
if [ -z "$architectures" ] && [ -z "$build_only" ]; then
  architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader \
    2>/dev/null | tr -d . | sort -u | tr '\n' ' ')
fi
architectures=${architectures:-90}
generate=()
for one in $architectures; do
  generate+=("-gencode=arch=compute_$one,code=sm_$one")
done

out=${out:-$(mktemp -d /tmp/coxswain-gpu.XXXXXX)}
out=$(realpath -m -- "$out")
[ -z "$carried" ] || carried=$(realpath -m -- "$carried")
rm -f "$out"/objects/*.o
mkdir -p "$out/objects" "$out/shim/absl/strings" || fail 2 "cannot write to $out"
# All of Abseil that the kernels' headers want.
cat >"$out/shim/absl/strings/string_view.h" <<'SHIM'
#include <string_view>
namespace absl {
using string_view = std::string_view;
}
SHIM

# The same flags as bazel/cuda.bzl: the same bits as the CPU computes.
device_flags=(-c -std=c++17 -O3 --fmad=false --threads=0 -Werror=all-warnings
  "-Xcompiler=-Wall,-Wextra,-O2,-ffp-contract=off" "${generate[@]}")
host_flags=(-c -std=c++17 -O2 -Wall -Wextra -ffp-contract=off)
common=(-DCOXSWAIN_CUDA=1 -I"$root" -I"$out/shim")

compile() {
  local source=$1 object=$2
  case "$source" in
    *.cu) "$nvcc" "${device_flags[@]}" "${common[@]}" -o "$object" "$source" ;;
    *) g++ "${host_flags[@]}" "${common[@]}" -isystem "$cuda/include" \
      -o "$object" "$source" ;;
  esac
}

cd "$root" || exit 2
echo "compiling for $architectures into $out"
sources=()
for source in hooks/kernels/cuda/*.c[cu] client/device/arithmetic.c[cu] \
  tests/gpu/kernel_case.cc tests/gpu/*_cases.cc tests/gpu/case_lists.cc \
  tests/gpu/kernel_check.cc; do
  case "$source" in
    *_test.cc | *_for_test.*) ;;
    *) sources+=("$source") ;;
  esac
done
# As many at a time as there are processors.
jobs_most=$(nproc)
declare -A started=()
for source in "${sources[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs_most" ]; do wait -n; done
  object=$out/objects/${source//\//_}.o
  rm -f "$object"
  compile "$source" "$object" >"$object.log" 2>&1 &
  started[$source]=$object
done
wait
for source in "${sources[@]}"; do
  object=${started[$source]}
  [ -e "$object" ] && continue
  echo "--- $source" >&2
  cat "$object.log" >&2
  failed+=("$source")
done
[ ${#failed[@]} -eq 0 ] || fail 5 "does not compile: ${failed[*]}"
g++ -o "$out/kernel_check" "$out"/objects/*.o -L"$lib" -lcudart_static -ldl \
  -lrt -lpthread || fail 5 "kernel_check does not link"
echo "built $out/kernel_check in $SECONDS s"
[ -z "$build_only" ] || exit 0

# Runs one thing: NAME SECONDS COMMAND...
step() {
  local name=$1 most=$2 status
  shift 2
  [ "$most" -lt "$(left)" ] || most=$(left)
  if [ "$most" -lt 5 ]; then
    skip "$name: out of time"
    return
  fi
  echo "=== $name"
  timeout -k 5 "$most" "$@"
  status=$?
  [ $status -eq 3 ] && fail 3 "no GPU that CUDA can use: nothing was checked"
  [ $status -eq 124 ] && echo "stopped after $most s"
  [ $status -eq 0 ] || failed+=("$name (exit status $status)")
}

nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm \
  --format=csv,noheader 2>/dev/null
step "kernels against the CPU" 150 "$out/kernel_check" check

sanitizer=$cuda/bin/compute-sanitizer
[ -x "$sanitizer" ] || sanitizer=$(command -v compute-sanitizer)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck; do
    step "$tool" 100 "$sanitizer" --tool "$tool" --error-exitcode 1 \
      "$out/kernel_check" check few
  done
else
  skip "memcheck and racecheck: no compute-sanitizer"
fi

step "times" 90 "$out/kernel_check" time "$out/kernels.json" 80

if [ -n "$carried" ]; then
  chmod +x "$carried" 2>/dev/null
  step "communicator over the real NCCL" 90 env \
    "LD_LIBRARY_PATH=$(dirname "$carried")/lib" "$carried"
else
  skip "communicator over the real NCCL: no --carried binary"
fi

if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' \
  2>/dev/null; then
  step "torch's hooks" 90 python3 tests/gpu/torch_hooks.py "$out/torch.json"
else
  skip "torch's hooks: python3 has no torch with CUDA"
fi

python3 - "$out" "${failed[*]:-}" "${skipped[*]:-}" <<'PY'
import json, os, sys

out, failed, skipped = sys.argv[1:]
result = {"failed": failed, "skipped": skipped}
for part in ("kernels", "torch"):
    path = os.path.join(out, part + ".json")
    if os.path.exists(path):
        with open(path) as file:
            result[part] = json.load(file)
# Launches of one exchange without its collectives, ours beside torch's.
parts = {
    "fp16": ["narrow to float16", "widen float16"],
    "bf16": ["narrow to bfloat16", "widen bfloat16"],
}
rows = []
for hook, names in parts.items():
    ours = [k for k in result.get("kernels", {}).get("kernels", [])
            if any(k["name"].startswith(name) for name in names)]
    theirs = result.get("torch", {}).get(hook + " 1 GiB")
    if ours and theirs:
        seconds = sum(k["seconds"] for k in ours)
        rows.append((hook, seconds, theirs["seconds"]))
for model in ("ResNet-50", "GPT-2 XL, 6 layers"):
    for rank in (1, 4):
        name = "%s, rank %d" % (model, rank)
        ours = [k for k in result.get("kernels", {}).get("kernels", [])
                if k["name"].endswith(name)]
        theirs = result.get("torch", {}).get("powersgd " + name)
        if ours and theirs:
            seconds = sum(k["seconds"] for k in ours)
            rows.append(("powersgd " + name, seconds, theirs["seconds"]))
if rows:
    print("Ours are kernels alone, without orthogonalisation and collectives; "
          "torch's are whole hooks at world size 1: no goal is judged by this.")
for name, ours, theirs in rows:
    print("%-36s ours %9.1f us  torch %9.1f us  ratio %.2f"
          % (name, ours * 1e6, theirs * 1e6, theirs / ours))
result["against_torch"] = [
    {"name": n, "seconds": o, "torch_seconds": t} for n, o, t in rows]
with open(os.path.join(out, "results.json"), "w") as file:
    json.dump(result, file, indent=1)
print("results: " + os.path.join(out, "results.json"))
PY

echo "took $SECONDS s"
for one in "${skipped[@]:-}"; do [ -n "$one" ] && echo "skipped: $one"; done
for one in "${failed[@]}"; do echo "FAILED: $one"; done
[ ${#failed[@]} -eq 0 ] || exit 1
echo "all that ran has passed"
