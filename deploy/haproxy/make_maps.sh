#!/usr/bin/env bash
# make_maps.sh TOKENS FOLDER
# Makes the maps of haproxy.cfg from a file of `coxswain serve --tokens`:
# FOLDER/tokens.map has the SHA-256 of each token, FOLDER/certificates.map the
# token that a certificate is exchanged for, by the common name that `coxswain
# certs` writes (operator, job-NAME). Both are for their owner only. Make them
# again and reload haproxy when tokens change. Subjects of signed tokens are in
# no map: haproxy passes those tokens by their form (COXSWAIN_SIGNED_TOKENS).
set -euo pipefail

fail() {
  echo "make_maps.sh: $*" >&2
  exit 1
}

[[ $# -eq 2 ]] || fail "usage: make_maps.sh TOKENS FOLDER"
tokens="$1" folder="$2"
[[ -r "${tokens}" ]] || fail "cannot read ${tokens}"
[[ -d "${folder}" ]] || fail "there is no folder ${folder}"

umask 077
work="$(mktemp -d "${folder}/.maps.XXXXXX")"
trap 'rm -rf "${work}"' EXIT
: > "${work}/tokens.map"
: > "${work}/certificates.map"
declare -A named
number=0
subjects=0
while read -r name token rest || [[ -n "${name}" ]]; do
  number=$((number + 1))
  # Lines may end as on Windows.
  name="${name%$'\r'}" token="${token%$'\r'}" rest="${rest%$'\r'}"
  [[ -n "${name}" && "${name}" != \#* ]] || continue
  [[ -n "${token}" && -z "${rest}" ]] ||
    fail "${tokens}:${number}: not 'operator TOKEN' or 'job/NAME TOKEN'"
  if [[ "${token}" == subject:* ]]; then
    subjects=$((subjects + 1))
    continue
  fi
  digest="$(printf '%s' "${token}" | sha256sum)"
  echo "${digest%% *} ${name}" >> "${work}/tokens.map"
  [[ -z "${named[${name}]:-}" ]] || continue
  named["${name}"]=1
  echo "${name/#job\//job-} ${token}" >> "${work}/certificates.map"
done < "${tokens}"
[[ -s "${work}/tokens.map" || ${subjects} -gt 0 ]] ||
  fail "${tokens} has neither a token nor a subject"
mv "${work}/tokens.map" "${work}/certificates.map" "${folder}/"
