"""`tests/` mirrors the packages: whoever changes a folder finds its tests in the folder of the same name."""

from .test_rooms import FOLDERS, ROOT


def test_every_folder_with_modules_has_a_folder_of_tests() -> None:
    folders = {
        module.parent.relative_to(ROOT)
        for top in FOLDERS
        for module in (ROOT / top).rglob("*.py")
        if module.name != "__init__.py"
    }
    assert len(folders) > 20
    untested = [str(folder) for folder in sorted(folders) if not list((ROOT / "tests" / folder).glob("test_*.py"))]
    assert not untested
