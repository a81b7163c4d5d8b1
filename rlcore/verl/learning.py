"""Settings of verl that together define the algorithm: estimator, loss, KL, filter, optimizers."""

from typing import Any

from rlcore.verl.batches import batch_sizes
from rlcore.verl.episodes import lengths
from rlcore.verl.settings import ACTOR, MODEL, ROLLOUT, VerlRun
from schemas.algorithm import ADVANTAGES
from schemas.errors import UserError, did_you_mean
from schemas.presets import PRESETS

OPTIMIZERS = {f"{ACTOR}.optim": "rl.update.optimizer", "critic.optim": "rl.critic.optimizer"}
CORRECTION = "algorithm.rollout_correction"
# Options of rollout_rs -> what rejects by it; for the others the level whose weights it masks.
STATISTICS = {"seq_mean_k1": "geometric", "seq_mean_k3": "k3"}
MASKS = {"token_k1": "token", "seq_sum_k1": "sequence"}


def estimator(run: VerlRun) -> str:
    """Return our name of the advantage estimator; verl's default is gae."""
    return run.choice("algorithm.adv_estimator")


def preset(run: VerlRun) -> str:
    """Return the closest preset; the recipe lists the settings in which verl differs."""
    if run.choice(f"{ACTOR}.policy_loss.loss_mode") == "gspo":
        return "gspo"
    near = {"gae": "ppo", "grpo": "grpo", "remax": "remax"}
    return near.get(estimator(run), "rloo")


def filters(run: VerlRun) -> bool:
    """Return whether groups without a signal are filtered out."""
    return run.flag("algorithm.filter_groups.enable")


def advantage(run: VerlRun) -> dict[str, Any]:
    """Estimator, policy loss and aggregation. verl's default: token-mean over the mini-batch."""
    name, base = estimator(run), preset(run)
    if "algorithm.adv_estimator" not in run.values:
        run.note("algorithm.adv_estimator is not set: gae, verl's default (PPO with a critic)")
    ours: dict[str, Any] = {"rl.preset": base, "rl.algorithm.advantage": name}
    for key in ("gamma", "lam"):
        if name == "gae" or (key == "gamma" and ADVANTAGES[name].gamma):
            ours[f"rl.algorithm.gae.{key}"] = run.number(f"algorithm.{key}", 1.0)
    if name == "grpo":
        ours["rl.algorithm.norm_by_std"] = run.flag("algorithm.norm_adv_by_std_in_grpo", True)
    mode = run.choice(f"{ACTOR}.policy_loss.loss_mode")
    aggregation = run.choice(f"{ACTOR}.loss_agg_mode")
    if mode == "gspo":
        return ours
    if mode == "cispo":
        ours["rl.algorithm.policy_loss"] = "cispo"
    if not run.has(f"{ACTOR}.loss_agg_mode") and base == "grpo":
        run.note(
            f"{ACTOR}.loss_agg_mode is not set: token-mean, verl's default, where the GRPO paper"
            " and our preset use seq-mean-token-mean"
        )
    return ours | {"rl.algorithm.aggregation": aggregation}


def samples(run: VerlRun) -> dict[str, Any]:
    """Group size: rollout.n, or env.rollout.n where environments repeat the prompt."""
    sizes = {key: run.count(key, 1) for key in (f"{ROLLOUT}.n", "env.rollout.n")}
    asked = {key: size for key, size in sizes.items() if size != 1}
    if len(set(asked.values())) > 1:
        raise UserError(
            f"{ROLLOUT}.n = {sizes[f'{ROLLOUT}.n']} and env.rollout.n = {sizes['env.rollout.n']}"
            " both set how often a prompt is sampled; set one of them"
        )
    size = max(sizes.values())
    needs = f"algorithm.adv_estimator={run.get('algorithm.adv_estimator', 'gae')}"
    if filters(run) and not ADVANTAGES[estimator(run)].group:
        needs = "algorithm.filter_groups.enable=True"
    if size == 1 and (ADVANTAGES[estimator(run)].group or filters(run)):
        if not run.excerpt or any(run.has(key) for key in sizes):
            raise UserError(
                f"{needs} compares the samples of a prompt and {ROLLOUT}.n is 1; set it to at"
                " least 2"
            )
        size = PRESETS[preset(run)]["rollout"].get("samples", 8)
        run.note(f"{ROLLOUT}.n is not shown: {size}, as in our preset")
    return {"rl.rollout.samples": size}


def clips(run: VerlRun) -> dict[str, Any]:
    """Clip range and dual clip c (3 in verl, on by default)."""
    keys = {side: f"{ACTOR}.clip_ratio_{side}" for side in ("low", "high", "c")}
    both = run.number(f"{ACTOR}.clip_ratio", 0.2)
    if preset(run) == "gspo":
        given = any(run.has(key) for key in (keys["low"], keys["high"], f"{ACTOR}.clip_ratio"))
        if not given:
            run.note(
                f"{ACTOR}.clip_ratio_*: verl's .2 would never clip a sequence's ratio; the preset's"
                " 3e-4 and 4e-4 (GSPO paper) are used"
            )
            return {}
        dual = None
    else:
        dual = run.number(keys["c"], 3.0)
    return {
        "rl.algorithm.clip_low": min(run.number(keys["low"], both), 1.0),  # no ratio is below 0
        "rl.algorithm.clip_high": run.number(keys["high"], both),
        "rl.algorithm.clip_dual": dual,
    }


def kl(run: VerlRun) -> dict[str, Any]:
    """Where the KL applies: in the loss or in the reward.

    A kl_ctrl.kl_coef without either switch is read as KL in the reward: verl before 0.3 did so, and
    verl's one-GPU example relies on it; verl 0.3 and later ignore it.
    """
    in_loss, switch = run.flag(f"{ACTOR}.use_kl_loss"), "algorithm.use_kl_in_reward"
    in_reward = run.flag(switch)
    if in_loss and in_reward:
        raise UserError(
            f"{ACTOR}.use_kl_loss and {switch} are both True and a recipe has one KL; set one of"
            " them to False"
        )
    coefficient = "algorithm.kl_ctrl.kl_coef"
    if not in_loss and switch not in run.values and run.number(coefficient, 0.0):
        in_reward = True
        run.note(
            f"{coefficient} is set and {switch} is not: read as KL in the reward, as in verl before"
            f" the switch existed; for no KL, set {switch}=False"
        )
    for key, on in ((f"{ACTOR}.kl_loss_coef", in_loss), (coefficient, in_reward)):
        if run.number(key, 0.0) and not on:
            run.note(f"{key} is left out: its switch is off, so verl ignores it too")
    path = "rl.algorithm.kl"
    if in_loss:
        name = run.choice(f"{ACTOR}.kl_loss_type")
        if name == "k1":
            run.note(
                f"{ACTOR}.kl_loss_type = {run.get(f'{ACTOR}.kl_loss_type')}: as a loss its expected"
                " gradient is zero; set rl.algorithm.kl.estimator to k2 or k1+, which pull towards"
                " the reference"
            )
        weight = run.number(f"{ACTOR}.kl_loss_coef", 0.001)
        return {f"{path}.where": "loss", f"{path}.estimator": name, f"{path}.coef": weight}
    if not in_reward:
        return {f"{path}.where": "none"}
    ours: dict[str, Any] = {
        f"{path}.where": "reward",
        f"{path}.estimator": run.choice("algorithm.kl_penalty").rstrip("+"),
        f"{path}.coef": run.number(coefficient, 0.001),
        f"{path}.controller": run.choice("algorithm.kl_ctrl.type"),
    }
    if ours[f"{path}.controller"] == "adaptive":
        ours[f"{path}.target"] = run.number("algorithm.kl_ctrl.target_kl", 0.1)
        ours[f"{path}.horizon"] = run.count("algorithm.kl_ctrl.horizon", 10_000)
    return ours


def correction(run: VerlRun) -> dict[str, Any]:
    """Importance weights by their two names, and masks; a threshold alone switches nothing on."""
    path, theirs = "rl.algorithm.importance_correction", f"{CORRECTION}.rollout_is"
    if run.flag(f"{CORRECTION}.bypass_mode"):
        run.choice(f"{CORRECTION}.loss_type")
        for key in (theirs, f"{CORRECTION}.rollout_rs"):
            if run.has(key):
                run.notes.differs.append(
                    f"{key} = {run.get(key)}: bypass_mode leaves no old log-probs to compute it of"
                )
        return {"rl.update.old_logprobs": "rollout"}
    cap = run.number(f"{ACTOR}.tis_imp_ratio_cap", -1)
    ours: dict[str, Any] = {f"{path}.level": "token", f"{path}.cap": cap} if cap > 0 else {}
    if run.has(theirs):
        level = run.choice(theirs)
        low, cap = _bounds(f"{theirs}_threshold", run.get(f"{theirs}_threshold", 2.0))
        ours = {f"{path}.level": level, f"{path}.cap": cap}
        if low is not None:
            ours |= {f"{path}.mode": "mask", f"{path}.low": low}
    reject = []
    for option, low, high in _rejections(run):
        if option in STATISTICS:
            bounds = {"low": low, "high": high} if low is not None else {"high": high}
            reject.append({"statistic": STATISTICS[option], **bounds})
        elif ours.get(f"{path}.level") == MASKS[option] and high <= cap:
            # What truncates beyond the mask truncates nothing.
            ours |= {f"{path}.mode": "mask", f"{path}.low": low, f"{path}.cap": high}
        else:
            raise UserError(
                f"{CORRECTION}.rollout_rs = {option!r} keeps weights up to {high:g}, and a recipe"
                f" masks by the weight that it multiplies with; set {theirs} to {MASKS[option]} and"
                f" its threshold to at least {high:g}"
            )
    if reject:
        ours[f"{path}.reject"] = reject
    if reject or f"{path}.mode" in ours:
        run.note(
            f"{CORRECTION}: masked tokens stay in the denominators of the loss and in whitening;"
            " some trainers of verl's leave them out"
        )
    return ours


def _rejections(run: VerlRun) -> list[tuple[str, float | None, float]]:
    """Each option of rollout_rs with its bounds, those of k1 as old / sampler: verl compares
    sampler / old with them, and takes the inverse of a single one as the other."""
    key = f"{CORRECTION}.rollout_rs"
    options = [name.strip() for name in str(run.get(key, "")).split(",") if name.strip()]
    for option in options:
        if option not in (known := (*STATISTICS, *MASKS)):
            raise UserError(
                f"{key} = {option!r} has no counterpart; {', '.join(known)} have"
                f"{did_you_mean(option, known)}"
            )
    limits = str(run.get(f"{key}_threshold", "")).split(",")
    if options and len(limits) not in (1, len(options)):
        raise UserError(
            f"{key}_threshold holds {len(limits)} bounds and rollout_rs {len(options)} options;"
            " give one each, or one for all"
        )
    found: list[tuple[str, float | None, float]] = []
    for option, limit in zip(options, limits * (len(options) // len(limits)), strict=True):
        low, high = _bounds(f"{key}_threshold", limit)
        if option.endswith("k1"):
            low, high = 1 / high, high if low is None else 1 / low
        found.append((option, low, high))
    return found


def _bounds(key: str, limit: Any) -> tuple[float | None, float]:
    """The two numbers of "low_high", or None and the one that there is."""
    low, _, high = str(limit).rpartition("_")
    try:
        found = float(low) if low else None, float(high)
    except ValueError:
        found = None, 0.0
    if min(found[0] or 1.0, found[1]) <= 0:
        raise UserError(f"{key} = {limit!r} is no positive number or LOW_HIGH; set it to one")
    return found


def filter_groups(run: VerlRun) -> dict[str, Any]:
    """DAPO's dynamic sampling. Without a metric: by reward, as on AlphaApollo's training page."""
    batch, drawn = run.count("data.train_batch_size", 0), run.count("data.gen_batch_size", 0)
    if not filters(run):
        return {}
    if drawn and (not batch or drawn % batch):
        raise UserError(
            f"data.gen_batch_size = {drawn} is not a multiple of data.train_batch_size = {batch};"
            " set it to one"
        )
    metric = run.choice("algorithm.filter_groups.metric")
    rounds = run.count("algorithm.filter_groups.max_num_gen_batches", 0)
    run.note(
        "algorithm.filter_groups: each round draws new prompts, and the run ends when the last"
        " allowed round has not filled the batch, as in verl's DAPO"
    )
    path = "rl.algorithm.dynamic_sampling"
    return {
        f"{path}.metric": metric,
        f"{path}.max_rounds": max(0, rounds),
        f"{path}.batch_factor": drawn // batch if drawn else 1,
    }


def overlong(run: VerlRun) -> dict[str, Any]:
    """DAPO's soft penalty for long responses, by its two names."""
    for place in ("reward_model.overlong_buffer", "reward_model.reward_kwargs.overlong_buffer_cfg"):
        if run.flag(f"{place}.enable"):
            _, longest = lengths(run)
            path, limit = "rl.algorithm.overlong", "reward_model.reward_kwargs.max_resp_len"
            if not run.has(f"{place}.len"):
                raise UserError(f"{place}.enable is True and {place}.len is not set; set it")
            return {
                f"{path}.max_tokens": run.count(limit, longest),
                f"{path}.cache_tokens": run.count(f"{place}.len", 0),
                f"{path}.factor": run.number(f"{place}.penalty_factor", 1.0),
            }
    return {}


def optimizers(run: VerlRun) -> dict[str, Any]:
    """AdamW and schedule of actor and critic. verl's schedule ticks per iteration, ours per step.

    Defaults are verl's: 1e-6 (critic 1e-5), decay .01, constant, no warm-up.
    """
    rates = {f"{ACTOR}.optim": 1e-6, "critic.optim": 1e-5}
    ours: dict[str, Any] = {}
    for theirs, path in OPTIMIZERS.items():
        if theirs.startswith("critic") and estimator(run) != "gae":
            continue
        ours[f"{path}.lr"] = run.number(f"{theirs}.lr", rates[theirs])
        ours[f"{path}.weight_decay"] = run.number(f"{theirs}.weight_decay", 0.01)
        if run.has(f"{theirs}.betas"):
            ours[f"{path}.betas"] = run.numbers(f"{theirs}.betas")
        style = "warmup_style" if run.has(f"{theirs}.warmup_style") else "lr_scheduler_type"
        ours[f"{path}.schedule.kind"] = run.choice(f"{theirs}.{style}")
        steps = run.count(f"{theirs}.lr_warmup_steps", -1)
        if steps >= 0:
            ticks = steps * batch_sizes(run)[1] * run.count(f"{ACTOR}.ppo_epochs", 1)
            ours[f"{path}.schedule.warmup_steps"] = ticks
            run.note(f"{theirs}.lr_warmup_steps = {steps} iterations: {ticks} optimizer steps")
        else:
            ratio = run.number(f"{theirs}.lr_warmup_steps_ratio", 0.0)
            ours[f"{path}.schedule.warmup_ratio"] = ratio
        ours[f"{path}.schedule.min_lr_ratio"] = run.number(f"{theirs}.min_lr_ratio", 0.0)
    return ours


def critic(run: VerlRun) -> dict[str, Any]:
    """The value model of gae; verl ignores the section for other estimators, and so do we."""
    if estimator(run) != "gae":
        return {}
    if not run.flag("critic.enable", True):
        raise UserError(
            "critic.enable is False and adv_estimator=gae needs a critic; set it to True"
        )
    for key in ("ppo_mini_batch_size", "ppo_epochs", "loss_agg_mode"):
        actors, critics = run.get(f"{ACTOR}.{key}"), run.get(f"critic.{key}")
        if critics is not None and actors is not None and critics != actors:
            raise UserError(
                f"critic.{key} = {critics} differs from {ACTOR}.{key} = {actors} and here both are"
                " trained on the same mini-batches; set them equal"
            )
    theirs, own = run.get("critic.model.path"), run.get(f"{MODEL}.path")
    if theirs is not None and own is not None and theirs != own:
        run.notes.differs.append(
            f"critic.model.path = {theirs}: the critic starts from the policy (rl.critic.init)"
        )
    warmup = run.count("trainer.critic_warmup", 0)
    if warmup:
        run.note(
            f"trainer.critic_warmup: exactly {warmup} iterations; verl's count gives {warmup - 1}"
        )
    return {
        "rl.critic.clip": run.number("critic.cliprange_value", 0.5),
        "rl.critic.warmup_iterations": warmup,
        "rl.critic.optimizer.grad_clip": run.number("critic.grad_clip", 1.0),
    }
