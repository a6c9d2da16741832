#!/bin/sh
# run_haproxy.sh CONFIG
# Runs haproxy with haproxy.cfg until it ends or this gets SIGTERM, and reloads
# it when the files of COXSWAIN_CERTS or COXSWAIN_MAPS have changed: it reads
# them only as it starts. Looks every COXSWAIN_RELOAD_SECONDS (60). Calls
# outlive a reload; files that do not fit together leave everything as it is.
set -eu

if [ "$#" -ne 1 ]; then
  echo "usage: run_haproxy.sh CONFIG" >&2
  exit 2
fi

sums() {
  cat "${COXSWAIN_CERTS}"/*.* "${COXSWAIN_MAPS}"/*.map | cksum
}

before="$(sums)"
haproxy -W -db -f "$1" &
haproxy=$!
trap 'kill -TERM "${haproxy}"' TERM INT
(
  while sleep "${COXSWAIN_RELOAD_SECONDS:-60}"; do
    after="$(sums)" || continue
    [ "${after}" != "${before}" ] || continue
    before="${after}"
    kill -USR2 "${haproxy}" || break
  done
) > /dev/null 2>&1 &
watcher=$!

# A signal ends the wait, and not haproxy.
status=0
while kill -0 "${haproxy}" 2> /dev/null; do
  wait "${haproxy}" && status=0 || status=$?
done
kill "${watcher}" 2> /dev/null || true
exit "${status}"
