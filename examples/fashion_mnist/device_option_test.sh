#!/usr/bin/env bash
# --device, as the trainer and the quickstart take it, and the quickstart's
# --example, before anything is started. usage: device_option_test.sh TRAINER QUICKSTART
set -uo pipefail

trainer="$1"
quickstart="$2"
failures=0

# Runs a command; its exit code and its output must be as expected.
expect() {
  local code="$1" text="$2" output rc=0
  shift 2
  output="$("$@" 2>&1)" || rc=$?
  if [[ "${rc}" -ne "${code}" || "${output}" != *"${text}"* ]]; then
    echo "FAILED: $*" >&2
    echo "  exit code ${rc}, expected ${code}; expected '${text}' in:" >&2
    echo "  ${output}" >&2
    failures=$((failures + 1))
  fi
}

wrong="--device is auto, cpu, cuda or cuda:N"
expect 0 "Training on the CPU: --device asks for it" \
  "${trainer}" --check --device cpu
expect 2 "${wrong}" "${trainer}" --check --device gpu
expect 2 "${wrong}" "${quickstart}" --device gpu
expect 2 "${wrong}" "${quickstart}" --device=cuda:x
expect 2 "does not go with --device cuda:0" \
  "${quickstart}" --mode parameter-server --device cuda:0

# What goes with another example is checked there, too.
expect 2 "--example is gpt, not 'x'" "${quickstart}" --example x
expect 2 "--example and --workers do not go together" \
  "${quickstart}" --example gpt --workers 4
expect 2 "--python and --example do not go together" \
  "${quickstart}" --example=gpt --python
expect 2 "--steps needs --example gpt" "${quickstart}" --steps 3
expect 2 "--steps needs a whole number" \
  "${quickstart}" --example gpt --steps 0

found="$("${trainer}" --check --device auto)"
case "${found}" in
  "Training on cuda:0: "?*)
    expect 0 "Training on cuda:0: " "${trainer}" --check --device cuda
    expect 2 "GPU 999" "${trainer}" --check --device cuda:999
    ;;
  "Training on the CPU: "?*)
    # With the reason that auto has printed.
    why="${found#Training on the CPU: }"
    expect 2 "--device cuda: ${why}" "${trainer}" --check --device cuda
    expect 2 "--device cuda:1: ${why}" "${trainer}" --check --device cuda:1
    ;;
  *)
    echo "FAILED: auto prints '${found}'" >&2
    failures=$((failures + 1))
    ;;
esac
exit "$((failures > 0))"
