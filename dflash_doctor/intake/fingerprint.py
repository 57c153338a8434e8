"""Name a plan by its content, so that a certificate can be held against a run."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dflash_doctor.intake.cards import identity_of
from dflash_doctor.records.plan import RunPlan


def plan_fingerprint(plan: RunPlan) -> str:
    """Hash what decides the memory of a run: the plan, its cards' kind and size, the allocator.

    Names, where a configuration came from, memory that happens to be free and versions do not count.
    """
    content = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    del content["name"]
    content["model"] = plan.model.config
    content["cards"] = [identity_of(card) for card in plan.cards]
    content = _plain(content)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Reduce records, mappings and tuples to what JSON has."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
