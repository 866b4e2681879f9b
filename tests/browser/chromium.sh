#!/bin/sh
# Makes sure that there is a Chromium for the browser tests: the one that is there, or Debian's where apt may install it.
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null && exit 0
done
as_root=
[ "$(id -u)" = 0 ] || as_root='sudo -n'
if command -v apt-get >/dev/null && $as_root true 2>/dev/null; then
  echo "Installing Chromium with apt-get for the browser tests."
  $as_root apt-get update -q && $as_root apt-get install -q -y --no-install-recommends chromium && exit 0
fi
echo "There is no Chromium, and apt-get cannot install it here. Install chromium for the browser tests; they are skipped until then." >&2
[ "${CI:-}" != true ]
