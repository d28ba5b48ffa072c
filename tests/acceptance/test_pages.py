"""The pages that readers follow step by step do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.services.kafka import Kafka

from .pages import Page

pytestmark = [pytest.mark.crash]


def test_the_quickstart_works_and_prints_what_it_says(tmp_path: Path) -> None:
    assert Page("quickstart.md").follow(tmp_path) >= 8


def test_every_code_block_of_the_quickstart_is_tested() -> None:
    page = Page("quickstart.md")
    assert {block.language for block in page.blocks} == {"python", "sh", "text"}
    assert page.text.count("```") == 2 * len(page.blocks)


@pytest.mark.slow
def test_the_page_about_retention_works_and_prints_what_it_says(tmp_path: Path) -> None:
    assert Page("years.md").follow(tmp_path) >= 3


@pytest.mark.slow
def test_the_kafka_page_works_and_prints_what_it_says(
    tmp_path: Path, kafka: Kafka, postgres_url: str
) -> None:
    compared = Page("kafka.md").follow(tmp_path, KAFKA=kafka.bootstrap, DATABASE_URL=postgres_url)
    assert compared == 2
    kafka.delete_topic("orders")
