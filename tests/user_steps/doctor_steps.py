"""Hand the naive pipeline's two steps to the doctor: function(plan, device) gives (module, step)."""

import torch
from train_dflash_pipeline import Target, build_drafter, train_row
from transformers import AutoConfig, Qwen3Config


def target_step(plan, device):
    target = Target(AutoConfig.for_model(**plan.model.config).get_text_config(), device)
    ids = torch.zeros(1, plan.token_budget, dtype=torch.long)
    sent = {}
    return target.model, lambda: sent.update(row=target.features(ids.to(device)))


def draft_step(plan, device):
    sizes = {name: plan.model.config[name] for name in ("vocab_size", "hidden_size", "intermediate_size")}
    cfg = Qwen3Config(**sizes, num_hidden_layers=plan.draft.num_layers, num_key_value_heads=8, head_dim=128)
    held = build_drafter(cfg, plan.draft.block_size, device)
    bf16 = torch.empty(0, dtype=torch.bfloat16, device=device)
    ids = torch.zeros(1, plan.token_budget, dtype=torch.long)

    def fetch():
        return ids.to(device), *(bf16.new_empty(1, plan.token_budget, n * cfg.hidden_size) for n in (5, 1))

    slots = [fetch() for _ in range(plan.channel_slots)]
    return held[0], lambda: (train_row(*held, slots.pop(0), plan.max_anchors), slots.append(fetch()))
