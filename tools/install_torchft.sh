#!/usr/bin/env bash
# Installs torchft, which tests/bench/recovery.py measures beside Coxswain, into
# a virtual environment below the user's cache, if it is not there yet, and
# prints the interpreter. Prints nothing else then. Neither a build nor a test
# needs it.
set -euo pipefail
shopt -s inherit_errexit

usage() {
  cat << 'END'
usage: tools/install_torchft.sh

Installs what tests/bench/torchft_requirements.txt lists into the folder
torchft-venv of ${XDG_CACHE_HOME:-~/.cache}/coxswain. torch is that of
tools/install_torch.sh, which is installed first: all are measured with the
same one.
END
}

case "${1:-}" in
  "") ;;
  --help | -h)
    usage
    exit 0
    ;;
  *)
    echo "install_torchft.sh: no such option '$1': try --help" >&2
    exit 2
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
packages() {
  "$1" -c "import sysconfig; print(sysconfig.get_path('purelib'))"
}
torch="$(COXSWAIN_TORCH='' tools/install_torch.sh)"
python="$(tools/make_venv.sh torchft-venv \
  tests/bench/torchft_requirements.txt --no-deps)"
# Its own packages come first.
path="$(packages "${python}")/torch.pth"
if [[ "$(cat "${path}" 2> /dev/null)" != "$(packages "${torch}")" ]]; then
  packages "${torch}" > "${path}"
  "${python}" -c "import torchft" || {
    rm "${path}"
    echo "install_torchft.sh: ${python} cannot import torchft" >&2
    exit 1
  }
fi
echo "${python}"
