#!/usr/bin/env bash
# A virtual environment of its own for clients that the service itself does not need, then the tries in clients.py.
set -euo pipefail
cd "$(dirname "$0")/.."
home=.everturn/clients
if [ ! -x "$home/bin/python" ]; then
  "${PYTHON:-.venv/bin/python}" -m venv "$home"
  "$home/bin/python" -m pip install -q 'openai==3.57.0' 'openai-agents==0.24.0' 'langchain-openai==1.7.4'
fi
exec "$home/bin/python" scripts/clients.py "$@"
