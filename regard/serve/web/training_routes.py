"""GET /training: the run of `--run DIR`, which the page polls every few seconds."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from regard.serve.web.context import context_of, find_key
from regard.serve.web.libretranslate import ERRORS
from regard.serve.web.schemas import TrainingView
from regard.serve.web.status import HttpRefused

router = APIRouter(tags=["The page"], responses=ERRORS)


@router.get("/training", response_model=TrainingView, responses={304: {"description": "nothing has changed"}})
async def training(request: Request) -> Response:
    """The training run: curves, latest numbers, scores and sample translations. Send the `ETag` of a reply back as `If-None-Match`
    to get 304 until something changes."""
    watch = context_of(request).watch
    if watch is None:
        raise HttpRefused(404, "no run is watched; start the server with: regard serve --run DIR")
    find_key(request, None)  # not charged, since the page polls every few seconds
    if request.headers.get("if-none-match") == f'"{await asyncio.to_thread(watch.version)}"':
        return Response(status_code=304)
    version, view = await asyncio.to_thread(watch.view)
    return JSONResponse(view, headers={"etag": f'"{version}"'})
