#!/usr/bin/env bash
# Installs Mooncake's transfer engine into
#   ${BULKHEAD_INTEROP_DIR:-$HOME/.cache/bulkhead/interop}/transfer
# and nothing into the source tree; a second run changes nothing. A few seconds.
#
# On success it prints PYTHON=the interpreter and SITE=the directory for PYTHONPATH.
# Exit 3: this machine cannot hold it; the reason and the command to run
# afterwards are on standard error. Any other failure: exit 1.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
site=${BULKHEAD_INTEROP_DIR:-${HOME:?}/.cache/bulkhead/interop}/transfer/site

missing() { # missing REASON [COMMAND]: it cannot be had here
	printf 'interop/transfer: SKIP: %s\n' "$1" >&2
	[ -z "${2-}" ] || printf '  first run: %s\n' "$2" >&2
	printf '  then run:  bash interop/transfer/install.sh\n' >&2
	exit 3
}

[ "$(uname -sm)" = "Linux x86_64" ] || missing "the pinned wheel is for Linux on x86-64, this is $(uname -sm)"
python=${BULKHEAD_PYTHON:-$(command -v python3.11 || command -v python3)} || missing "python3 is not installed"
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
	missing "the pinned wheel is for Python 3.11, this is $("$python" --version)" "export BULKHEAD_PYTHON=/path/to/python3.11"
# A shim may move with the working directory; ask for the real interpreter.
python=$("$python" -c 'import sys; print(sys.executable)')
[[ $(ldconfig -p) == *libibverbs.so.1* ]] ||
	missing "Mooncake's library needs libibverbs.so.1" "apt-get install -y libibverbs1"

if ! cmp -s "$here/requirements.txt" "$site/.installed"; then
	rm -rf "$site"
	"$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: \
		--require-hashes --no-compile --target "$site" -r "$here/requirements.txt" >&2 ||
		missing "pip could not install requirements.txt (no package index, or the pinned file is gone)"
	cp "$here/requirements.txt" "$site/.installed"
fi
PYTHONPATH=$site "$python" -c 'import mooncake.engine' >&2 || {
	echo "interop/transfer: Mooncake does not load" >&2
	exit 1
}
printf 'PYTHON=%s\nSITE=%s\n' "$python" "$site"
