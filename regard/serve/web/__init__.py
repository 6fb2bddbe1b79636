"""HTTP. The only part of Regard that imports FastAPI, uvicorn and what comes with the extra `serve`."""
