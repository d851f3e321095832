"""Pages that were added can be removed again, one by one, by folder, and by address."""

import json
from pathlib import Path

import pytest

from stitch_mcp.cli import main
from stitch_rag.build import build_index, index_status
from stitch_rag.index_location import IndexLocation
from stitch_rag.pages import Page, add_pages, remove_pages
from stitch_rag.reader import Reader
from stitch_rag.sources import Root
from stitch_tools.errors import UsageError
from stitch_tools.models.base import sha256_hex


@pytest.fixture
def folder(place: IndexLocation, tmp_path: Path) -> Path:
    """A folder of two pages that was added, beside one more page."""
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "boxes.md").write_text("# Boxes\n\nAre square.\n", encoding="utf-8")
    (folder / "deep" / "lids.txt").write_text("Lids close boxes.", encoding="utf-8")
    (tmp_path / "docs-of-others.md").write_text("# Crates\n\nAre large.\n", encoding="utf-8")
    for origin in (folder, tmp_path / "docs-of-others.md"):
        add_pages(place, str(origin))
    return folder


def add_address(place: IndexLocation, address: str, shown: str) -> None:
    """As `index add` stores a page that it fetched."""
    page = Page(origin=shown, format="text", added_at="now", content="Words of the web.")
    path = place.pages / f"{sha256_hex(address.encode())[:32]}.json"
    path.write_bytes(page.canonical_json())


def test_one_page_is_removed_though_its_file_is_gone_and_no_second_time(
    place: IndexLocation, toolkit: Root, folder: Path
) -> None:
    build_index(place, roots=[toolkit])
    (folder / "boxes.md").unlink()
    reader = Reader(place.folder.parent)
    assert reader.search("square boxes").hits[0].symbol == "Boxes"
    assert remove_pages(place, str(folder / "boxes.md")) == [str(folder / "boxes.md")]
    assert build_index(place, roots=[toolkit]).removed == 1
    assert "Boxes" not in {hit.symbol for hit in reader.search("square boxes").hits}
    with pytest.raises(UsageError, match=r"no page of .*boxes\.md was added") as caught:
        remove_pages(place, str(folder / "boxes.md"))
    assert str(folder / "deep" / "lids.txt") in caught.value.hint
    reader.close()


def test_a_folder_s_pages_go_together_and_its_neighbours_stay(
    place: IndexLocation, toolkit: Root, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    removed = remove_pages(place, "../docs/deep/..")
    assert removed == [str(folder / "boxes.md"), str(folder / "deep" / "lids.txt")]
    assert index_status(place, roots=[toolkit]).pages == (f"{folder}-of-others.md",)


def test_an_address_is_removed_as_it_was_given_or_as_it_is_shown(place: IndexLocation, folder: Path) -> None:
    whole, shown = "https://host/guide?token=hunter2", "https://host/guide?token=..."
    for origin in (whole, shown):
        add_address(place, whole, shown)
        assert remove_pages(place, origin) == [shown]
    add_address(place, whole, shown)
    for origin in ("https://me:hunter2@host/other?token=hunter2", "https://[hunter2"):
        with pytest.raises(UsageError, match="no page of") as caught:
            remove_pages(place, origin)
        assert "hunter2" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("origin", ["", "  ", "\0", "~nobody"])
def test_what_names_no_page_removes_none(origin: str, place: IndexLocation, folder: Path) -> None:
    with pytest.raises(UsageError):
        remove_pages(place, origin)
    assert len(list(place.pages.iterdir())) == 3


def test_where_nothing_was_added_nothing_is_removed(place: IndexLocation) -> None:
    with pytest.raises(UsageError) as caught:
        remove_pages(place, "guide.md")
    assert caught.value.hint == "no page was added at all"


@pytest.mark.usefixtures("no_packages")
def test_the_command_removes_builds_and_says_when_there_is_nothing_to_remove(
    place: IndexLocation,
    toolkit: Root,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit.folder.parent))
    cache = ("--cache-dir", str(place.folder.parent))
    assert main(["index", "status", *cache]) == 0
    assert f"added page: {folder / 'boxes.md'}" in capsys.readouterr().out.replace("\n", "")
    command = ["index", "remove", str(folder / "boxes.md"), *cache]
    assert main([*command, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["command"], done["pages"]) == ("index remove", [str(folder / "boxes.md")])
    assert done["chunks"] > 0
    assert main([*command, "--json"]) == 2
    refused = json.loads(capsys.readouterr().out)["error"]
    assert (refused["code"], "was added" in refused["message"]) == ("usage", True)
    assert main(["index", "remove", str(folder), *cache]) == 0
    assert "removed" in capsys.readouterr().out
