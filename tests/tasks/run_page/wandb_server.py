"""A server on the loopback address that keeps the history of runs as wandb's own does: a line is
replaced by what is sent for its number, and a run that is resumed is told how many lines it has."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = "someone"
HELD_S = 60.0  # that a silent server keeps a call


class WandbServer(ThreadingHTTPServer):
    """``histories``: the rows of each run by number, by the run's id; ``summaries``: what each run
    has said last."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.histories: dict[str, dict[int, dict[str, Any]]] = {}
        self.summaries: dict[str, dict[str, Any]] = {}
        self.silent = threading.Event()  # once set, calls are taken and never answered

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def curve(self, run: str, metric: str, step_metric: str) -> list[tuple[int, float]]:
        """Return (step, value) of a metric, in the order of the history's lines."""
        lines = [line for _, line in sorted(self.histories.get(run, {}).items())]
        return [(int(line[step_metric]), line[metric]) for line in lines if metric in line]

    def query(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Answer a GraphQL query by its name."""
        run = variables.get("name") or variables.get("run") or ""
        if name == "UpsertBucket":
            known = run in self.histories
            self.histories.setdefault(run, {})
            project = {"name": variables["project"], "entity": {"name": ENTITY}}
            bucket = {"id": run, "name": run, "displayName": run, "historyLineCount": 0}
            bucket |= {"config": "{}", "sweepName": None, "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": not known}}
        if name == "RunResumeStatus":
            return {"model": {"bucket": self._resumed(run), "id": "m", "name": "p"}}
        if name == "CreateRunFiles":
            return {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": []}}
        return {}

    def _resumed(self, run: str) -> dict[str, Any] | None:
        if run not in self.histories:
            return None
        lines = self.histories[run]
        last = lines[max(lines)] if lines else {}
        return {
            "id": run,
            "name": run,
            "historyLineCount": len(lines),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": json.dumps([json.dumps(last)]),
            "eventsTail": "[]",
            "summaryMetrics": json.dumps(self.summaries.get(run, {})),
            "config": "{}",
            "tags": [],
            "wandbConfig": '{"t": 1}',
        }

    def stream(self, run: str, sent: dict[str, Any]) -> None:
        """Keep the lines of history and summary that a run sends."""
        for name, chunk in (sent.get("files") or {}).items():
            for number, line in enumerate(chunk["content"], start=chunk["offset"]):
                if name == "wandb-history.jsonl":
                    self.histories[run][number] = json.loads(line)
                elif name == "wandb-summary.json":
                    self.summaries[run] = json.loads(line)


class _Handler(BaseHTTPRequestHandler):
    server: WandbServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.silent.is_set():
            threading.Event().wait(HELD_S)
            return
        if self.path == "/graphql":
            sent = json.loads(content)
            name = sent.get("operationName") or sent["query"].split("(")[0].split()[-1]
            self._answer({"data": self.server.query(name, sent.get("variables") or {})})
        else:
            if self.path.endswith("/file_stream"):  # /files/ENTITY/PROJECT/RUN/file_stream
                self.server.stream(self.path.split("/")[-2], json.loads(content))
            self._answer({})

    def _answer(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """Yield a server that runs in a thread until the block ends."""
    with WandbServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
