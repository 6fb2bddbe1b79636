"""What others have to say is logged without what users send."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.serve.server import ROOT

CODE = """
import asyncio, logging
from regard.serve.web.logs import set_up_logs
set_up_logs()
async def main():
    def fail():
        raise ValueError("secret text")
    asyncio.get_running_loop().call_soon(fail)
    await asyncio.sleep(0.01)
asyncio.run(main())
logging.getLogger("uvicorn.error").warning("Invalid %s", "secret text")
"""


def test_messages_are_logged_without_what_is_put_into_them() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    loop, other = map(json.loads, done.stderr.splitlines())
    assert loop["event"] == "failure in the event loop" and loop["error"].startswith("ValueError at <string>:")
    assert other["event"] == "Invalid %s"
    assert "secret" not in done.stderr
