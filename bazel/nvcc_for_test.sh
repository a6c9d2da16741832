#!/usr/bin/env bash
# In the place of nvcc: the "object" that it is to make has the path of its
# temporary folder, which must be there and must have nothing in it.
set -euo pipefail

while [[ "$1" != -o ]]; do shift; done
object="$2"
[[ -z "$(ls -A "${TMPDIR}")" ]] || {
  echo "nvcc_for_test.sh: ${TMPDIR} is used by others:" >&2
  ls -A "${TMPDIR}" >&2
  exit 1
}
touch "${TMPDIR}/tmpxft_00000002_00000000-6_kernel.cpp1.ii"
echo "${TMPDIR}" > "${object}"
