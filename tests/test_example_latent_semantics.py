"""examples/latent_semantics.py: it runs, and what it prints is true (seed S19)."""

import re

import pytest


def test_s19_a_query_finds_documents_that_share_no_word_with_it(run_example, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    printed = run_example("latent_semantics")
    sizes, query, *hits, apart, others, folded, proof, _ = printed.splitlines()
    assert [int(number) for number in re.findall(r"\d+", sizes)][0::2] == [17, 3]
    asked = set(re.findall(r"\w+", query.partition(":")[2]))
    assert asked == {"real", "estate"}
    found = [re.fullmatch(r"(\S+) on the axes, (\S+) by words: (.*)", line).groups()
             for line in hits]
    assert len(found) == 7
    wordless = 0
    for near, by_words, text in found:
        shares = asked & set(re.findall(r"\w+", text.lower()))
        assert bool(shares) is (float(by_words) > 0)
        assert float(near) > 0.5
        assert re.search("home|bedroom|garage|estate", text.lower())
        wordless += not shares
    count, farthest = re.search(r"query: (\d+), .* (\S+)$", apart).groups()
    assert int(count) == wordless >= 3
    assert float(farthest) > 0.5 > 0.3 > float(others.split()[-1])
    assert float(folded.split()[-1]) < 1e-14
    assert "proved" in proof
    pixels = image.imread(tmp_path / "latent_semantics.png")
    assert pixels.shape[:2] == (500, 1200)
    assert pixels[..., :3].std() > 0.1
