#!/usr/bin/env bash
# Clients of others against a running service, each in a virtual environment of its own, which is made on the first run and kept.
#   clients.sh --url URL …      every try of every client (see clients_agents.py and those beside it)
#   clients.sh install NAME     only makes the environment NAME, and says nothing but why it cannot
set -euo pipefail
cd "$(dirname "$0")/.."

# Only what these clients are sent to is asked: LiteLLM would fetch a list of prices when it is imported.
export LITELLM_LOCAL_MODEL_COST_MAP=True

python=${PYTHON:-.venv/bin/python}

# pip of the environment that there is fills it: one of its own, and bytecode of what no client imports, would take as long again.
install() {
  local home=.everturn/$1 wanted=scripts/$1_requirements.txt
  cmp -s "$wanted" "$home/requirements.txt" && return
  "$python" -m venv --clear --without-pip "$home"
  "$python" -m pip --python "$home/bin/python" install --quiet --disable-pip-version-check --no-deps --no-compile -r "$wanted" \
    2> >(grep -v '^WARNING: Location .* is ignored' >&2)
  cp "$wanted" "$home/requirements.txt"
}

if [ "${1:-}" = install ]; then
  install "$2"
  exit
fi

# What is asked is on this machine; a proxy is for what is installed.
spared=127.0.0.1,localhost${no_proxy:+,$no_proxy}
export no_proxy=$spared NO_PROXY=$spared
failed=0
try() {
  local name=$1 script=$2
  shift 2
  # Not `if install`: a condition would have it go on after what failed.
  scripts/clients.sh install "$name" && ".everturn/$name/bin/python" "scripts/$script" "$@" || failed=1
}
try clients clients_agents.py "$@"
try clients clients_langchain.py "$@"
try clients_litellm clients_litellm.py "$@"
exit $failed
