"""One option for bench/test_speed.py."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="benchmark the full sizes")
