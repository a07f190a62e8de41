"""docs/: its Python runs and prints what it shows; the reference lists what is public."""

import doctest
import re
from pathlib import Path

import pytest

import fastdr

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "generated" not in path.parts)
pytestmark = pytest.mark.skipif(not PAGES, reason="docs are not beside the tests")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_block_is_run_or_included(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.M)
    for language, _ in blocks:
        assert language == "python" or language.startswith("{"), f"not run: {language}"
    text = "\n".join(block for language, block in blocks if language == "python")
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    runner.run(doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0))
    assert runner.failures == 0


def listed(page, directive):
    """Names after `directive` in the reStructuredText of a page, its options left out."""
    text = (DOCS / page).read_text("utf-8")
    if directive == "autosummary":
        return re.findall(r"^   (?!:)(\w+)$", text, re.M)
    return re.findall(rf"^\.\. {directive}:: (\w+)$", text, re.M)


def test_the_reference_lists_every_public_name_once_and_nothing_else():
    assert sorted(listed("api.md", "autosummary")) == sorted(fastdr.__all__)


def test_guides_list_the_functions_of_their_modules():
    from fastdr import diagnostics, limits, plots
    shared = {"as_linear", "first_axes", "varying_axes", "is_complete", "square_lengths"}
    own = {name for module in (diagnostics, limits) for name, value in vars(module).items()
           if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")}
    assert sorted(listed("guide/diagnostics.md", "autofunction")) == sorted(own - shared)
    assert {*listed("guide/pictures.md", "autofunction"), "new_figure"} == set(plots.__all__)


def test_pages_are_reachable_and_links_lead_somewhere():
    index = (DOCS / "index.md").read_text("utf-8")
    for page in PAGES:
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        assert name == "index" or name.startswith("guide/") or f"\n{name}\n" in index, name
        for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", page.read_text("utf-8")):
            if "generated/" not in target:
                assert (page.parent / target.partition("#")[0]).exists(), f"{page}: {target}"
