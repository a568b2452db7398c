#!/usr/bin/env bash
# Virtual environments of their own for clients that the service itself does not need, then the tries. LiteLLM stands on another
# version of the official client than the frameworks do, and its Responses API on a package that it does not name.
set -euo pipefail
cd "$(dirname "$0")/.."

# Only what these clients are sent to is asked: LiteLLM would fetch a list of prices when it is imported.
export LITELLM_LOCAL_MODEL_COST_MAP=True

try() {
  local home=.everturn/$1 script=$2
  shift 2
  local packages=()
  while [ "$1" != -- ]; do packages+=("$1"); shift; done
  shift
  if [ ! -x "$home/bin/python" ]; then
    "${PYTHON:-.venv/bin/python}" -m venv "$home"
    "$home/bin/python" -m pip install -q "${packages[@]}" || { rm -rf "$home"; return 1; }
  fi
  "$home/bin/python" "$script" "$@"
}

failed=0
try clients scripts/clients.py 'openai==3.57.0' 'openai-agents==0.24.0' 'langchain-openai==1.7.4' -- "$@" || failed=1
try clients-litellm scripts/clients_litellm.py 'litellm==1.106.12' 'mcp==2.3.0' -- "$@" || failed=1
exit $failed
