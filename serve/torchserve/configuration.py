"""TorchServe's configuration: closed where it is open by default. Keys are those of TorchServe 0.12."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..service.addresses import Addresses
from ..service.devices import Allotment
from ..service.limits import Limits
from ..service.options import ServedModel, ServeOptions

__all__ = ["hosts_text", "model_config", "properties", "render"]


def hosts_text(addresses: Addresses) -> str | None:
    """The file in which Java finds the names of IPv6 addresses, and no others; None if there are none."""
    named = {_bound(host): host for host in (addresses.host, addresses.metrics_host) if ":" in host}
    if not named:
        return None
    known = {"localhost": "127.0.0.1", socket.gethostname(): "127.0.0.1", **named}
    return "".join(f"{address} {name}\n" for name, address in known.items())


def _bound(host: str) -> str:
    """A host as TorchServe can read it: it takes names and IPv4 addresses, so an IPv6 address gets a name."""
    return "ipv6-" + "".join(sign if sign.isalnum() else "-" for sign in host) if ":" in host else host


def model_config(model: ServedModel, options: ServeOptions, limits: Limits, allotment: Allotment) -> Mapping[str, Any]:
    """The configuration inside a model's archive: TorchServe's own, and under `robust` that of the handler."""
    # TorchServe kills a worker that answers later than this. The limits keep each request below max_seconds, so only a
    # worker that hangs is ever killed.
    patience = int(options.batch_size * max(limits.max_seconds, limits.max_deadline)) + 60
    config: dict[str, Any] = {
        "minWorkers": allotment.workers,
        "maxWorkers": allotment.workers,
        "batchSize": options.batch_size,
        "maxBatchDelay": options.batch_delay_ms,
        "responseTimeout": patience,
        "startupTimeout": int(options.startup_timeout),
        "maxRetryTimeoutInSec": 300,
        "deviceType": "gpu" if allotment.gpus else "cpu",
        "robust": {
            "name": model.name,
            "digest": model.digest,
            "threads": allotment.threads,
            "limits": limits.to_json(),
            "sign": options.sign_key is not None,
        },
    }
    if allotment.gpus:
        config["deviceIds"] = list(range(allotment.gpus))
    return config


def properties(
    models: Sequence[ServedModel],
    options: ServeOptions,
    limits: Limits,
    allotment: Allotment,
    *,
    addresses: Addresses,
    management: Path,
    store: Path,
    metrics_config: Path,
) -> dict[str, str]:
    """The keys of `config.properties`, each with its reason where TorchServe's default is another one."""
    return {
        "inference_address": f"http://{_bound(addresses.host)}:{addresses.port}",
        "metrics_address": f"http://{_bound(addresses.metrics_host)}:{addresses.metrics_port}",
        # A file in a folder only its owner can enter: nobody else can scale, describe or change models.
        "management_address": f"unix:{management}",
        # gRPC cannot be switched off: it gets any free ports, which the launcher closes (see `listeners`).
        "grpc_inference_address": "127.0.0.1",
        "grpc_management_address": "127.0.0.1",
        "grpc_inference_port": "0",
        "grpc_management_port": "0",
        # TorchServe's tokens have 48 bits, change every hour and are asked for on /ping too. The handler checks a
        # better one, in constant time.
        "disable_token_authorization": "true",
        "enable_model_api": "false",
        "allowed_urls": "closed://",
        "use_env_allowed_urls": "false",
        "enable_envvars_config": "false",
        "install_py_dep_per_model": "false",
        "blacklist_env_vars": ".*(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY).*",
        # Bodies are read by the handler, which has limits; TorchServe would parse JSON before anybody looks at it.
        "decode_input_request": "false",
        "limit_max_image_pixels": "true",
        "max_request_size": str(limits.max_body),
        "max_response_size": str(max(6_553_500, 64 * options.batch_size * _answer_size(models, options))),
        "job_queue_size": str(options.waiting),
        "default_workers_per_model": str(allotment.workers),
        "number_of_gpu": str(allotment.gpus),
        "model_store": str(store),
        "load_models": ",".join(f"{model.name}={model.name}.mar" for model in models),
        "metrics_mode": "prometheus",
        "metrics_config": str(metrics_config),
        "model_metrics_auto_detect": "false",
        "disable_system_metrics": "true",
        "async_logging": "true",
    }


def _answer_size(models: Sequence[ServedModel], options: ServeOptions) -> int:
    # A count a class, with its separator; and the fixed fields. An envelope has all of it again, in base64.
    size = max(16 * len(model.card.classes) for model in models) + 4096
    return 3 * size if options.sign_key else size


def render(values: Mapping[str, str]) -> str:
    """Java's properties format."""
    lines = []
    for key, value in values.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"{key}={escaped}\n")
    return "".join(lines)
