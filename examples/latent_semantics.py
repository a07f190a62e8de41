"""A query finds documents that share no word with it: latent semantic indexing.

Someone who looks for "real estate" also wants "a single family home with three bedrooms", which
has neither word. By words alone such documents are at a right angle to the query, like those on
football. On a few axes of words that occur together they are close to it, for others speak of
estate agencies and homes at once. Run it as ``python examples/latent_semantics.py [FOLDER]``: it
prints what it claims and saves latent_semantics.png in FOLDER.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

import fastdr

TEXTS = {
    "homes": [
        "Real estate agency with many homes",
        "The estate agency sells a single family home",
        "Real estate listing: family home with a large garden",
        "Single family home, three bedrooms, large garden",
        "Three bedrooms, two bathrooms and a garage",
        "Agency listing: bedrooms and bathrooms new, with a garage",
        "Homes with a garden and a garage"],
    "football": [
        "The match ended with two late goals",
        "The striker scored both goals of the match",
        "The coach praised the striker after the match",
        "Late goals decided the home match",
        "The season ends with a match for the coach"],
    "kitchen": [
        "Boil the pasta and stir the tomato sauce",
        "Tomato sauce with basil and garlic",
        "Garlic bread with basil",
        "Pasta with garlic, basil of the garden and fresh bread",
        "Fresh bread and a tomato soup"],
}
QUERY = "real estate"
AXES = 3


def picture(lsi, subjects, texts, words, meaning, path):
    """Save both cosines of each document, and where documents and the query lie."""
    figure, panels = plt.subplots(1, 2, figsize=(12, 5), layout="constrained", width_ratios=(3, 2))
    places = np.arange(len(texts))
    panels[0].barh(places - 0.2, words, 0.4, color="0.6", label="by words")
    panels[0].barh(places + 0.2, meaning, 0.4, label=f"on {AXES} axes")
    panels[0].set_yticks(places, texts, fontsize="x-small")
    panels[0].invert_yaxis()
    panels[0].set(title=f'cosine to "{QUERY}"', xlim=(min(0, meaning.min()) - 0.02, 1.02))
    panels[0].legend(loc="lower right", fontsize="small")
    query = lsi.transform([QUERY])[0]
    for subject in TEXTS:
        chosen = lsi.documents_[subjects == subject]
        panels[1].scatter(chosen[:, 0], chosen[:, 1], s=24, label=subject)
    panels[1].scatter(*query[:2], marker="*", s=140, color="black", label=f'"{QUERY}"')
    panels[1].set(title="documents on the first two axes", xlabel="axis 1", ylabel="axis 2")
    panels[1].legend(fontsize="small")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(folder):
    """Print the claims and save the picture."""
    subjects = np.array([subject for subject, texts in TEXTS.items() for _ in texts])
    texts = [text for group in TEXTS.values() for text in group]
    cutter = CountVectorizer(stop_words="english")
    lsi = fastdr.LSI(AXES, vectorizer=cutter).fit(texts)
    print(f"{len(texts)} documents of {len(lsi.terms_)} words, on {AXES} axes")
    every = fastdr.LSI(len(texts), vectorizer=cutter).fit(texts)  # all axes: words themselves
    words, meaning = every.similarities([QUERY])[0], lsi.similarities([QUERY])[0]
    homes = subjects == "homes"
    print(f'query: "{QUERY}"')
    for hit in lsi.query(QUERY, top=int(homes.sum())):
        print(f"{hit.cosine:.3f} on the axes, {abs(words[hit.document]):.3f} by words: "
              f"{texts[hit.document]}")
    counts = lsi.model_.weighed(cutter.fit_transform(texts))
    asked = lsi.model_.weighed(cutter.transform([QUERY]))
    apart = np.asarray((counts @ asked.T).todense()).ravel() == 0
    print(f"documents on homes that share no word with the query: {int((homes & apart).sum())}, "
          f"the farthest at cosine {meaning[homes & apart].min():.3f}")
    print(f"nearest document on anything else: cosine {meaning[~homes].max():.3f}")
    landed = np.abs(lsi.transform(texts) - lsi.documents_).max()
    print(f"documents folded in again land where they were, to {landed:.0e}")
    print(f"singular values {np.array2string(lsi.singular_values_, precision=4)}, "
          f"{lsi.certificate_}")
    path = Path(folder) / "latent_semantics.png"
    picture(lsi, subjects, texts, words, meaning, path)
    print(f"picture: {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
