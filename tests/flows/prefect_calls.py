"""Calls to the Prefect server of the tests, with exactly the headers that a test gives."""

import base64
import http.client
import json
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

CLIENT = "6f0c5d6e-5f5b-4f2e-9a3e-1d2c3b4a5f60"


@dataclass
class Server:
    """Where it listens, and the header that has its password."""

    port: int
    authorization: str

    def call(
        self, method: str, path: str, body: Any = None, **headers: str | None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        """Send a request with exactly these headers besides a Host and the password; ``None``
        leaves one out."""
        sent = {"Host": f"127.0.0.1:{self.port}", "Authorization": self.authorization}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.putrequest(method, path, skip_host=True)
        payload = b"" if body is None else json.dumps(body).encode()
        sent |= {"Content-Type": "application/json", "Content-Length": str(len(payload))}
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(payload)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read().decode()

    def csrf(self) -> dict[str, str | None]:
        """Return the headers of a token, as a page that knows the password could fetch them."""
        status, _, text = self.call("GET", f"/api/csrf-token?client={CLIENT}")
        assert status == 200, text
        return {"Prefect_Csrf_Token": json.loads(text)["token"], "Prefect_Csrf_Client": CLIENT}


def called(url: str) -> Server:
    """Return the server at ``url``, with the password of this process's environment."""
    password = os.environ["PREFECT_API_AUTH_STRING"]
    port = urlsplit(url).port
    assert port is not None
    return Server(port, "Basic " + base64.b64encode(password.encode()).decode())
