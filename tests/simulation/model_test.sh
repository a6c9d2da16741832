#!/usr/bin/env bash
# Checks the models of shared memory and of channels exhaustively with spin, and
# that each of their mutants is found wrong, so that a check that finds nothing
# is known to look.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
work="${TEST_TMPDIR:-$(mktemp -d)}"
failures=0

for tool in spin gcc; do
  command -v "${tool}" > /dev/null || {
    echo "model_test.sh: no '${tool}' here; tools/install_deps.sh installs" \
      "it (Debian packages: spin, g++)" >&2
    exit 1
  }
done

# OPTIMISATION MODEL [OPTION ...]: the output of spin about it.
verify() {
  local optimisation="$1" model="$2"
  shift 2
  local folder
  folder="$(mktemp -d "${work}/pan-XXXXXX")"
  (
    cd "${folder}"
    spin "$@" -a "${here}/${model}.pml" &&
      gcc -w "${optimisation}" -DSAFETY -DMEMLIM=4096 -o pan pan.c &&
      ./pan
  ) 2>&1 || true
}

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# The model is right, and all of it was looked at.
expect_right() {
  local output
  output="$(verify -O1 "$@")"
  local states
  states="$(sed -n 's/ states, stored.*//p' <<< "${output}" | tr -d ' ')"
  if grep -q 'errors: 0' <<< "${output}" &&
    ! grep -qi 'depth too small\|out of memory\|not completed' <<< "${output}"
  then
    echo "right: $* (${states} states)"
  else
    fail "$* should be right:"$'\n'"${output}"
  fi
}

# WHAT MODEL [OPTION ...]: the model is wrong, and spin reports WHAT.
expect_wrong() {
  local what="$1"
  shift
  local output
  # Found at once: compiling would take longer than looking.
  output="$(verify -O0 "$@")"
  if grep -q "^pan:1: ${what}" <<< "${output}"; then
    echo "wrong, as it should be: $* ($(sed -n 's/^pan:1: //p' <<< "${output}"))"
  else
    fail "$* should be found wrong (${what}):"$'\n'"${output}"
  fi
}

expect_right phases
expect_right phases -DLATE
expect_right phases -DSTOPS
expect_right phases -DSTOPS -DLATE -DPHASES=2
expect_right phases -DRANKS=3 -DPHASES=2
expect_right phases -DRANKS=3 -DPHASES=1 -DSTOPS
for mutant in BELL_READ_LATE FLAG_SET_LATE ARRIVE_LATE WAKE_WITHOUT_RING; do
  expect_wrong "invalid end state" phases "-D${mutant}"
done
expect_wrong "invalid end state" phases -DSTOPS -DSTOP_WITHOUT_RING

expect_right exchange
expect_right exchange -DRANKS=3 -DOPERATIONS=3
for mutant in ONE_SLOT DIRECT_ONE_PHASE DIRECT_NO_MEETING PIECES_ONE_PHASE; do
  expect_wrong "assertion violated" exchange "-D${mutant}"
done

expect_right slots
expect_right slots -DSLOTS=1
expect_right slots -DSLOTS=3 -DBLOCKS=7
expect_right slots -DSTOPS
expect_right slots -DSTOPS -DSLOTS=3 -DBLOCKS=5
for mutant in ONE_TOO_MANY WITHOUT_ANSWER FREED_EARLY COUNTED_EARLY \
  FREED_ON_ARRIVAL; do
  expect_wrong "assertion violated" slots "-D${mutant}"
done
expect_wrong "invalid end state" slots -DSTOPS -DSTOP_WITHOUT_END

expect_right ring
expect_right ring -DSLOTS=1
expect_right ring -DSLOTS=3 -DBLOCKS=6
expect_right ring -DENDS
expect_right ring -DENDS -DSLOTS=1 -DBLOCKS=3
for mutant in ONE_TOO_MANY COUNTED_EARLY FREED_EARLY; do
  expect_wrong "assertion violated" ring "-D${mutant}"
done
expect_wrong "assertion violated" ring -DENDS -DEND_BEFORE_COUNT
expect_wrong "invalid end state" ring -DCOUNT_AFTER_LOOK
expect_wrong "invalid end state" ring -DENDS -DEND_WITHOUT_RING

[[ "${failures}" -eq 0 ]]
