#!/usr/bin/env bash
# Runs one SGLang server in the foreground, on the CPU and on loopback:
#
#   start.sh VERSION ROLE PORT POOL [FLAG...]
#
# VERSION is 0.5.19 or 0.5.20, ROLE is plain, prefill or decode, POOL is the
# number of tokens in its KV pool. The context is 4,096 tokens for every role.
# BOOTSTRAP_PORT is prefill's meeting point (default 8998).
#
# Mooncake's own listeners bind to every interface, so start this only in a
# network namespace of its own. Ended by its process group.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=${BULKHEAD_INTEROP_DIR:-$HOME/.cache/bulkhead/interop}/sglang
version=$1 role=$2 port=$3 pool=$4
shift 4

path=$here/shim
[ "$version" = 0.5.19 ] || path=$path:$root/sglang-$version
export PYTHONPATH=$path PYTHONDONTWRITEBYTECODE=1
# Without this the plain torch path is not taken, and with more than one thread
# on a busy machine one step takes seconds.
export SGLANG_USE_CPU_ENGINE=0 OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1
# As deployments set it whose routers put control fields into headers.
export SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1
export MC_FORCE_TCP=1 MOONCAKE_PROTOCOL=tcp MC_TCP_BIND_ADDRESS=127.0.0.1 SGLANG_HOST_IP=127.0.0.1

flags=(--model-path "$root/model" --served-model-name smol --host 127.0.0.1 --port "$port"
  --device cpu --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph
  --disable-overlap-schedule --dtype bfloat16 --context-length 4096 --max-total-tokens "$pool"
  --enable-metrics --enable-cache-report --skip-server-warmup --max-running-requests 4 --watchdog-timeout 3000)
case $role in
plain) ;;
prefill)
  flags+=(--disaggregation-mode prefill --disaggregation-transfer-backend mooncake_tcp
    --disaggregation-bootstrap-port "${BOOTSTRAP_PORT:-8998}")
  ;;
decode)
  # Without the backup flag decode wants a host pool of more than 10 GiB.
  flags+=(--disaggregation-mode decode --disaggregation-transfer-backend mooncake_tcp
    --disaggregation-decode-retraction-backup cpu_tensor)
  ;;
*)
  echo "start.sh: ROLE is plain, prefill or decode, not $role" >&2
  exit 2
  ;;
esac
exec "$root/venv/bin/python" -m sglang.launch_server "${flags[@]}" "$@"
