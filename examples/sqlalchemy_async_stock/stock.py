"""Stock, kept by SQLAlchemy's ORM: the session of a handler is part of the claim's transaction."""

import os
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from oncebox import AsyncTransaction, Inbox

engine = create_async_engine(os.environ["DATABASE_URL"])
inbox = Inbox("stock", engine)


class Base(DeclarativeBase): ...


class Item(Base):
    __tablename__ = "items"
    sku: Mapped[str] = mapped_column(primary_key=True)
    quantity: Mapped[int]


@dataclass
class Moved:
    sku: str
    quantity: int


@inbox.on("stock.moved")
async def move(moved: Moved, tx: AsyncTransaction) -> None:
    session: AsyncSession = tx.session
    item = await session.get(Item, moved.sku) or Item(sku=moved.sku, quantity=0)
    item.quantity += moved.quantity
    session.add(item)
