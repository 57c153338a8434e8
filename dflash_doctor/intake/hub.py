"""Fetch a model's config.json from the Hugging Face hub: the local cache first, and no long waits."""

import json
import logging
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from dflash_doctor.errors import DoctorError
from dflash_doctor.intake.presets import model_names

CONNECT_SECONDS = 3.0
FETCH_SECONDS = 20.0

_INSTEAD = (
    "pass {flag} a config.json, a folder that holds one, or a preset ({presets}); "
    "only the dimensions are needed, never the weights"
)


def fetch_config(model_id: str, *, flag: str) -> Mapping[str, Any]:
    """Read the config.json of a hub id, from the cache or the network; raise DoctorError naming `flag`.

    Only JSON is read: no code of a model is fetched or run.
    """
    path = _cached(model_id) or _download(model_id, flag)
    try:
        with open(path, encoding="utf-8") as file:
            config: Mapping[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise DoctorError(f"{flag}: the config.json of {model_id} cannot be read: {error}") from None
    return config


def _cached(model_id: str) -> str | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model_id, "config.json")
    except HFValidationError:
        return None
    return found if isinstance(found, str) else None


def _download(model_id: str, flag: str) -> str:
    from huggingface_hub import constants

    hint = _INSTEAD.format(flag=flag, presets=", ".join(model_names()))
    if constants.is_offline_mode():
        raise DoctorError(
            f"{flag}: {model_id} is not in the local cache, and HF_HUB_OFFLINE is set", hint=hint
        )
    if not _reachable(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT):
        raise DoctorError(
            f"{flag}: {model_id} is no preset, file or cached model, and the hub cannot be reached",
            hint=hint,
        )
    outcome: dict[str, str | Exception] = {}
    worker = threading.Thread(target=_fetch, args=(model_id, outcome), daemon=True)
    worker.start()
    worker.join(FETCH_SECONDS)
    result = outcome.get("result", TimeoutError(f"no answer in {FETCH_SECONDS:.0f} s"))
    if isinstance(result, str):
        return result
    raise DoctorError(
        f"{flag}: the hub has no config.json of {model_id} for us: {_first_line(result)}", hint=hint
    )


def _fetch(model_id: str, outcome: dict[str, str | Exception]) -> None:
    from huggingface_hub import hf_hub_download

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        outcome["result"] = hf_hub_download(model_id, "config.json", etag_timeout=CONNECT_SECONDS)
    except Exception as error:  # any failure of the network or the hub becomes one message
        outcome["result"] = error


def _reachable(endpoint: str) -> bool:
    """Try one connection, since the hub's client retries for half a minute; a proxy is trusted."""
    url = urlsplit(endpoint)
    if url.hostname is None or getproxies().get(url.scheme):
        return True
    try:
        with socket.create_connection(
            (url.hostname, url.port or (80 if url.scheme == "http" else 443)), timeout=CONNECT_SECONDS
        ):
            return True
    except OSError:
        return False


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
