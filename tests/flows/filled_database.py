"""Print how many KiB of memory inserts of ever other numbers of rows leave in a process that opens
its database as Prefect's server does.

    python -m tests.flows.filled_database FILE [bounded]
"""

import asyncio
import sys

import psutil
from prefect.server.database.configurations import AioSqliteConfiguration

from flows.server import bound_database_memory

COLUMNS = 10


async def main(file: str) -> None:
    engine = await AioSqliteConfiguration(f"sqlite+aiosqlite:///{file}").engine()
    async with engine.begin() as connection:
        names = ", ".join(f"column_{i}" for i in range(COLUMNS))
        await connection.exec_driver_sql(f"create table filled ({names})")
    before = psutil.Process().memory_info().rss
    for rows in range(300, 460):
        places = ", ".join([f"({', '.join('?' * COLUMNS)})"] * rows)
        async with engine.begin() as connection:
            values = (f"{rows} of 459" * 4,) * (rows * COLUMNS)
            await connection.exec_driver_sql(f"insert into filled values {places}", values)
    print((psutil.Process().memory_info().rss - before) >> 10)


if __name__ == "__main__":
    if "bounded" in sys.argv:
        bound_database_memory()
    asyncio.run(main(sys.argv[1]))
