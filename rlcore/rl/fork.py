"""RL that continues from what is recorded: of fewer iterations, or from a checkpoint of another
run (``rl.fork``), which the records then name.

Prompts, seeds and the KL coefficient are functions of the iteration alone, and validation that was
due only because RL ended is left out again (``LoopState.within``).

The iterations count on, so that under equal settings the first one of the fork is the next one of
that run: the same prompts, seeds and learning rate.
"""

from dataclasses import replace

from rlcore.learner.checkpoints import KIND as CHECKPOINT
from rlcore.learner.checkpoints import Learners
from rlcore.models.files import MODEL_FOLDER
from rlcore.rl.records import RecordedIterations
from rlcore.rl.state import LoopState
from rlcore.rl.update import step_rates
from rlcore.store.artifacts import ArtifactStore
from rlcore.store.reader import ArtifactReader
from schemas.artifacts import ArtifactRef
from schemas.errors import UserError
from schemas.recipe import Recipe


def why_from_zero(recipe: Recipe, before: int, done: int) -> str | None:
    """Return why RL of ``recipe`` cannot continue after iteration ``done`` of a run that was to
    have ``before`` iterations; None where it can, as every step had the learning rate that it has
    now."""
    rl = recipe.rl
    warmup = rl.critic.warmup_iterations if rl.critic else 0
    trained = [("rl.update.optimizer", rl.update.optimizer, warmup)]
    if rl.critic is not None:
        trained.append(("rl.critic.optimizer", rl.critic.optimizer, 0))
    steps = range(rl.update.steps)
    for path, optimizer, rested in trained:
        for update in range(max(0, done - rested)):
            then, now = (
                step_rates(rl, optimizer, done=update, updates=total - rested, steps=steps)
                for total in (before, rl.iterations)
            )
            if then != now:
                return (
                    f"{path}.schedule (kind = '{optimizer.schedule.kind}') depends on"
                    f" rl.iterations: of {before}, iteration {update + rested + 1} had other"
                    f" learning rates than of {rl.iterations}; kind = 'constant' with warmup_steps"
                    " would continue"
                )
    return None


ROLE = "fork"  # of the record that a fork begins with, as a parent of its first record
SHAPE = (f"{MODEL_FOLDER}/config.json", f"{MODEL_FOLDER}/tokenizer.json")


class Fork:
    """What ``rl.fork`` names: the iteration ``number`` of the records below ``key``."""

    def __init__(self, text: str, store: ArtifactReader) -> None:
        self.key, _, number = text.partition("@")
        self.number = int(number)
        self._store, self._text = store, text

    def recorded(self) -> RecordedIterations:
        """Return the iterations of the other run. Raises UserError where there are none."""
        return RecordedIterations(self._store, self.key, self._text)

    def record(self) -> ArtifactRef:
        """Return the record that RL continues from.

        Raises UserError for an iteration that the run has not come to.
        """
        return self.recorded().ref(self.number)

    def check_kept(self) -> None:
        """Raise UserError, naming the kept checkpoints, where that of ``number`` is gone."""
        recorded = self.recorded()
        recorded.ref(self.number)
        kept = recorded.checkpoints()
        if self.number not in kept:
            there = f"of {', '.join(map(str, kept))}" if kept else "of none"
            raise UserError(
                f"{self._text}: the checkpoint of iteration {self.number} is gone, there are those"
                f" {there}; fork one that is there, and let a run keep more with"
                " rl.checkpoint.keep_last"
            )

    def begin(
        self, store: ArtifactStore, recipe: Recipe, learners: Learners, policy: ArtifactRef | None
    ) -> LoopState:
        """Load the checkpoint into ``learners`` and return the loop's state, not validated yet.

        ``policy``: what the fork's own recipe begins RL with. Raises UserError where the checkpoint
        is gone, of another model, or beyond ``rl.iterations``.
        """
        if self.number >= recipe.rl.iterations:
            raise UserError(beyond(self._text, self.number, recipe))
        self._check_policy(policy, recipe)
        name = f"{self.key}/{self.number:06d}"
        with store.pin(CHECKPOINT, name):
            self.check_kept()
            ref = store.find(CHECKPOINT, name)
            assert ref is not None, "it is kept"
            directory = store.directory(ref)
            for role, learner in learners.items():
                if not (directory / role).is_dir():
                    raise UserError(
                        f"{self._text} has no {role} in its checkpoint, as its run trained none;"
                        " take a preset with the same models, or start without a fork"
                    )
                learner.load(str(directory / role))
            state = LoopState.of_json(store.manifest(ref).metadata["state"])
        coef = LoopState.initial(recipe.rl).kl_coef
        if coef is not None and recipe.rl.algorithm.kl.controller == "adaptive":
            coef = state.kl_coef or coef
        return replace(state, accuracies=None, averaged=None, streak=0, kl_coef=coef, behind=())

    def _check_policy(self, policy: ArtifactRef | None, recipe: Recipe) -> None:
        """Raise UserError unless ``policy`` has the shape and tokenizer of the checkpoint's; below
        an adapter, its weights too, which are in no checkpoint."""
        recorded = self.recorded()
        theirs = recorded.iteration(recorded.first).manifest.parents.get("policy")
        if policy is None or theirs is None:
            return
        if recipe.model.adapter_of("rl") is not None and theirs.sha256 != policy.sha256:
            raise UserError(
                f"{self._text} does not fit: its checkpoint holds an adapter alone, and the policy"
                " below that is not what this recipe's RL starts from; leave the stages before rl"
                " as they were, or start without a fork"
            )
        old, new = (self._store.peek(ref.kind, ref.key) for ref in (theirs, policy))
        if old is None or new is None:
            return
        for name in SHAPE:
            digests = [made.files[name].sha256 for made in (old, new) if name in made.files]
            if len(set(digests)) > 1:
                raise UserError(
                    f"{self._text} does not fit: {name} of its model is not that of this recipe's;"
                    " leave the section model, and the data that a tokenizer is trained on, as they"
                    " were, or start without a fork"
                )


def fork_digests(recipe: Recipe) -> dict[str, str]:
    """Return the digest of the record that RL continues from, by role: part of the stage's key."""
    if recipe.rl.fork is None:
        return {}
    return {ROLE: Fork(recipe.rl.fork, ArtifactReader(recipe.store)).record().sha256}


def beyond(name: str, number: int, recipe: Recipe) -> str:
    """Return the sentence on a fork that has nothing left to do."""
    return (
        f"{name} leaves nothing to do, as rl.iterations = {recipe.rl.iterations} counts from the"
        f" start of RL; give -o rl.iterations={number + 20}, for 20 more"
    )
