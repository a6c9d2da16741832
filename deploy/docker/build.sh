#!/usr/bin/env bash
set -euo pipefail

usage() {
  cat << 'END'
usage: build.sh [OPTION]... [coordinator | worker | cuda]...

Builds images (default: coordinator and worker) from what Bazel has built:
  bazel build //cli:coxswain //examples/elastic
Binaries that were built on a release of Debian need a base image of the same.

  --base IMAGE     image of that release (default: debian:bookworm-slim)
  --tag TAG        of the images (default: the version of this source tree)
  --program FILE   a training program for the worker's image, instead of
                   examples/elastic; may be repeated
  --packages LIST  Debian packages that the programs need, with blanks between
                   (default: libtorch1.13 libopenblas0-pthread)
  --nccl FILE      the libnccl.so.2 to put into the image "cuda"
  --bin DIR        Bazel's output folder (default: bazel-bin)
  --stage DIR      only fill DIR, which must not exist, with what Docker would
                   be given
  --help           show this

Words in DOCKER_BUILD_OPTIONS go to "docker build", for example --network=host
where the engine has no bridge.
END
}

fail() {
  echo "build.sh: $*" >&2
  exit 1
}

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source="${here}/../.."
base=debian:bookworm-slim
tag=""
programs=()
packages="libtorch1.13 libopenblas0-pthread"
nccl=""
bin="${source}/bazel-bin"
stage=""
images=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h)
      usage
      exit 0
      ;;
    --base | --tag | --nccl | --bin | --stage | --program)
      [[ $# -ge 2 && -n "$2" ]] || fail "$1 needs a value"
      if [[ "$1" == --program ]]; then
        programs+=("$2")
      else
        declare "${1#--}=$2"
      fi
      shift 2
      ;;
    --packages)
      [[ $# -ge 2 ]] || fail "$1 needs a value"
      packages="$2"
      shift 2
      ;;
    coordinator | worker | cuda)
      images+=("$1")
      shift
      ;;
    *) fail "unknown word '$1'; try --help" ;;
  esac
done
[[ ${#images[@]} -gt 0 ]] || images=(coordinator worker)
[[ ${#programs[@]} -gt 0 ]] || programs=("${bin}/examples/elastic/elastic")
[[ -n "${tag}" ]] ||
  tag="$(sed -n 's/.*kVersion\[\] = "\(.*\)";.*/\1/p' \
    "${source}/base/version.h")"
[[ -n "${tag}" ]] || fail "no version in base/version.h; give --tag TAG"
# What is missing is said before anything is built.
for image in "${images[@]}"; do
  case "${image}" in
    coordinator) needed=("${bin}/cli/coxswain") ;;
    worker) needed=("${bin}/cli/coxswain" "${programs[@]}") ;;
    cuda)
      [[ -n "${nccl}" ]] || fail "the image cuda needs --nccl FILE"
      needed=("${nccl}")
      ;;
  esac
  for file in "${needed[@]}"; do
    [[ -f "${file}" ]] ||
      fail "there is no ${file}; see --help for what to build first"
  done
done

if [[ -n "${stage}" ]]; then
  mkdir -- "${stage}" || fail "--stage must name a new folder"
  context="${stage}"
else
  context="$(mktemp -d)"
  trap 'rm -rf "${context}"' EXIT
fi

# Bazel's outputs are links, and cannot be written to. Without symbols they are
# half as large.
stage_binary() {
  install -D -m 0755 -- "$1" "$2"
  ! command -v strip > /dev/null || strip --strip-unneeded -- "$2"
}

mkdir -p "${context}/bin/programs" "${context}/lib"
cp "${here}"/{Dockerfile,Dockerfile.cuda,.dockerignore} "${context}/"
for image in "${images[@]}"; do
  case "${image}" in
    coordinator | worker)
      stage_binary "${bin}/cli/coxswain" "${context}/bin/coxswain"
      ;;&
    worker)
      for program in "${programs[@]}"; do
        stage_binary "${program}" \
          "${context}/bin/programs/$(basename -- "${program}")"
      done
      ;;
    cuda) install -D -m 0644 -- "${nccl}" "${context}/lib/libnccl.so.2" ;;
  esac
done
[[ -z "${stage}" ]] || exit 0

read -ra options <<< "${DOCKER_BUILD_OPTIONS:-}"
options+=(--build-arg "VERSION=${tag}")
for image in "${images[@]}"; do
  case "${image}" in
    coordinator | worker)
      docker build "${options[@]}" --build-arg "BASE=${base}" \
        --build-arg "PACKAGES=${packages}" --target "${image}" \
        --tag "coxswain-${image}:${tag}" "${context}"
      ;;
    cuda)
      docker build "${options[@]}" --file "${context}/Dockerfile.cuda" \
        --build-arg "WORKER=coxswain-worker:${tag}" \
        --tag "coxswain-worker-cuda:${tag}" "${context}"
      ;;
  esac
done
