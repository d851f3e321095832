"""Models that other packages bring by entry points."""

import sys
from pathlib import Path

import pytest

from stitch_planner.llm.chat import ModelError
from stitch_planner.llm.model_settings import ModelLimits, ModelSettings, require_model, settings_of
from stitch_planner.llm.providers import open_model, require_ready
from stitch_tools.errors import UsageError

PACKAGE = """
class Echo:
    may_bill = True

    def __init__(self, settings):
        self.name = settings.model if settings else "echo"

    def ask(self, request, waiting):
        raise NotImplementedError


def broken(settings):
    raise RuntimeError("no licence")
"""
ENTRIES = "[stitch_mcp.chat_models]\nmine = echo_models:Echo\nbroken = echo_models:broken\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a package as pip leaves it."""
    (tmp_path / "echo_models.py").write_text(PACKAGE)
    described = tmp_path / "echo_models-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-models\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "echo_models", raising=False)
    return tmp_path


def test_a_model_is_made_by_its_package_with_the_table_of_its_name(installed: Path) -> None:
    models = {"mine": ModelSettings(model="large")}
    require_model("plugin:mine", None, models)
    settings = settings_of("plugin:mine", "", models)
    assert open_model("plugin:mine", settings, installed).name == "large"
    assert open_model("plugin:mine", None, installed).name == "echo"


def test_a_limit_in_dollars_needs_its_prices_as_well(installed: Path) -> None:
    require_ready("plugin:mine", None, ModelLimits(tokens=1000), installed)
    with pytest.raises(UsageError, match="the price of echo is not known"):
        require_ready("plugin:mine", None, ModelLimits(usd=1.0), installed)


@pytest.mark.parametrize(
    ("name", "said"), [("other", "no installed package offers"), ("broken", "RuntimeError: no licence")]
)
def test_a_model_that_is_not_there_or_cannot_be_made_is_an_error_with_a_hint(
    installed: Path, name: str, said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        open_model(f"plugin:{name}", None, installed)
    assert caught.value.hint
    assert "mine" in caught.value.hint or name == "broken"
