"""The report as headless Chromium shows it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from selectolax.lexbor import LexborHTMLParser

import stitch_mcp

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TIME_LIMIT_S = 60


def shown(page: Path, folder: Path, *arguments: str) -> tuple[str, list[str]]:
    """The document after Chromium has laid the page out, and what it had to say about it."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"not shown in a browser: none of {', '.join(BROWSERS)} is installed")
    command = [
        browser,
        "--headless",
        "--no-sandbox",  # as root it refuses to start with one
        "--disable-gpu",
        f"--user-data-dir={folder}",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        *arguments,
        page.as_uri(),
    ]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def test_chromium_shows_the_whole_report_and_has_nothing_to_complain_of(
    four_programs: Path, tmp_path: Path
) -> None:
    path = Path(stitch_mcp.write_report("last", workspace=four_programs).path)
    document, complaints = shown(path, tmp_path, "--dump-dom")
    assert complaints == []
    as_written = LexborHTMLParser(path.read_text(encoding="utf-8"))
    as_shown = LexborHTMLParser(document)
    for kind in ("h2", "table tr", "figure g title", "details"):
        assert len(as_shown.css(kind)) == len(as_written.css(kind)) > 0


def test_a_report_that_loaded_something_would_be_complained_of(four_programs: Path, tmp_path: Path) -> None:
    path = Path(stitch_mcp.write_report("last", workspace=four_programs).path)
    text = path.read_text(encoding="utf-8")
    image = '<img src="http://evil.example/x.png">'
    path.write_text(text.replace("</body>", f"{image}</body>"), encoding="utf-8")
    _, complaints = shown(path, tmp_path / "browser", "--dump-dom")
    assert len(complaints) == 1
    assert "Content Security Policy" in complaints[0]


def test_chromium_draws_the_chart(four_programs: Path, tmp_path: Path) -> None:
    path = Path(stitch_mcp.write_report("last", workspace=four_programs).path)
    image = tmp_path / "report.png"
    shown(path, tmp_path / "browser", "--window-size=900,900", f"--screenshot={image}")
    # A blank page of this size compresses to some 5 kB.
    assert image.stat().st_size > 20_000
