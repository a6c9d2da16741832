#!/usr/bin/env bash
# Installs torch, and what else tests in Python and bench.sh use beside it, into
# a virtual environment below the user's cache, if it is not there yet, and
# prints the interpreter. Prints nothing else then.
set -euo pipefail
shopt -s inherit_errexit

usage() {
  cat << 'END'
usage: tools/install_torch.sh [VERSION]

  VERSION  of torch: the one of tests/python/requirements.txt by default, or
           2.6, for the tests tagged long. COXSWAIN_TORCH=2.6 does the same

It is a download of some 2.5 GB, and 4.5 GB on disk, in the folder torch-venv
(or torch-2.6-venv) of ${XDG_CACHE_HOME:-~/.cache}/coxswain. Tests find it
there, or at the path in COXSWAIN_TORCH_PYTHON.
END
}

version="${1:-${COXSWAIN_TORCH:-}}"
case "${version}" in
  "")
    name=torch-venv
    requirements=requirements.txt
    ;;
  2.6)
    name=torch-2.6-venv
    requirements=requirements_2_6.txt
    ;;
  --help | -h)
    usage
    exit 0
    ;;
  *)
    echo "install_torch.sh: no such version '${version}': try --help" >&2
    exit 2
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# All that is needed is named there. Triton, which torch asks for too, is a
# fifth of the download, and only compiles for GPUs.
exec tools/make_venv.sh "${name}" "tests/python/${requirements}" --no-deps
