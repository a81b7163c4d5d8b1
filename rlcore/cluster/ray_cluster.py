"""Workers as long-lived Ray actors, owned by this process: when it dies, they die.

Ray is imported here, in ``ray_hosts`` and in ``travel`` alone. Actors reserve GPUs but no CPUs: the
phases alternate, so a worker's CPU use is bounded by its thread count, not by a reservation.
"""

import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants, services
from ray._private import worker as ray_worker
from ray._raylet import (
    AuthenticationTokenLoader,  # pyright: ignore[reportAttributeAccessIssue]
    Config,  # pyright: ignore[reportAttributeAccessIssue]
)
from ray.exceptions import (
    AuthenticationError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.experimental.internal_kv import internal_kv_get_gcs_client

from rlcore.cluster.address import DISABLED, MODE, REFUSED, check_address, require_token
from rlcore.cluster.host_settings import OFF, RAY, set_variables, socket_folder
from rlcore.cluster.hosts import check_token
from rlcore.cluster.progress import Sign, report_to
from rlcore.cluster.ray_hosts import (
    RunHosts,
    forwarded,
    free_port,
    joined_hosts,
    nodes_at,
    store_variables,
)
from rlcore.cluster.ray_processes import Continued, kept_secrets, rays_processes, without_secrets
from rlcore.cluster.travel import NOTHING, Traveller, named
from rlcore.cluster.types import (
    Placement,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    new_rendezvous_file,
)
from rlcore.cluster.watch import LOOK_S, CallWatch, end, labelled, logged
from rlcore.recipes.redaction import redacting
from schemas.errors import UserError

logger = logging.getLogger(__name__)
# Ray's handler of SIGTERM would abort a run that takes three seconds to end.
ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True

LABEL = "RLP_WORKER"
_NAMESPACE = b"rl-pipeline"
_KV_S = 2.0
_KILL_S = 2.0  # for Ray to end an actor
_NOT_UP = ("timed out during startup", "Deadline Exceeded")  # what ``ray.init`` says
_BEYOND = os.environ.get(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, "1")  # of an existing cluster
_RAYS_OWN = (ray_constants.PROCESS_TYPE_GCS_SERVER, ray_constants.PROCESS_TYPE_RAYLET)


class _Actor(Traveller):
    """An object in a separate process, which reports the progress of its calls."""

    def __init__(
        self, target: str, label: bytes, secrets: dict[str, str], host: str, *, elsewhere: bool
    ) -> None:
        os.environ.update(secrets)  # before the target's libraries read them
        if not ray.get_gpu_ids():  # Ray leaves it as the cluster's, and all GPUs visible
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Ray blocks it, also for programs that a reward starts and interrupts.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        super().__init__(target, host, elsewhere=elsewhere)
        report_to(partial(_report_progress, label))
        _report_progress(label, 0, "")

    def process(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    def call(self, *args: Any, **named: Any) -> Any:
        with redacting():
            return super().call(*args, **named)


def _require_ray(meanwhile: str) -> None:
    """Raise WorkerDied where one of Ray's own processes has ended; those of an existing cluster
    are not looked at."""
    node: Any = ray_worker._global_node
    for kind, process in node.dead_processes() if node is not None else ():
        if kind in _RAYS_OWN:
            ended = f"Ray's {kind} (process {process.pid}) ended while {meanwhile}"
            raise logged(WorkerDied, ended)


@contextmanager
def _asking_ray(meanwhile: str) -> Iterator[None]:
    """Raise WorkerDied where Ray, which the body asks, is gone: it would be asked for a minute, and
    this process then be ended."""
    _require_ray(meanwhile)
    try:
        yield
    except Exception:
        _require_ray(meanwhile)
        raise


@contextmanager
def _passing_signals() -> Iterator[None]:
    """Raise what the handler of a signal raised while Ray waited: a cancel, of which Ray makes the
    cause of a SystemError."""
    try:
        yield
    except SystemError as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, Exception):
            raise error.__cause__ from None
        raise


def _sign_of(label: bytes) -> Sign | None:
    with suppress(Exception):  # Ray's own failure, which is handled elsewhere
        client: Any = internal_kv_get_gcs_client()
        stored = client.internal_kv_get(label, _NAMESPACE, timeout=_KV_S)
        return None if stored is None else Sign(*json.loads(stored))
    return None


def _report_progress(label: bytes, count: int, note: str) -> None:
    with suppress(Exception):
        client: Any = internal_kv_get_gcs_client()
        stored = json.dumps([os.getpid(), count, note]).encode()
        client.internal_kv_put(label, stored, True, _NAMESPACE, timeout=_KV_S)


@dataclass(frozen=True, eq=False)
class RayPending:
    """One call in progress in an actor; ``take`` returns the result of what the actor answered."""

    call_watch: CallWatch
    method: str
    reference: "ray.ObjectRef"
    take: Callable[[Any], Any]

    @_passing_signals()
    def result(self, timeout_s: float) -> Any:
        """Wait for the call. An error of the call itself is raised unchanged."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            if ray.wait([self.reference], timeout=min(left, LOOK_S))[0]:
                self.call_watch.answered(self.method)
                return self._answer()
            self.call_watch.look(self.method)
            if left <= LOOK_S:
                raise WorkerTimeout(
                    f"worker '{self.call_watch.name}' did not finish {self.method} within"
                    f" {timeout_s:.0f} s; raise hardware.timeouts or look at its log in the Ray"
                    " session directory"
                )

    def _answer(self) -> Any:
        try:
            return self.take(ray.get(self.reference))
        except RayTaskError as error:  # before the others: it is of its cause's class too
            if isinstance(error.cause, UserError):
                raise error.cause from None
            if isinstance(error.cause, ObjectLostError):
                raise self._died("the host of what was sent to it is lost") from error
            if isinstance(error.cause, Exception) and not isinstance(error.cause, RayError):
                raise error.cause from error
            raise
        except OutOfMemoryError as error:  # by Ray's monitor; pages of statistics follow
            raise self._died(str(error).partition("\n")[0]) from error
        except (RayActorError, ObjectLostError) as error:
            raise self._died(error) from error

    def _died(self, reason: object) -> WorkerError:
        name, method = self.call_watch.name, self.method
        return logged(WorkerDied, f"worker '{name}' died during {method}: {reason}")


@dataclass(eq=False)
class RayWorker:
    """Handle on one actor. ``label``: in the environment of its process, and of those that it
    starts, as ``LABEL``. ``hosts``: of the cluster, where they are several."""

    name: str
    actor: Any
    call_watch: CallWatch
    label: str
    placement: Placement
    hosts: RunHosts | None = None
    stopped: bool = False

    def __post_init__(self) -> None:
        self._pid: ray.ObjectRef = self.actor.process.remote()

    def start(self, method: str, *args: Any, **kwargs: Any) -> RayPending:
        """Queue ``method``; the actor serves calls in order."""
        self.call_watch.begin(method)
        folders, take = None, lambda answer: answer
        if self.hosts is not None:
            args, folders, take = self.hosts.carried(self.placement.host, method, args)
        called = self.actor.call.remote(method, args, kwargs, folders)
        return RayPending(self.call_watch, method, called, take)

    def stop(self) -> None:
        """Kill the actor's process, and on this host those that it has started: a process that
        was killed leaves them behind."""
        self.stopped = True
        actor, labelled_ones = self.process(), labelled(LABEL, self.label)
        ray.kill(self.actor, no_restart=True)
        # Of an actor that ends by our signal Ray tells the user that it died.
        psutil.wait_procs([actor] if actor else [], timeout=_KILL_S)
        end(labelled_ones)

    def process(self) -> psutil.Process | None:
        """Return the actor's process; None where it has not come up, or ended."""
        with suppress(Exception), _passing_signals():  # of Ray that is gone
            if ray.wait([self._pid], timeout=0)[0]:
                process = psutil.Process(ray.get(self._pid, timeout=_KV_S))
                return process if process.cmdline()[0].startswith("ray::") else None
        return None


def _join(address: str, options: dict[str, Any]) -> None:
    try:
        if address == "auto":
            address = services.canonicalize_bootstrap_address_or_die(address)
        answer = check_address(address)
        if answer is not None and os.environ.get(MODE) != answer.mode:
            os.environ[MODE] = answer.mode
            Config.initialize("")  # Ray read the variable when it was imported
            AuthenticationTokenLoader.instance().reset_cache()
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError) as error:  # none is found, or it has other versions
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"hardware.ray_address = '{address}' cannot be joined: {reason}; set it to null for a"
            " cluster of the run's own"
        ) from error


def _start(options: dict[str, Any], limit_s: float) -> None:
    """Start a local Ray, again and again for ``limit_s`` seconds: on a busy machine it gives up
    when a separate process takes 15 s to come up.

    Raises WorkerTimeout when it does not start; what was started has ended then.
    """
    deadline = time.monotonic() + limit_s
    while True:
        before = rays_processes()
        try:
            with without_secrets(services):
                ray.init(address="local", **options)
        except Exception as error:
            if not any(words in str(error) for words in _NOT_UP):
                raise
            ray.shutdown()
            end(rays_processes() - before)
            if time.monotonic() > deadline:
                raise WorkerTimeout(
                    f"Ray did not start within {limit_s:.0f} s; raise hardware.timeouts.start_s or"
                    " look at the logs in its session directory"
                ) from error
            logger.warning("Ray did not start, as it does on a busy machine; it is started again")
        else:
            return


class RayCluster:
    """Our own local Ray runtime, or an existing cluster's when ``address`` is given.

    Our own listens on 127.0.0.1 only, and its workers inherit this process's environment.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        stall_s: float = 45.0,
        start_s: float = 120.0,
        store: str = "",
    ) -> None:
        """Start or join it. ``stall_s``: see ``Watch``. ``store``: the run's, from which
        several hosts fetch artifacts.

        Raises WorkerTimeout when our own Ray has not started within ``start_s`` seconds,
        UserError when the cluster at ``address`` cannot be joined.
        """
        self.stall_s = stall_s
        set_variables()
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "-1":  # which Ray counts as one
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Ray runs workers at niceness 15, at which any other process on the machine would starve
        # them.
        os.environ.setdefault("RAY_worker_niceness", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        self._local = address is None
        # Ray's setting for systems whose firewall asks about every open port: nothing else makes
        # all of its processes listen on 127.0.0.1, or finds a head that was started so. Its
        # processes read the variable, this process the constant.
        os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0" if self._local else _BEYOND
        ray_constants.ENABLE_RAY_CLUSTER = not self._local and _BEYOND != "0"
        if address is None:
            require_token()
            AuthenticationTokenLoader.instance().reset_cache()  # an earlier home's
            # Ray's record of every call, read by a dashboard that this runtime does not have, grows
            # the head by 50 KiB with each iteration of RL.
            os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
            # Ray would start processes ahead, and actors with their own variables need others.
            os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
            options |= {"include_dashboard": False, "num_cpus": max(4, os.cpu_count() or 1)}
            if folder := socket_folder():
                options["_temp_dir"] = f"{folder}/{RAY}"
            _start(options, start_s)
        else:
            _join(address, options)
        node: Any = ray_worker._global_node
        self._continued = Continued(node.live_processes() if self._local else [])
        self._workers: list[RayWorker] = []
        self._meetings: list[str] = []
        hosts = [] if self._local else joined_hosts()
        if os.environ.get(MODE) == DISABLED:
            check_token(address or "", hosts)
        self._hosts = RunHosts(hosts, store, start_s) if len(hosts) > 1 else None

    def spawn(self, target: str, *args: Any, name: str, placement: Placement) -> RayWorker:
        """Start an actor and begin building ``target`` in it."""
        label, hosts = uuid.uuid4().hex, self._hosts
        variables = {**({} if self._local else forwarded()), **placement.env}
        secrets = kept_secrets() if self._local else {}
        options: dict[str, Any] = {}
        require, folders, elsewhere = (_require_ray if self._local else None), NOTHING, False
        if hosts is not None:
            placement = replace(placement, host=placement.host or hosts.own)
            options, elsewhere = hosts.on(placement.host), placement.host != hosts.own
            secrets, variables = store_variables(), {**forwarded(*OFF), **placement.env}
            if elsewhere:
                require, folders = partial(hosts.require, placement.host), named(args)
        # To workers with variables alone, engines among them: Ray sets up an environment for each.
        runtime_env = {"env_vars": {**variables, LABEL: label} if variables else {}}
        # The title of the process is ``ray::Learner`` where ``target`` is a Learner.
        titled = type(target.rpartition(":")[2], (_Actor,), {})
        with _asking_ray(f"worker '{name}' was to start"):
            actor = (
                ray.remote(titled)
                .options(num_cpus=0, num_gpus=placement.gpus, runtime_env=runtime_env, **options)
                .remote(target, label.encode(), secrets, placement.host, elsewhere=elsewhere)
            )
            sign = partial(_sign_of, label.encode())
            call_watch = CallWatch(name, sign, require, stall_s=self.stall_s, here=self._local)
            worker = RayWorker(name, actor, call_watch, label, placement, hosts)
            actor.build.remote(args, folders)
        self._workers.append(worker)
        return worker

    def num_gpus(self) -> float:
        """Return the GPUs of all nodes."""
        with _asking_ray("its GPUs were counted"):
            return float(ray.cluster_resources().get("GPU", 0.0))

    def place(self, placement: Placement, count: int) -> list[Placement]:
        """Return ``placement`` for each of ``count`` workers of one pool; with its host where there
        are several. Raises UserError where they do not fit."""
        if self._hosts is not None:
            living = [worker.placement for worker in self._workers if not worker.stopped]
            return self._hosts.place(placement, count, living)
        present, needed = self.num_gpus(), count * placement.gpus
        if needed > present:
            raise UserError(
                f"hardware needs {needed:g} GPUs but the host of the Ray cluster has {present:g};"
                " lower hardware.learner.ranks or hardware.rollout.engines, or take a host with"
                " more GPUs or a cluster of several hosts (docs/do/scale.md)"
            )
        return [placement] * count

    def rendezvous(self, first: Placement) -> str:
        """Return the URL of a new file or of a free port of rank 0's node as other nodes see it."""
        if self._local:
            self._meetings.append(new_rendezvous_file())
            return self._meetings[-1]
        return free_port() if self._hosts is None else self._hosts.ask(first.host, free_port)

    def close(self) -> None:
        """Kill every actor and leave the runtime, also where Ray or an actor answers no more.

        Another may be started afterwards, in this process too.
        """
        # Of another host's process this one would know the number only.
        processes = [worker.process() for worker in self._workers] if self._local else []
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
        ray.shutdown()
        self._continued.close()
        end(process for process in processes if process is not None)
        for url in self._meetings:  # the last rank removes it, unless it was killed
            Path(url.removeprefix("file://")).unlink(missing_ok=True)


if __name__ == "__main__":  # ``check_address`` asks in a separate process: Ray would warn here
    try:
        print(json.dumps([astuple(host) for host in nodes_at(sys.argv[1])]))
    except AuthenticationError:
        sys.exit(REFUSED)
