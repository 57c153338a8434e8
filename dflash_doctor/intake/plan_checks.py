"""What must hold between the settings of a plan; every breach is noted with its place."""

import re
from collections.abc import Callable
from itertools import pairwise

from dflash_doctor.intake.allocator_conf import check_allocator
from dflash_doctor.intake.models import DIMENSIONS, dimension, missing_dimensions
from dflash_doctor.intake.plan_keys import KEY_OF_FIELD, LAYER_TYPES
from dflash_doctor.intake.settings import Place, Problems, Settings, one_of, plural
from dflash_doctor.records.plan import Card, RunPlan

# bfloat16 arithmetic begins with Ampere, float16 with Maxwell's second generation.
DTYPE_CAPABILITY = {"bfloat16": (8, 0), "float16": (5, 3), "float32": (0, 0)}
NUM_DEFAULT_FEATURES = 5
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,79}")
_STEP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class PlanCheck:
    """One plan under examination, with the places that its settings came from."""

    def __init__(self, plan: RunPlan, settings: Settings, problems: Problems) -> None:
        self.plan = plan
        self.settings = settings
        self.problems = problems

    def place(self, field: str) -> Place:
        """Find where a field of RunPlan was set; its flag or key where it has its default."""
        key = KEY_OF_FIELD[field]
        setting = self.settings.get(key.path)
        return setting.place if setting else Place(key=key.flag or key.path)

    def require(self, holds: bool, field: str, message: str, hint: str | None = None) -> None:
        """Note a mistake at a field unless the condition holds."""
        if not holds:
            self.problems.add(self.place(field), message, hint)


def check_plan(plan: RunPlan, settings: Settings, problems: Problems) -> None:
    """Note everything that is wrong between the settings of a plan."""
    check = PlanCheck(plan, settings, problems)
    for examine in _CHECKS:
        examine(check)


def lacks_dtype(card: Card, dtype: str) -> str | None:
    """Say why a card cannot compute in a dtype; None where it can."""
    needed = DTYPE_CAPABILITY[dtype]
    if card.compute_capability >= needed:
        return None
    have, need = (".".join(map(str, pair)) for pair in (card.compute_capability, needed))
    return f"{card.name} has no {dtype}: that needs compute capability {need}, it has {have}"


def _check_name(check: PlanCheck) -> None:
    if not _NAME.fullmatch(check.plan.name):
        place = check.settings["name"].place if "name" in check.settings else "name"
        check.problems.add(
            place,
            f"{check.plan.name!r} cannot name a report",
            "use letters, digits, spaces and . _ - ; begin with a letter or digit",
        )


def _check_model(check: PlanCheck) -> None:
    model = check.plan.model
    missing = missing_dimensions(model.config)
    if missing:
        place = next((s.place for path, s in check.settings.items() if path.startswith("model.")), "--model")
        names = ", ".join(DIMENSIONS)
        check.problems.add(place, f"the configuration of {model.name} {missing}", f"a plan needs {names}")


def _check_budget(check: PlanCheck) -> None:
    plan, budget = check.plan, check.plan.token_budget
    block = plan.draft.block_size
    check.require(
        budget >= block,
        "token_budget",
        f"{budget:,} tokens do not hold one block of {block}; raise it or --block-size",
    )
    if budget < block:
        return
    check.require(
        plan.max_anchors <= budget,
        "max_anchors",
        f"{plan.max_anchors:,} anchors are more than the {budget:,} tokens of a packed row",
    )
    longest = plan.document_tokens
    check.require(
        longest is None or block <= longest <= budget,
        "document_tokens",
        f"a document of {longest or 0:,} tokens must hold a block of {block} and fit {budget:,} tokens",
    )


def _check_draft(check: PlanCheck) -> None:
    draft = check.plan.draft
    heads, groups = draft.num_attention_heads, draft.num_key_value_heads
    check.require(
        heads % groups == 0,
        "draft.num_key_value_heads",
        f"{heads} attention heads cannot share {groups} of them",
    )
    vocab = dimension(check.plan.model.config, "vocab_size")
    check.require(
        draft.mask_token_id is None or vocab is None or draft.mask_token_id < vocab,
        "draft.mask_token_id",
        f"{draft.mask_token_id} is not in the vocabulary of {vocab}",
    )
    types = draft.layer_types
    if types is None:
        return
    check.require(
        len(types) == draft.num_layers,
        "draft.layer_types",
        f"{len(types)} types for {draft.num_layers} layers",
    )
    unknown = sorted(set(types) - set(LAYER_TYPES))
    check.require(not unknown, "draft.layer_types", f"{', '.join(unknown)}: a type is {one_of(LAYER_TYPES)}")
    check.require(
        "sliding_attention" not in types or draft.sliding_window is not None,
        "draft.layer_types",
        "a sliding layer needs sliding_window",
    )


def _check_layer_ids(check: PlanCheck) -> None:
    layers = dimension(check.plan.model.config, "num_hidden_layers")
    ids = check.plan.draft.layer_ids
    if layers is None:
        return
    model = check.plan.model.name
    if ids is None:
        check.require(
            layers >= NUM_DEFAULT_FEATURES + 3,
            "draft.layer_ids",
            f"{model} has {layers} layers, too few for the default choice of {NUM_DEFAULT_FEATURES}",
            f"name them: --layer-ids {','.join(str(i) for i in range(min(layers, 3)))}",
        )
        return
    outside = [str(i) for i in ids if not 0 <= i < layers]
    check.require(
        not outside,
        "draft.layer_ids",
        f"{', '.join(outside)} out of range: {model} has {layers} layers, 0 to {layers - 1}",
        "id i is the output of decoder layer i, counted from 0",
    )
    check.require(
        all(a < b for a, b in pairwise(ids)),
        "draft.layer_ids",
        f"{','.join(map(str, ids))} do not ascend",
    )


def _check_loss(check: PlanCheck) -> None:
    gamma = check.plan.loss.gamma
    check.require(gamma is None or 0 < gamma < float("inf"), "loss.gamma", f"{gamma} is not above zero")


def _check_memory(check: PlanCheck) -> None:
    plan = check.plan
    wrong = check_allocator(plan.allocator)
    check.require(
        wrong is None,
        "allocator",
        str(wrong),
        'a value of PYTORCH_CUDA_ALLOC_CONF, such as "expandable_segments:True"',
    )
    check.require(
        plan.margin <= 0.5, "margin", f"{plan.margin:.0%} of each GPU would stay unused; the most is 50%"
    )
    lacks = next(filter(None, (lacks_dtype(card, plan.dtype) for card in plan.cards)), None)
    check.require(
        lacks is None, "dtype", str(lacks), "pass --dtype float16 or --dtype float32, or another --gpu"
    )


def _check_roles(check: PlanCheck) -> None:
    plan = check.plan
    counts = {"target": plan.num_targets, "drafter": plan.num_drafters}
    roles, have = sum(counts.values()), len(plan.cards)
    check.require(roles > 0, "num_targets", "0 targets and 0 drafters leave nothing to forecast")
    if not plan.cards or roles <= have:
        return
    asked = " and ".join(plural(count, role) for role, count in counts.items() if count)
    paths = [f"placement.{role}s" for role, count in counts.items() if count]
    found = (check.settings.get(path) for path in (*paths, "placement.gpus", "placement.cards"))
    place = next((setting.place for setting in found if setting), "[placement]")
    there = "is 1" if have == 1 else f"are {have}"
    verb = "needs" if roles == 1 else "need"
    check.problems.add(
        place,
        f"{asked} {verb} {plural(roles, 'GPU')}, there {there}",
        "each role has a GPU of its own: ask for fewer roles or more GPUs",
    )


def _check_steps(check: PlanCheck) -> None:
    for field in ("target_step", "draft_step"):
        step = getattr(check.plan, field)
        check.require(
            step is None or bool(_STEP.fullmatch(step)),
            field,
            f"{step!r} is not of the form module:function",
            "the function is called as function(plan, device) and returns (module, step)",
        )


_CHECKS: tuple[Callable[[PlanCheck], None], ...] = (
    _check_name,
    _check_model,
    _check_budget,
    _check_draft,
    _check_layer_ids,
    _check_loss,
    _check_memory,
    _check_roles,
    _check_steps,
)
