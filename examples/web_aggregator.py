"""An aggregator inside a web application: its lifespan is the application's.

Serve `application(...)` with an ASGI server, for example uvicorn. The page shows the
last sum; clients connect to the aggregator's own port.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import secagg


async def last_sum(request: Request) -> JSONResponse:
    """Show the last sum and what the whole task costs its users."""
    total: secagg.ReleasedSum | None = request.app.state.last
    if total is None:
        return JSONResponse({"inputs": 0})
    return JSONResponse(
        {
            "session": total.session_number,
            "inputs": total.inputs,
            "sum": total.values.tolist(),
            "epsilon": total.privacy.server.epsilon if total.privacy else None,
        }
    )


def application(
    prepared: secagg.PreparedTask,
    *,
    listen: str,
    identity: secagg.TLSIdentity,
    state_dir: Path,
) -> Starlette:
    """Return a web application that runs one task while it is up."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with secagg.Server(
            listen,
            identity=identity,
            state_dir=state_dir,
            rollback_mark=state_dir.with_name(f"{state_dir.name}.mark"),
        ) as server:
            task = await server.add_task("visits", prepared)
            app.state.address, app.state.last = str(server.address), None

            async def read() -> None:
                async for total in task.sums():
                    app.state.last = total

            reading = asyncio.create_task(read())
            yield
            reading.cancel()
            await asyncio.wait({reading})

    return Starlette(routes=[Route("/", last_sum)], lifespan=lifespan)
