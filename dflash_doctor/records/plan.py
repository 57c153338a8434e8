"""A training run as it is planned: models, roles, sizes and cards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

TargetForward = Literal["body", "causal-lm"]
LossKind = Literal["ce", "kl", "ce-teacher"]
LossProjection = Literal["selected", "full-sequence"]
LinearAttention = Literal["fused", "fallback"]
Recompute = Literal["off", "on"]
DraftAttention = Literal["flex", "sdpa"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteBand:
    """A modelled number of bytes with the range that it is believed to lie in."""

    low: int
    likely: int
    high: int
    basis: str
    """What it rests on: measured, traced, modelled or assumed, with the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One kind of GPU.

    `memory_bytes` is what CUDA reports as total, `usable_bytes` what a process can have now: less
    than the total where other processes hold memory.
    """

    name: str
    memory_bytes: int
    usable_bytes: int
    compute_capability: tuple[int, int]
    num_multiprocessors: int
    context: ByteBand
    nccl_per_peer: ByteBand
    source: str
    other_processes: tuple[str, ...] = ()
    """Other processes that hold memory, one line each (name, pid, GiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A target model by its transformers configuration; weights are not needed."""

    name: str
    config: Mapping[str, object]
    """Keyword arguments of `AutoConfig.for_model`, `model_type` included."""
    origin: str
    """Where the dimensions come from: preset, file, hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpec:
    """Dimensions of a DFlash drafter; those of the target where None."""

    num_layers: int = 5
    layer_ids: tuple[int, ...] | None = None
    """Target layers whose outputs are the features; None: `round(1 + i (L-4)/(K-1))` for K = 5."""
    block_size: int = 16
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    intermediate_size: int | None = None
    layer_types: tuple[str, ...] | None = None
    sliding_window: int | None = None
    mask_token_id: int | None = None
    attention: DraftAttention = "flex"
    """`flex`: compiled, on CUDA, with block masks; `sdpa`: a dense boolean mask, for CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """What the drafter is trained on and how its logits are made."""

    kind: LossKind = "kl"
    projection: LossProjection = "selected"
    """`selected`: index the rows, then project; `full-sequence`: project every row, roll, index."""
    chunked: bool = True
    chunk_rows: int | None = None
    gamma: float | None = None
    """Decay of the position weights exp(-(k-1)/gamma); None: 7, 5, 4 for blocks of 16, 10, 8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything that decides the memory of a run, and nothing else."""

    name: str
    model: ModelSpec
    draft: DraftSpec = field(default_factory=DraftSpec)
    loss: LossSpec = field(default_factory=LossSpec)
    token_budget: int = 65_536
    max_anchors: int = 512
    target_rows: int = 8_192
    """Tokens of a packed row that pass the target in one call; 0: the whole row in one call."""
    document_tokens: int | None = None
    """The longest document; None: `target_rows` or, where that is 0, the token budget."""
    target_forward: TargetForward = "body"
    channel_slots: int = 2
    dtype: str = "bfloat16"
    optimizer: str = "adamw-fused"
    recompute: Recompute = "off"
    attention: str = "sdpa"
    """Attention of the target."""
    linear_attention: LinearAttention = "fused"
    num_targets: int = 7
    num_drafters: int = 1
    cards: tuple[Card, ...] = ()
    """One entry a GPU, targets first."""
    allocator: str = "expandable_segments:True"
    """The value of PYTORCH_CUDA_ALLOC_CONF; an empty string is the default allocator."""
    margin: float = 0.04
    target_step: str | None = None
    """`module:function` of a user's own target step; None: the trainer's."""
    draft_step: str | None = None


def role_of(plan: RunPlan, gpu: int) -> Literal["target", "drafter", "idle"]:
    """Name the role of GPU number `gpu`: targets come first, then drafters."""
    if gpu < plan.num_targets:
        return "target"
    return "drafter" if gpu < plan.num_targets + plan.num_drafters else "idle"


ProfileMode = Literal["forward", "body", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """One model's forward pass or training step, as `profile` runs it."""

    model: ModelSpec
    mode: ProfileMode = "forward"
    batch: int = 1
    seq: int = 4_096
    dtype: str = "bfloat16"
    attention: str = "sdpa"
    optimizer: str = "adamw"
    clip: float | None = None
    gradient_checkpointing: bool = False
    linear_attention: LinearAttention = "fused"
    card: Card | None = None
    """None: compute capability 12.0, 188 multiprocessors and no limit of memory."""
    allocator: str = ""
