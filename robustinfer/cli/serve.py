"""`robust serve`: model files become an HTTP server that answers with certificates."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ServeError
from ..extras import needed
from .console import note, print_json, print_text
from .options import CardFile, PassphraseFile

if TYPE_CHECKING:
    from robust.serve.service.launching import BaseLauncher

__all__ = ["command", "page_address", "serve"]


def command(
    models: Annotated[list[str], typer.Argument(help="Model files; NAME=MODEL serves one under another name.")],
    card: CardFile = None,
    engine: Annotated[
        str | None,
        typer.Option(
            envvar="ROBUST_SERVE_ENGINE",
            help="torchserve, or asgi: needs no Java or torch, streams votes, lets short requests overtake long ones. "
            "Default: torchserve.",
            show_default=False,
        ),
    ] = None,
    page: Annotated[
        bool | None,
        typer.Option(
            "--page/--no-page",
            envvar="ROBUST_SERVE_PAGE",
            help="Also serve a page that shows what a certificate is; needs --engine asgi. Default: no page.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(envvar="ROBUST_SERVE_HOST", help="Address to listen on. Default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(envvar="ROBUST_SERVE_PORT", help="Port; 0 picks a free one. Default: 8080.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes per model. Default: one per GPU, or one with all cores.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda. Default: auto.")] = None,
    auth: Annotated[
        str | None,
        typer.Option(
            envvar="ROBUST_SERVE_AUTH",
            help="token: clients send a bearer token (that of ROBUST_SERVE_TOKEN, or a fresh one). "
            "none: anybody may ask. Default: token.",
        ),
    ] = None,
    max_n: Annotated[int | None, typer.Option(help="Maximum samples per request. Default: 100000.")] = None,
    allow_seeds: Annotated[
        bool | None,
        typer.Option(
            "--allow-seeds/--refuse-seeds",
            envvar="ROBUST_SERVE_ALLOW_SEEDS",
            help="Let clients choose the seed. For testing only: it lets clients retry seeds until a certificate suits "
            "them. Default: refuse.",
            show_default=False,
        ),
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(
            envvar="ROBUST_SERVE_DOMAIN",
            help="Answer in one domain only: 8-bit or 16-bit. Default: by the type of the pixels.",
            show_default=False,
        ),
    ] = None,
    metrics_host: Annotated[
        str | None,
        typer.Option(envvar="ROBUST_SERVE_METRICS_HOST", help="Address of the metrics. Default: 127.0.0.1."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(envvar="ROBUST_SERVE_METRICS_PORT", help="Port of the metrics. Default: port + 2.")
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(envvar="ROBUST_SERVE_HEALTH_PORT", help="Port of /live and /ready. Default: port + 1."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(envvar="ROBUST_SERVE_TOKEN_FILE", help="File that holds the token; SIGHUP re-reads it."),
    ] = None,
    sign_key: Annotated[
        Path | None,
        typer.Option(
            envvar="ROBUST_SERVE_SIGN_KEY", help="Private key from robust keygen: every certificate is signed with it."
        ),
    ] = None,
    passphrase_file: PassphraseFile = None,
    drain_timeout: Annotated[
        float | None,
        typer.Option(
            envvar="ROBUST_SERVE_DRAIN_TIMEOUT",
            help="Maximum seconds to finish accepted requests after SIGTERM. Default: as long as they may take.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="ROBUST_SERVE_CONFIG", help="A TOML file with these and further options (docs/serving.md)."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check models and options, print them, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON object.")] = False,
) -> None:
    """Serve models over HTTP until ctrl-C; answers are certificates.

    [bold]robust serve quickstart/digits.onnx[/bold]
    [bold]robust serve quickstart/digits.onnx --engine asgi --page[/bold]
    [bold]robust serve quickstart/digits.onnx --port 9000 --auth none[/bold]
    """
    from robust.serve.service.options import ServeOptions, model_arguments

    from ..card import Card

    overrides: dict[str, Any] = {
        "engine": engine,
        "page": page,
        "host": host,
        "port": port,
        "workers": workers,
        "device": device,
        "auth": auth,
        "max_n": max_n,
        "allow_seeds": allow_seeds,
        "domain": domain,
        "metrics_host": metrics_host,
        "metrics_port": metrics_port,
        "health_port": health_port,
        "token_file": token_file,
        "sign_key": sign_key,
        "passphrase_file": passphrase_file,
        "drain_timeout": drain_timeout,
    }
    options = ServeOptions.read(config, overrides)
    launcher = _launcher_class(options.engine)(model_arguments(models, card=Card.read(card) if card else None), options)
    if check:
        _print_check(launcher)
        return
    serve(launcher, lambda: _print_addresses(launcher, as_json=as_json))


def serve(launcher: "BaseLauncher", announce: Callable[[], None]) -> None:
    """Run a server until somebody ends it; `announce` is called when it is ready."""
    _tell(f"Starting {launcher.engine} ...")
    with launcher.signals(), launcher:
        launcher.wait_ready()
        for remark in launcher.remarks():
            _tell(remark)
        announce()
        sys.stdout.flush()  # whoever reads this through a pipe waits for it
        launcher.wait()
        _tell("Stopping: answering what has arrived ...")
        unanswered = launcher.drain()
    if unanswered:
        raise ServeError(
            f"{unanswered} accepted requests were cut off after {launcher.drain_seconds:g} s of draining; a longer "
            "drain_timeout in the configuration lets them finish."
        )
    _tell("Stopped.")


def _tell(text: str) -> None:
    """Say something about the server: to a person as it is, to a file among the logs as one of them."""
    from robust.serve.service.logs import announce

    if sys.stderr.isatty():
        note(text)
    else:
        announce("launcher", message=text)


def page_address(launcher: "BaseLauncher") -> str:
    """The address of the page, with the token in the part that a browser keeps to itself, if the token is fresh."""
    return f"{launcher.addresses.url}/page/" + (f"#token={launcher.token}" if launcher.token_is_ours else "")


def _launcher_class(engine: str) -> "type[BaseLauncher]":
    if engine == "asgi":
        with needed(extra="asgi", why="robust serve --engine asgi"):
            from robust.serve import AsgiLauncher

            return AsgiLauncher
    with needed(extra="serve", why="robust serve"):
        from robust.serve import Launcher

        return Launcher


def _print_check(launcher: "BaseLauncher") -> None:
    from robust.serve.service.options import as_json

    print_json(
        {
            "models": [
                {"name": model.name, "path": str(model.path), "version": model.version, "digest": model.digest}
                for model in launcher.models
            ],
            "options": as_json(launcher.options),
            "limits": launcher.limits.to_json(),
            "workers": launcher.allotment.workers,
            "threads": launcher.allotment.threads,
            "gpus": launcher.allotment.gpus,
            "signed_by": launcher.key.public.id if launcher.key else None,
            **launcher.facts(),
        }
    )


def _print_addresses(launcher: "BaseLauncher", *, as_json: bool) -> None:
    from robust.serve.service.health import health_url

    url = launcher.addresses.url
    if as_json:
        print_json(
            {
                "url": url,
                "metrics": launcher.addresses.metrics_url,
                "health": launcher.addresses.health_url,
                "pid": launcher.pid,
                "models": [model.name for model in launcher.models],
                "token": launcher.token if launcher.token_is_ours else None,
                **({"page": page_address(launcher)} if launcher.options.page else {}),
            }
        )
        return
    for model in launcher.models:
        print_text(f"{model.name}: {url}/predictions/{model.name}   (ready: {health_url(url, model.name)})")
    if launcher.options.page:
        print_text(f"page: {page_address(launcher)}")
    print_text(f"metrics: {launcher.addresses.metrics_url}")
    print_text(f"health:  {launcher.addresses.health_url}/ready")
    if launcher.key:
        print_text(f"signed by: {launcher.key.public.id}")
    first = launcher.models[0]
    token = launcher.token if launcher.token_is_ours else "$ROBUST_SERVE_TOKEN"
    header = (
        f" -H 'Authorization: Bearer {token}'" if launcher.token_is_ours else f' -H "Authorization: Bearer {token}"'
    )
    authorization = header if launcher.token else ""
    print_text("try it:")
    print_text(
        f"  curl{authorization} -T {_example_image(first.path)} '{url}/models/{first.name}/invoke?mode=certify&n=10000'"
    )


def _example_image(model: Path) -> str:
    """An image beside the model, where `robust quickstart` writes some, or a name that says what belongs there."""
    found = model.parent / "images" / "five.png"
    return shlex.quote(str(found)) if found.is_file() else "IMAGE.png"
