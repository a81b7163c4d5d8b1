"""Login to the Prefect UI without typing its password: a one-time link, opened in a browser."""

import os
import sys
import webbrowser
from typing import Any, cast

from flows.local import Site


def login_link(site: Site) -> str:
    """Return a link that logs the browser that opens it into the UI, once and within 5 minutes."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        # The client's type covers Prefect's own routes only.
        reply = cast(Any, client).request("POST", "/login-links")
    return site.ui_url + reply.json()["path"]


def open_ui(site: Site) -> None:
    """Print a login link, and open it where this process has a display."""
    link = login_link(site)
    print(link)
    print(
        f"It works once, for five minutes. From another machine: ssh -L 8000:127.0.0.1:{site.port}"
        " HOST, and open the same path at http://localhost:8000."
    )
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(link)
