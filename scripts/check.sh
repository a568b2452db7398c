#!/usr/bin/env bash
# The static checks, each named before it runs; the first that fails ends the run.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin

step() { printf '== %s\n' "$*"; "$@"; }
step $bin/ruff check .
step $bin/ruff format --check .
step $bin/mypy
step $bin/lint-imports
step $bin/deptry .
printf '== squawk on the migrations\n'
$bin/python -m migrations.offline | $bin/squawk --stdin-filepath migrations.sql
