"""This machine alone: the network interface that no other machine reaches."""

import sys

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

# gloo and NCCL listen, without asking who calls, on the interface that these name.
LOOPBACK_ENV = {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
