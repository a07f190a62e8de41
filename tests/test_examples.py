"""The examples in docstrings and README.md, run against the installed package."""

import doctest
import importlib
import pkgutil

import pytest

import fastdr

MODULES = sorted(module.name for module in pkgutil.iter_modules(fastdr.__path__, "fastdr."))
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("name", ["fastdr", *MODULES])
def test_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert failed == 0


def test_public_names_have_examples():
    for name in fastdr.__all__:
        value = getattr(fastdr, name)
        if not (isinstance(value, type) and issubclass(value, Warning)):
            assert ">>>" in (value.__doc__ or ""), f"fastdr.{name} has no example"
