"""A process that prepares parts of the data, started by ``rlcore.data.parts`` as ``python -m
rlcore.data.child <socket> <pipe>``; it is watched and ends as that of a reward function does
(``rlcore.rewards.child``)."""

import json
import socket
import sys
import traceback
from multiprocessing.connection import Connection

from rlcore.rewards.child import main


def serve(link: socket.socket) -> None:
    """Answer each part that arrives on ``link`` until the parent closes it."""
    from rlcore.data.messages import decode_part, decode_setup, encode_answer, tokenizer_digest
    from rlcore.data.prepare_part import prepare_part

    messages = Connection(link.detach())
    try:
        tokenizer, work = decode_setup(messages.recv_bytes())
        messages.send_bytes(tokenizer_digest(tokenizer).encode())
        while True:
            part = decode_part(messages.recv_bytes())
            try:
                answer = encode_answer(prepare_part(tokenizer, work, part))
            except Exception:  # noqa: BLE001 - a mistake of ours, raised in the parent
                answer = [json.dumps({"failed": traceback.format_exc()}).encode()]
            for message in answer:
                messages.send_bytes(message)
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), serve)
