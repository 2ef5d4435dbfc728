#!/usr/bin/env bash
# Runs one server of the vLLM peer in the foreground, on loopback, until it is
# killed. It is three processes: start it in a process group of its own and
# kill the group.
#
#   start.sh single           PORT [FLAG...]
#   start.sh nixl-prefill     PORT SIDE LEASE [FLAG...]   LEASE in seconds
#   start.sh nixl-decode      PORT SIDE LEASE [FLAG...]
#   start.sh mooncake-prefill PORT BOOTSTRAP [FLAG...]
#   start.sh mooncake-decode  PORT BOOTSTRAP [FLAG...]
#
# SIDE is the port of NIXL's handshake, BOOTSTRAP that of Mooncake's. FLAGs go
# to vLLM as they are. Settings: POOL (GiB of KV pool, default 1), WINDOW
# (tokens, default 8192; 4096 for a prefill).
#
# HTTP and handshakes listen on 127.0.0.1; Mooncake's own data listener takes
# every interface, so run that pair where there is no other (a network
# namespace). A NIXL server keeps one core busy for as long as it lives.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
home=${BULKHEAD_INTEROP_DIR:-${HOME:?}/.cache/bulkhead/interop}/vllm
usage() {
	sed -n '5,9s/^# *//p' "$0" >&2
	exit 2
}
[ $# -ge 2 ] || usage
kind=$1 port=$2
shift 2

export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 VLLM_CPU_KVCACHE_SPACE=${POOL:-1}
export VLLM_HOST_IP=127.0.0.1 VLLM_CACHE_ROOT=$home/cache
window=${WINDOW:-8192}
extra=()

# connector NAME ROLE SETTINGS: what --kv-transfer-config takes.
connector() {
	extra=(--kv-transfer-config
		"{\"kv_connector\":\"$1\",\"kv_role\":\"$2\",\"kv_buffer_device\":\"cpu\",\"kv_connector_extra_config\":$3,\"kv_load_failure_policy\":\"fail\"}")
}

case $kind in
single) ;;
nixl-prefill | nixl-decode)
	[ $# -ge 2 ] || usage
	export UCX_TLS=tcp,self,sysv,posix,cma UCX_NET_DEVICES=lo
	export VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 VLLM_NIXL_SIDE_CHANNEL_PORT=$1
	role=kv_consumer
	[ "$kind" = nixl-decode ] || { role=kv_producer window=${WINDOW:-4096}; }
	connector NixlConnector "$role" "{\"kv_lease_duration\":$2}"
	shift 2
	;;
mooncake-prefill | mooncake-decode)
	[ $# -ge 1 ] || usage
	export MC_FORCE_TCP=1 VLLM_MOONCAKE_BOOTSTRAP_PORT=$1 PYTHONPATH=$here/shim
	role=kv_consumer
	[ "$kind" = mooncake-decode ] || { role=kv_producer window=${WINDOW:-4096}; }
	connector MooncakeConnector "$role" '{"mooncake_protocol":"tcp"}'
	shift
	;;
*) usage ;;
esac

exec "$home/venv/bin/python" -m vllm.entrypoints.openai.api_server \
	--model "$home/model" --served-model-name smol --host 127.0.0.1 --port "$port" \
	--enforce-eager --max-model-len "$window" --enable-prompt-tokens-details "${extra[@]}" "$@"
