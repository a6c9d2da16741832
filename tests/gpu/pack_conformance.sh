#!/bin/bash
# Makes a folder that a machine with a GPU needs to run the conformance suite of
# communicators over its NCCL, with the libraries that it may lack:
#
#   tests/gpu/pack_conformance.sh FOLDER
#
# and there
#
#   tests/gpu/run_on_device.sh --carried FOLDER/nccl_conformance
#
# It needs a C library at least as new as this machine's.
set -euo pipefail

if [[ $# -ne 1 || "$1" == -* ]]; then
  sed -n '2,/^set -e/p' "${BASH_SOURCE[0]}" | sed '$d;s/^# \{0,1\}//'
  [[ "${1:-}" == --help ]] && exit 0
  exit 2
fi
mkdir -p "$1/lib"
folder="$(realpath -- "$1")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools/run_bazel.sh build //tests/gpu:nccl_conformance
install -m 755 bazel-bin/tests/gpu/nccl_conformance "${folder}/"
# All but the C library's own parts, which belong to the machine.
ldd "${folder}/nccl_conformance" | awk '$2 == "=>" { print $3 }' |
  grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' |
  while read -r library; do
    cp -L -- "${library}" "${folder}/lib/"
  done
# It is loaded when it is needed, so ldd does not know it. A machine that has
# its own may go without.
nccl="${COXSWAIN_NCCL_LIBRARY:-$(find /usr/local/cuda/lib* /usr/lib \
  -name libnccl.so.2 -print -quit 2> /dev/null)}"
[[ -z "${nccl}" ]] || cp -L -- "${nccl}" "${folder}/lib/"
du -sh -- "${folder}"
