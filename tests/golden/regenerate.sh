#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat << 'END'
usage: tests/golden/regenerate.sh [--check]

Runs PyTorch's own communication hooks and its DistributedDataParallel again
and writes what they compute to tests/golden/data, then says which files have
changed. Installs the versions of requirements.txt into a virtual environment
that lasts as long as the run: some 3 GB to download, 5 GB in TMPDIR.
PYTHON=/path/to/python takes an interpreter that has them already.

  --check  write nothing; the exit status is 1 if a file would change
  --help   show this
END
}

check=false
case "${1:-}" in
  "") ;;
  --check) check=true ;;
  --help | -h)
    usage
    exit 0
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
scratch="$(mktemp -d "${TEST_TMPDIR:-${TMPDIR:-/tmp}}/golden.XXXXXX")"
trap 'rm -rf "${scratch}"' EXIT

python="${PYTHON:-}"
if [[ -z "${python}" ]]; then
  if ! python3 -m venv "${scratch}/venv"; then
    echo "no virtual environment; try apt-get install python3-venv" >&2
    exit 1
  fi
  python="${scratch}/venv/bin/python"
  "${python}" -m pip install --quiet --no-cache-dir \
    --requirement "${here}/requirements.txt"
fi

mkdir "${scratch}/data"
PYTHONDONTWRITEBYTECODE=1 "${python}" "${here}/generate.py" "${scratch}/data"

changes="$(diff --brief --recursive "${here}/data" "${scratch}/data" || true)"
if [[ -z "${changes}" ]]; then
  echo "all golden files are as they were, bit by bit"
  exit 0
fi
echo "${changes}"
if [[ "${check}" == true ]]; then exit 1; fi
mkdir -p "${here}/data"
rm -f "${here}"/data/*.safetensors
cp "${scratch}"/data/* "${here}/data/"
echo "wrote ${here}/data"
