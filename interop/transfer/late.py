"""What of a write lands after the receiver has unregistered its memory.

usage: late.py MEBIBYTES

One process registers memory and waits for a write into it; another writes it in one
piece. When the first samples have landed, the receiver unregisters, and as soon as that
has returned it fills the samples with values of its own, as the next owner would. A
second after the writer is done it counts the samples that are not its own: they were
written after "unregister" had returned 0.

Prints one line of JSON. Everything is on loopback; the engine listens on every interface.
"""

import ctypes
import json
import mmap
import subprocess
import sys
import time

from mooncake.engine import TransferEngine

STEP = 64 << 10  # one sampled byte in so many
OLD, SENT, OWN = 0x00, 0xA5, 0x5A


def engine():
    e = TransferEngine()
    if e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        sys.exit("late.py: the engine does not start")
    return e


def memory(size, fill):
    m = mmap.mmap(-1, size)
    if fill:
        m[:] = bytes([fill]) * size
    return m, ctypes.addressof(ctypes.c_char.from_buffer(m))


def send(target, address, size):
    e = engine()
    m, at = memory(size, SENT)
    if e.register_memory(at, size) != 0:
        sys.exit("late.py: the source is not registered")
    print("go", flush=True)
    print(e.transfer_sync_write(target, at, address, size), flush=True)


def receive(size):
    e = engine()
    m, at = memory(size, OLD)
    view = memoryview(m)[::STEP]
    if e.register_memory(at, size) != 0:
        sys.exit("late.py: the target is not registered")
    target = "127.0.0.1:%d" % e.get_rpc_port()
    child = subprocess.Popen([sys.executable, __file__, "send", target, str(at), str(size)],
                             stdout=subprocess.PIPE, text=True)
    try:
        for line in child.stdout:  # the engine may say things of its own
            if line.strip() == "go":
                break
        begun = time.monotonic()
        while bytes(view[:64]).count(SENT) == 0:
            if time.monotonic() - begun > 30:
                sys.exit("late.py: nothing lands")
        before = bytes(view).count(SENT)
        asked = time.monotonic()
        refused = e.unregister_memory(at)
        took = time.monotonic() - asked
        view[:] = bytes([OWN]) * len(view)
        said = child.communicate(timeout=60)[0].split()
        time.sleep(1)
        after = bytes(view).count(SENT)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    print(json.dumps({
        "samples": len(view), "before": before, "after": after, "unregister": refused, "unregister_ms": round(took * 1000, 2),
        "writer": int(said[-1]) if said and said[-1].lstrip("-").isdigit() else None,
    }), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "send":
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif len(sys.argv) == 2:
        receive(int(sys.argv[1]) << 20)
    else:
        sys.exit(__doc__)
