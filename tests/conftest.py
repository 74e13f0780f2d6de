"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of captured scenes and odd inputs that stands beside a developer's checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"no folder {SHARED.name}/ beside the checkout: captured scenes are not at hand")
    return SHARED
