"""The schema of a plan file: every table, every key, its kind, its flag and its field of RunPlan.

An example with each table:

    name = "my-run"

    [model]                        # one of preset, config, id, or a table [model.config]
    preset = "qwen3.6-27b"

    [draft]
    layers = 5
    layer_ids = [1, 16, 31, 46, 61]
    block_size = 16

    [loss]
    kind = "kl"

    [batch]
    token_budget = "64Ki"          # 65,536; k = 1000, Ki = 1024
    max_anchors = 512

    [target]
    rows = 8192

    [memory]
    optimizer = "adamw-fused"
    allocator = "expandable_segments:True"
    margin = "4%"

    [placement]
    targets = 7
    drafters = 1
    gpus = 8
    gpu = "rtx-pro-6000"
    gpu_memory = "94.97GiB"

The tables of the trainer (TRAINER_TABLES) may stand in the same file; they are passed over here.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from dflash_doctor.records.plan import (
    DraftAttention,
    LinearAttention,
    LossKind,
    LossProjection,
    Recompute,
    TargetForward,
)

Kind = Literal["count", "share", "text", "choice", "switch", "counts", "texts", "number"]

TRAINER_TABLES = frozenset({"data", "train", "checkpoint", "log", "export", "evaluate"})
DTYPES = ("bfloat16", "float16", "float32")
DTYPE_ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}
OPTIMIZERS = ("adamw", "adamw-fused", "sgd")
MAX_GPUS = 1_024
ATTENTIONS = ("sdpa", "eager")
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key: `path` in the file, `field` of RunPlan, `flag` of the command line."""

    path: str
    field: str
    kind: Kind
    comment: str
    flag: str | None = None
    choices: tuple[str, ...] = ()
    minimum: int = 1


def _key(path: str, field: str, kind: Kind, comment: str, flag: str | None = None, **rest: object) -> Key:
    return Key(path=path, field=field, kind=kind, comment=comment, flag=flag, **rest)  # type: ignore[arg-type]


KEYS = (
    _key("draft.layers", "draft.num_layers", "count", "decoder layers of the drafter", "--draft-layers"),
    _key(
        "draft.layer_ids",
        "draft.layer_ids",
        "counts",
        "target layers whose outputs are the features",
        "--layer-ids",
        minimum=0,
    ),
    _key(
        "draft.block_size",
        "draft.block_size",
        "count",
        "slots of a block, anchor included",
        "--block-size",
        minimum=2,
    ),
    _key("draft.attention_heads", "draft.num_attention_heads", "count", ""),
    _key("draft.key_value_heads", "draft.num_key_value_heads", "count", ""),
    _key("draft.head_dim", "draft.head_dim", "count", ""),
    _key("draft.intermediate_size", "draft.intermediate_size", "count", "the target's where it is left out"),
    _key(
        "draft.layer_types", "draft.layer_types", "texts", "full_attention or sliding_attention, one a layer"
    ),
    _key("draft.sliding_window", "draft.sliding_window", "count", "tokens"),
    _key("draft.mask_token_id", "draft.mask_token_id", "count", "", minimum=0),
    _key(
        "draft.attention",
        "draft.attention",
        "choice",
        "flex on CUDA; sdpa with a dense mask on CPUs",
        choices=get_args(DraftAttention),
    ),
    _key("draft.step", "draft_step", "text", "module:function of a step of your own", "--draft-step"),
    _key("loss.kind", "loss.kind", "choice", "", "--loss", choices=get_args(LossKind)),
    _key(
        "loss.projection",
        "loss.projection",
        "choice",
        "select rows, then project; or project all",
        choices=get_args(LossProjection),
    ),
    _key("loss.chunked", "loss.chunked", "switch", "logits of a few rows at a time, none kept"),
    _key("loss.chunk_rows", "loss.chunk_rows", "count", ""),
    _key("loss.gamma", "loss.gamma", "number", "decay of the position weights"),
    _key("batch.token_budget", "token_budget", "count", "tokens of a packed row", "--token-budget"),
    _key("batch.max_anchors", "max_anchors", "count", "blocks of a packed row", "--max-anchors"),
    _key("batch.document_tokens", "document_tokens", "count", "the longest document", "--document-tokens"),
    _key(
        "target.forward",
        "target_forward",
        "choice",
        "body, or causal-lm with its lm_head",
        choices=get_args(TargetForward),
    ),
    _key(
        "target.rows",
        "target_rows",
        "count",
        "tokens in one call; 0: the whole row",
        "--target-rows",
        minimum=0,
    ),
    _key("target.attention", "attention", "choice", "", choices=ATTENTIONS),
    _key(
        "target.linear_attention",
        "linear_attention",
        "choice",
        "",
        "--linear-attention",
        choices=get_args(LinearAttention),
    ),
    _key("target.step", "target_step", "text", "module:function of a step of your own", "--target-step"),
    _key("memory.dtype", "dtype", "choice", "", "--dtype", choices=DTYPES),
    _key("memory.optimizer", "optimizer", "choice", "", "--optimizer", choices=OPTIMIZERS),
    _key(
        "memory.recompute",
        "recompute",
        "choice",
        "recompute the drafter's activations",
        "--recompute",
        choices=get_args(Recompute),
    ),
    _key("memory.channel_slots", "channel_slots", "count", "feature buffers in flight", "--channel-slots"),
    _key("memory.allocator", "allocator", "text", "PYTORCH_CUDA_ALLOC_CONF", "--allocator"),
    _key("memory.margin", "margin", "share", "share of each GPU that stays free", "--margin"),
    _key("placement.targets", "num_targets", "count", "GPUs that run the target", "--targets", minimum=0),
    _key(
        "placement.drafters",
        "num_drafters",
        "count",
        "GPUs that train the drafter",
        "--drafters",
        minimum=0,
    ),
)

SIZES = frozenset(
    {
        "batch.token_budget",
        "batch.max_anchors",
        "batch.document_tokens",
        "target.rows",
        "loss.chunk_rows",
        "draft.sliding_window",
    }
)
KEY_OF_PATH = {key.path: key for key in KEYS}
FLAG_OF_PATH = {key.path: key.flag for key in KEYS if key.flag} | {
    "model.preset": "--model",
    "placement.gpus": "--gpus",
    "placement.gpu": "--gpu",
    "placement.gpu_memory": "--gpu-memory",
}
KEY_OF_FIELD = {key.field: key for key in KEYS}

MODEL_REFUSED = "model.refused"
"""Stands in for a model that was named in a way that was refused."""
MODEL_KEYS = ("preset", "config", "id", "name", "origin", "null_keys")
PLACEMENT_KEYS = ("gpus", "gpu", "gpu_memory", "cards")
CARD_KEYS = (
    "name",
    "count",
    "memory",
    "usable",
    "compute_capability",
    "multiprocessors",
    "context",
    "nccl_per_peer",
    "source",
    "other_processes",
)
BAND_KEYS = ("low", "likely", "high", "basis")

TABLES = ("model", "draft", "loss", "batch", "target", "memory", "placement")


def keys_of_table(table: str) -> tuple[str, ...]:
    """List the names of the keys that a table may have."""
    own = tuple(key.path.split(".")[1] for key in KEYS if key.path.startswith(f"{table}."))
    extra = {"model": MODEL_KEYS, "placement": PLACEMENT_KEYS}.get(table, ())
    return own + extra
