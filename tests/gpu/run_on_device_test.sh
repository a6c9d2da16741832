#!/bin/bash
# run_on_device.sh as far as a machine without a GPU runs it. Compiling takes
# nvcc minutes: --build-only is tried by hand.
set -u

script=tests/gpu/run_on_device.sh

check() {
  local name=$1 expected=$2 words=$3 output status
  shift 3
  output=$("$@" 2>&1)
  status=$?
  if [ $status -ne "$expected" ] || [[ $output != *"$words"* ]]; then
    echo "$name: exit status $status (expected $expected), output:"
    echo "$output"
    exit 1
  fi
}

check "syntax" 0 "" bash -n $script
check "syntax" 0 "" bash -n tests/gpu/pack_conformance.sh
check "help of packing" 0 "FOLDER" tests/gpu/pack_conformance.sh --help
check "help" 0 "--build-only  compiles: needs no GPU" $script --help
check "a wrong option" 2 "no such option: --fast" $script --fast
check "a missing value" 2 "--out needs a value" $script --out
check "a wrong number" 2 "takes a whole number, not 'soon'" $script \
  --seconds soon
if compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ]; then
  echo "SKIPPED: this machine has a GPU"
else
  check "no GPU" 3 "no GPU on this machine" $script --out "$TEST_TMPDIR/out"
fi
echo "passed"
