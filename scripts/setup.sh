#!/usr/bin/env bash
# Makes .venv from the locked requirements: `setup.sh` for running, `setup.sh dev` for testing as well.
set -euo pipefail
cd "$(dirname "$0")/.."

files=(requirements.txt)
[ "${1:-}" = dev ] && files+=(requirements-dev.txt)
python=.venv/bin/python
stamp=.venv/everturn-${1:-run}.stamp
want=$(cat "${files[@]}" pyproject.toml "$0" | sha256sum)
[ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && exit 0

fail() { printf 'setup: %s\n' "$1" >&2; exit 1; }

base=${PYTHON:-$(command -v python3.11 || command -v python3.12 || command -v python3 || true)}
[ -n "$base" ] || fail 'no python3 on the PATH; install Python 3.11 (Debian: apt-get install python3 python3-venv libnuma1)'
"$base" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' ||
  fail "$base is $("$base" -V 2>&1); Python 3.11 or 3.12 is needed: name one with PYTHON=/path/to/python3.11"
# What the locked packages load and do not bring with them, and what makes an environment, each with who brings it on
# Debian. A library is loaded, not asked a package manager about: it may have come another way.
needed=()
[ "$(uname -s)" != Linux ] || needed+=(libnuma.so.1=libnuma1 libz.so.1=zlib1g libstdc++.so.6=libstdc++6 libgcc_s.so.1=libgcc-s1)
[ -x "$python" ] || needed+=(ensurepip=python3-venv)
missing=$("$base" -c '
import ctypes, importlib, sys
load = lambda name: ctypes.CDLL(name) if ".so" in name else importlib.import_module(name)
names, packages = [], []
for name, _, package in (word.partition("=") for word in sys.argv[1:]):
    try:
        load(name)
    except (ImportError, OSError):
        names.append(name)
        packages.append(package)
if names:
    print(", ".join(names) + "; install what brings it (Debian: apt-get install", " ".join(packages) + ")")
' "${needed[@]}") || fail "$base cannot load libraries, for the reason above; name another Python with PYTHON=/path/to/python3.11"
[ -z "$missing" ] || fail "this machine lacks $missing"
free_mb=$(df -Pm . | awk 'NR == 2 {print $4}')
[ -x "$python" ] || [ "$free_mb" -ge 5000 ] || fail "only $free_mb MB free here; the environment needs 5000 MB"

started=$SECONDS
# Shows that it lives: venv and pip are silent for minutes. On a terminal one line that grows old, in a log one now and then.
tick() {
  local every=10 before='' after='\n'
  if [ -t 1 ]; then every=1 before='\r' after=''; fi
  sleep 2 >/dev/null 2>&1  # not ours to hold the output open once we are gone
  while printf "${before}setup: still installing, %s s${after}" "$((SECONDS - started))"; do sleep "$every" >/dev/null 2>&1; done
}
tick & ticker=$!
over() {
  kill "$ticker" 2>/dev/null && wait "$ticker" 2>/dev/null || true
  if [ -t 1 ]; then printf '\r\033[K'; fi
}
trap over EXIT
if [ ! -x "$python" ]; then
  "$base" -m venv .venv || { rm -rf .venv; fail 'python3 -m venv failed (Debian: apt-get install python3-venv)'; }
fi
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
quietly() { pip install --quiet --no-deps "$@" 2>&1 | { grep -v '^WARNING: Location .* is ignored' || true; }; }

unfinished() { fail "pip could not install $1, for the reason above; put it right (network, disk space, \`pip config list\`), and the next run goes on from here"; }

# The default wheel for Linux on x86-64 is a CUDA build of several GB. Where pip as configured here knows
# the CPU build, that one is taken; elsewhere it comes from the index that PyTorch keeps for it.
torch=$(sed -n 's/^torch==//p' requirements.txt)
if ! "$python" -c "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != '$torch')" 2>/dev/null; then
  echo "setup: torch $torch, CPU build"
  if [ "$(uname -sm)" != 'Linux x86_64' ]; then
    quietly "torch==$torch" || unfinished "torch $torch"
  elif ! pip install --quiet --no-deps "torch==$torch+cpu" >/dev/null 2>&1; then
    quietly --index-url https://download.pytorch.org/whl/cpu "torch==$torch+cpu" || unfinished "torch $torch"
  fi
fi

args=()
for file in "${files[@]}"; do args+=(-r "$file"); done
echo "setup: $(cat "${files[@]}" | grep -c ==) locked packages (a few minutes the first time)"
quietly "${args[@]}" || unfinished 'the locked packages'
quietly --no-build-isolation --editable . || unfinished 'this package'
echo "$want" >"$stamp"
echo "setup: done in $((SECONDS - started)) s"
