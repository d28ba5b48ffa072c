"""Makes the tables of the models."""

import asyncio

from stock import Base, engine


async def make_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


asyncio.run(make_tables())
