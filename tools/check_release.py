"""Build the wheel and the sdist, and check what their users get.

The metadata and the description pass `twine check --strict`. The sdist has every file that the
tests need. Both are installed without extras into empty environments, where a consumer processes a
file with duplicates. pip needs an index; nothing else uses the network.

Usage: python tools/check_release.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

ROOT = Path(__file__).parents[1]

NOT_IN_SDIST = {".ci/run", ".editorconfig", ".pre-commit-config.yaml"}
"""Tracked files that only a clone of the repository needs."""

TOOLS = ("twine", "readme-renderer[md]")
"""The tools that check the metadata. They are not pinned, and not installed for the developers."""

BILLING = """
from oncebox import Inbox, Transaction

inbox = Inbox("billing", "sqlite:///billing.db")

@inbox.on("order.confirmed")
def create_invoice(order: dict, tx: Transaction) -> None:
    tx.execute("create table if not exists invoices (id text)")
    tx.execute("insert into invoices values (:id)", id=order["id"])
"""

EXTRAS = ("psycopg", "sqlalchemy", "django", "aiosqlite", "pydantic", "confluent_kafka", "fsspec")

SMOKE = f"""
import importlib.util, sqlite3, oncebox
found = [name for name in {EXTRAS!r} if importlib.util.find_spec(name)]
assert not found, f"a plain install has {{found}}"
from oncebox import *
from oncebox.testing import TemporaryDatabase, event
rows = sqlite3.connect("billing.db").execute("select id from invoices order by id").fetchall()
assert rows == [("o-1",), ("o-2",)], rows
"""


def main() -> int:
    """Build and check. A failed check raises."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist"), cwd=ROOT)
        [wheel], [sdist] = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
        check_wheel(wheel)
        check_sdist(sdist)
        check_tests_of_sdist(sdist, folder)
        check_metadata(folder, wheel, sdist)
        for package in (wheel, sdist):
            check_install(package, folder / f"from-{package.suffix[1:]}")
    print("check_release: the wheel and the sdist are ready")
    return 0


def check_wheel(wheel: Path) -> None:
    """The wheel has exactly the files of the package, SQL and py.typed included."""
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if not name.startswith("oncebox-")}
    wanted = {name.removeprefix("src/") for name in tracked() if name.startswith("src/")}
    assert names == wanted, f"the wheel differs from src/: {sorted(names ^ wanted)}"
    assert "oncebox/py.typed" in names
    assert sum(name.endswith(".sql") for name in names) > 20


def check_sdist(sdist: Path) -> None:
    """The sdist has all files of the repository, except those that only a clone needs."""
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    missing = tracked() - NOT_IN_SDIST - names
    assert not missing, f"the sdist lacks {sorted(missing)}: see [tool.hatch] in pyproject.toml"


def tracked() -> set[str]:
    """The files that git knows and that exist."""
    names = run("git", "ls-files", cwd=ROOT).splitlines()
    return {name for name in names if (ROOT / name).exists()}


def check_tests_of_sdist(sdist: Path, folder: Path) -> None:
    """pytest finds all tests in the unpacked sdist, and those about the files pass."""
    with tarfile.open(sdist) as opened:
        opened.extractall(folder, filter="data")
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    source = str(unpacked / "src")
    run(*pytest, "--collect-only", cwd=unpacked, PYTHONPATH=source)
    files = ("tests/test_layout.py", "tests/test_public_api.py", "tests/test_imports.py")
    run(*pytest, *files, cwd=unpacked, PYTHONPATH=source)


def check_metadata(folder: Path, wheel: Path, sdist: Path) -> None:
    """PyPI accepts the metadata and renders the description, which links to no file."""
    python = environment(folder / "tools")
    install(python, *TOOLS)
    print(run(python, "-m", "twine", "--no-color", "check", "--strict", str(wheel), str(sdist)))
    with zipfile.ZipFile(wheel) as opened:
        [name] = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        text = BytesParser().parsebytes(opened.read(name))
    _check_description(text)


def _check_description(metadata: Message) -> None:
    description = str(metadata.get_payload())
    assert "## The guarantee" in description
    assert "](" not in description, "the description links to files: see tools/pypi_readme.py"
    assert metadata["Summary"]
    assert metadata["Author"]


def check_install(package: Path, folder: Path) -> None:
    """In an empty environment without extras, a consumer on SQLite absorbs duplicates."""
    python = environment(folder)
    install(python, str(package))
    oncebox = str(Path(python).with_name("oncebox"))
    version = run(oncebox, "--version", cwd=folder).split()[-1]
    assert version in package.name, f"oncebox --version prints {version}"
    (folder / "billing.py").write_text(BILLING)
    (folder / "events.jsonl").write_text("".join(_lines() * 3))
    run(oncebox, "migrate", "billing:inbox", cwd=folder)
    run(oncebox, "run", "billing:inbox", "--from", f"file://{folder}/events.jsonl", cwd=folder)
    run(python, "-c", SMOKE, cwd=folder)


def _lines() -> list[str]:
    """Two CloudEvents."""
    attributes = {"specversion": "1.0", "source": "shop", "type": "order.confirmed"}
    ids = ("1", "2")
    return [
        json.dumps({**attributes, "id": f"e-{id}", "data": {"id": f"o-{id}"}}) + "\n" for id in ids
    ]


def environment(folder: Path) -> str:
    """An empty virtual environment. Returns its Python."""
    venv.create(folder, with_pip=True)
    return str(folder / "bin" / "python")


def install(python: str, *packages: str) -> None:
    """Install packages from the index of pip, or from files."""
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)


def run(*command: str, cwd: Path | None = None, **variables: str) -> str:
    """Run a command. Returns what it prints; shows everything if it fails."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ONCEBOX"))}
    done = subprocess.run(
        command, cwd=cwd, env={**kept, **variables}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
