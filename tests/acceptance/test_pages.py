"""The pages that readers follow step by step do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.services.kafka import Kafka

from .pages import FOLLOWED, Page

pytestmark = [pytest.mark.crash]

OUTPUTS = {
    "README.md": 2,
    "docs/django.md": 2,
    "docs/own-loop.md": 3,
    "docs/quickstart.md": 8,
    "docs/replay.md": 1,
    "docs/retention.md": 3,
    "docs/sequence-numbers.md": 2,
    "docs/testing.md": 2,
}
"""How many outputs each page promises, at least."""
QUICK = ("README.md", "docs/own-loop.md", "docs/testing.md")
PAGES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in OUTPUTS]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_works_and_prints_what_it_says(name: str, tmp_path: Path) -> None:
    assert Page(name).follow(tmp_path) >= OUTPUTS[name]


@pytest.mark.slow
def test_the_kafka_page_works_and_prints_what_it_says(
    tmp_path: Path, kafka: Kafka, postgres_url: str
) -> None:
    page = Page("docs/kafka.md")
    compared = page.follow(tmp_path, KAFKA=kafka.bootstrap, DATABASE_URL=postgres_url)
    assert compared == 2
    kafka.delete_topic("orders")


def test_every_page_with_commands_is_followed() -> None:
    assert {*OUTPUTS, "docs/kafka.md"} == set(FOLLOWED)
