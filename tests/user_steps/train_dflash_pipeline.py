"""Naive async DFlash pipeline: what the workers of targets and drafter do, without their queues."""

import torch
from dflash_model import Drafter
from transformers import AutoModelForCausalLM


class Target:
    LAYERS = (1, 16, 31, 46, 61)

    def __init__(self, cfg, device):
        self.device = device
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(cfg)
        torch.set_default_dtype(torch.float32)
        self.model = model.to_empty(device=device).eval()
        self.captured = {}
        for i in self.LAYERS:
            self.model.model.layers[i].register_forward_hook(self._hook(i))
        self.model.model.norm.register_forward_pre_hook(self._last)

    def _hook(self, i):
        def fn(module, args, out):
            self.captured[i] = out[0] if isinstance(out, tuple) else out

        return fn

    def _last(self, module, args):
        self.captured["last"] = args[0]

    @torch.no_grad()
    def features(self, input_ids):
        self.model(input_ids=input_ids, output_hidden_states=False, use_cache=False)
        feats = torch.cat([self.captured[i] for i in self.LAYERS], -1)
        return feats, self.captured["last"]


def build_drafter(cfg, block_size, dev):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Drafter(cfg, 5, block_size)
    torch.set_default_dtype(torch.float32)
    model.to_empty(device=dev)
    trained = [p for p in model.parameters() if p.requires_grad]
    masters = [torch.nn.Parameter(torch.empty_like(p, dtype=torch.float32)) for p in trained]
    opt = torch.optim.AdamW(masters, lr=6e-4, fused=True)
    for p in masters:
        opt.state[p] = {
            "step": torch.zeros((), device=dev),
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.zeros_like(p),
        }
    return model, trained, masters, opt


def train_row(model, trained, masters, opt, row, max_anchors):
    ids, feats, last = row
    anchors = torch.arange(max_anchors, device=ids.device) * (ids.shape[1] // max_anchors - 1)
    loss = model(ids, feats, last, anchors, 248070)
    loss.backward()
    for m, p in zip(masters, trained, strict=True):
        m.grad, p.grad = p.grad.float(), None
    opt.step()
    opt.zero_grad()
    for m, p in zip(masters, trained, strict=True):
        p.data.copy_(m.data)
    return loss.item()
