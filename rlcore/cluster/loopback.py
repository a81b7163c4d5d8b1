"""The loopback interface, which no other machine can reach."""

import sys

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

# gloo and NCCL listen without authentication on the interface that these variables name.
LOOPBACK_ENV = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
