#!/usr/bin/env bash
# The public conformance suites, from checkouts of theirs, against what `make up` started; each in an environment of its own.
# What they need is installed under .everturn/; nothing is written into the checkouts.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'suites: %s\n' "$1" >&2; exit 1; }

[ -f "${OPEN_RESPONSES:-}/bin/compliance-test.ts" ] ||
  fail "OPEN_RESPONSES='${OPEN_RESPONSES:-}' is no checkout of https://github.com/openresponses/openresponses: clone it, and name its folder"
[ -d "${OGX:-}/tests/integration/responses" ] ||
  fail "OGX='${OGX:-}' is no checkout of https://github.com/ogx-ai/ogx: clone it, and name its folder"
command -v npm >/dev/null || fail 'Open Responses needs Node.js 20 or later with npm, and there is none on the PATH'

python=${SUITES_PYTHON:-$(command -v python3.13 || command -v python3.12 || true)}
[ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' ||
  fail 'OGX needs Python 3.12 or later: name one with SUITES_PYTHON=/path/to/python3.12'

node=.everturn/suites-node
if [ ! -f "$node/node_modules/tsx/package.json" ] || [ ! -f "$node/node_modules/zod/package.json" ]; then
  mkdir -p "$node"
  npm install --prefix "$node" --no-save --no-audit --no-fund --silent 'tsx@4.23.15' 'zod@3.25.76' ||
    { rm -rf "$node"; fail 'npm could not install tsx and zod, for the reason above'; }
fi

home=.everturn/suites wanted=scripts/suites_requirements.txt
if ! cmp -s "$wanted" "$home/requirements.txt"; then
  "$python" -m venv --clear "$home"
  "$home/bin/python" -m pip install -q --disable-pip-version-check -r "$wanted" ||
    { rm -rf "$home"; fail 'pip could not install what OGX'\''s tests import, for the reason above'; }
  cp "$wanted" "$home/requirements.txt"
fi

# What is asked is on this machine; a proxy is for what is installed.
spared=127.0.0.1,localhost${no_proxy:+,$no_proxy}
export no_proxy=$spared NO_PROXY=$spared
PYTHONPATH=. exec .venv/bin/python scripts/suites.py "$@"
