"""`robust data`: what a data set holds, before anybody trains on it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import note, print_json, print_text
from .options import Json

__all__ = ["command"]


def command(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="digits, mnist:DIR, folder:PATH, npz:FILE, csv:FILE, gtsrb:DIR, torchvision:NAME:DIR or parquet:PATH "
            "(docs/data.md).",
            show_default=False,
        ),
    ],
    sheet: Annotated[
        Path | None, typer.Option(help="Write a contact sheet of the training images (PNG).", show_default=False)
    ] = None,
    max_unreadable: Annotated[
        int | None, typer.Option(help="Fail if more files than this are unreadable.", min=0, show_default=False)
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Download mnist, cifar10 or a torchvision set if it is missing.")
    ] = False,
    json: Json = False,
) -> None:
    """Describe a data set: classes, counts, sizes, colours, unreadable files, and images found in both train and test.

    [bold]robust data folder:pictures --sheet sheet.png[/bold]
    """
    from ..data import contact_sheet, describe_data, parse_data

    found = parse_data(spec)
    description = describe_data(found, download=download)
    print_json(description.to_json()) if json else _print(description)
    if sheet is not None:
        sheet.parent.mkdir(parents=True, exist_ok=True)
        split = "train" if "train" in description.parts else "test"
        contact_sheet(found, split=split).save(sheet, format="PNG")
        note(f"contact sheet: {sheet}")
    broken = sum(len(part.unreadable) for part in description.parts.values())
    if max_unreadable is not None and broken > max_unreadable:
        note(f"{broken} files are unreadable, more than {max_unreadable}.")
        raise typer.Exit(1)


def _print(description: Any) -> None:
    for split, part in description.parts.items():
        print_text(f"{split}: {part.images} images of {len(part.classes)} classes")
        if part.rule:
            print_text(f"  {part.rule}")
        least, most = min(part.classes.items(), key=_count), max(part.classes.items(), key=_count)
        print_text(f"  per class: from {least[1]} ({least[0]}) to {most[1]} ({most[0]})")
        print_text(f"  sizes: {', '.join(f'{size} ({count})' for size, count in list(part.sizes.items())[:5])}")
        print_text(f"  channels: {', '.join(f'{own} ({count})' for own, count in part.channels.items())}")
        print_text(f"  mean {_values(part.mean)}, standard deviation {_values(part.std)}")
        if part.groups is not None:
            print_text(f"  groups: {part.groups}")
        print_text(f"  duplicates within: {part.duplicates}")
        print_text(f"  unreadable: {len(part.unreadable)}")
        for name, why in list(part.unreadable.items())[:20]:
            print_text(f"    {name}: {why}")
    for words, names in (
        ("test images that are also training images", description.across),
        ("test images that look like a training image", description.near),
        ("groups in both parts", description.shared_groups),
    ):
        print_text(f"{words}: {len(names)}")
        for name in names[:5]:
            print_text(f"  {name}")


def _count(item: tuple[str, int]) -> int:
    return item[1]


def _values(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
