"""Stages that run once: Prefect tasks whose results are kept under keys made of content.

Prefect's record is a view; the artifact of the same key in the store decides: a hit is verified
before use, and a stage whose artifact is whole is not run again, whatever the record says of it or
when it is lost.
"""

import hashlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from prefect import Task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.logging import get_run_logger

from rlcore.cluster.progress import activity
from rlcore.diagnostics.memory import explained
from rlcore.recipes.redaction import redacting
from rlcore.results.run import record_stage
from schemas.artifacts import ArtifactRef
from schemas.names import RECORDS
from schemas.stages import Stage
from tasks.runtime.earlier_runs import SHOWN, Shorter, earlier_run
from tasks.runtime.keys import fresh_generation, is_made_by, newest_generation
from tasks.runtime.restarts import Restarts
from tasks.runtime.stage_keys import Declared, declared
from tasks.runtime.stage_run import PipelineRun, StageResult, StageRun, flow_run_id


class CachedStage:
    """A stage as a callable: computes the key, runs or reuses, verifies (``cached_stage``)."""

    def __init__(self, body: Callable[[StageRun], ArtifactRef], declared_as: Declared) -> None:
        self.declared = declared_as
        self.stage = declared_as.stage
        self.kind = declared_as.kind
        self._body = body
        self.task = Task(
            self._run,
            name=declared_as.stage,
            description=body.__doc__,
            persist_result=True,
            result_serializer="json",
            cache_policy=CacheKeyFnPolicy(cache_key_fn=_cache_key),
        )

    def __call__(self, pipeline: PipelineRun, **parents: ArtifactRef) -> ArtifactRef:
        """Return the stage's verified artifact, from cache or by running the body.

        Call it inside a flow; ``parents`` are the artifacts it reads, by role. A cached artifact
        that is missing or damaged is logged, discarded and made again. Raises what the body
        raises, UserError with the remedy where it runs out of memory, ArtifactError when the store
        cannot be read, and CodeDriftError when the stage resumes from checkpoints, other code began
        the run, and the pipeline run does not accept that.
        """
        keys = self.declared.keys(pipeline.recipe, parents)
        run = StageRun(pipeline, stage=self.stage, kind=self.kind, keys=keys, parents=parents)
        run = self._resolve(run)
        run.record_origin()
        record = run.record()
        record_stage(run.store, record, run.lineage())
        pipeline.refresh_page(at_once=True)
        start = time.monotonic()
        state = self.task(run, parents, return_state=True)
        ref: ArtifactRef = state.result()
        cached = state.name == "Cached" or run.reused
        if state.name == "Cached":  # by Prefect's record, which has not looked at the store
            found = self._find(run)
            if found is None:
                get_run_logger().warning(f"{self.stage} is run again: {ref.uri} is gone or damaged")
                ref, cached = self.task.with_options(refresh_cache=True)(run, parents), False
            else:
                ref = found
        result = StageResult(self.stage, ref, cached, time.monotonic() - start)
        pipeline.results.append(result)
        ended = replace(record, sha256=ref.sha256, cached=cached, seconds=result.seconds)
        record_stage(run.store, ended, run.lineage())
        pipeline.refresh_page(at_once=True)
        return ref

    def _resolve(self, run: StageRun) -> StageRun:
        """Return ``run`` in its generation, or the run that continues with a half-done one of other
        code, or with one of fewer iterations."""
        run = run.regenerated(self._generation(run))
        if self.declared.resumes is None:
            return run
        if (made := self._find(run)) is not None:
            run.records = run.store.manifest(made).metadata.get(RECORDS, run.key)
            return run
        log, accepts = get_run_logger().warning, run.pipeline.accept_code
        other = earlier_run(
            run.store,
            self.declared,
            run.keys,
            run.recipe,
            run.generation,
            is_made=lambda key: accepts and self._is_to_be_used(run, key),
            log=log,
        )
        if other is None:
            return run
        if isinstance(other, Shorter):
            if other.obstacle is not None:
                log(f"{self.stage} {other.sentence()}")
                return run
            log(
                f"{self.stage} continues after iteration {other.step} of a run of {other.total}"
                " iterations"
            )
            return run.extending(other)
        if not accepts:
            raise other.refusal(self.stage, run.keys.code, run.store)
        continued = run.continuing(other)
        if self._find(continued) is None:
            log(
                f"{self.stage} continues after iteration {other.step} with other code, as accepted:"
                f" digest {other.code[:SHOWN]} before, {run.keys.code[:SHOWN]} now"
            )
        return continued

    def _generation(self, run: StageRun) -> int:
        """Return the generation of the result that ``run`` is to use or to make."""
        if self.stage in run.pipeline.refresh:
            return fresh_generation(run.store, run.kind, run.key, flow_run_id())
        log = get_run_logger().warning
        return newest_generation(
            run.store, run.kind, run.key, lambda key: self._find(run, key) is not None, log
        )

    def _is_to_be_used(self, run: StageRun, key: str) -> bool:
        """Return whether a result that continued with other code is used as it is."""
        if self.stage in run.pipeline.refresh:
            return is_made_by(run.store, run.kind, key, flow_run_id())
        return self._find(run, key) is not None

    @redacting()
    def _run(self, run: StageRun, parents: dict[str, ArtifactRef]) -> ArtifactRef:
        """Body of the Prefect task; as a separate parameter ``parents`` shows in its graph."""
        existing = self._find(run)
        if existing is None:
            with ExitStack() as held:
                for key in sorted({run.key, run.records}):
                    held.enter_context(run.store.hold(key))
                existing = self._find(run)  # another run may have made it meanwhile
                if existing is None:
                    return self._make(run)
        get_run_logger().info(f"{self.stage} is in the store already: {existing.uri}")
        run.reused = True
        return existing

    def _make(self, run: StageRun) -> ArtifactRef:
        restarts = Restarts(run)
        with activity(f"stage {self.stage}"), explained(lambda: restarts.run.recipe, self.stage):
            ref = restarts.made(lambda run: self._find(run) or self._body(run))
        assert (ref.kind, ref.key) == (run.kind, run.key), (
            f"stage {self.stage} returned {ref.kind}/{ref.key}; return run.put(...)"
        )
        return ref

    def _find(self, run: StageRun, key: str | None = None) -> ArtifactRef | None:
        """Return the whole result of ``run``, or that of another ``key``; drop a damaged one."""
        return run.store.find_or_discard(run.kind, key or run.key, get_run_logger().warning)


def cached_stage(stage: Stage) -> Callable[[Callable[[StageRun], ArtifactRef]], CachedStage]:
    """Make a function of a ``StageRun`` the Prefect task of ``stage``, cached by the key that
    ``declared`` gives it.

    A stage that ``resumes`` continues from checkpoints whose metadata are ``StageRun.resumable``,
    so a half-done run that other code began is refused unless the pipeline run accepts it, and one
    of fewer iterations is continued where ``resumes`` returns no obstacle.
    """
    return lambda body: CachedStage(body, declared()[stage])


def _cache_key(context: Any, parameters: dict[str, Any]) -> str:
    """Name Prefect's record: the content key, apart for each store (a record is of one store, and
    ``runs/store`` means another one in each folder)."""
    run: StageRun = parameters["run"]
    store = hashlib.sha256(run.store.root.encode()).hexdigest()[:8]
    return f"{context.task.name}-{run.key}-{store}"
