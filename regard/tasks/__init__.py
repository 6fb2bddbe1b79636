"""What is learnt: a module for each task, with the functions that `task.py` lists."""

from __future__ import annotations

from regard.tasks import classify, embed, fill, generate, tag, translate
from regard.tasks.task import Task

TASKS: dict[str, Task] = {
    "translate": translate,
    "generate": generate,
    "fill": fill,
    "classify": classify,
    "tag": tag,
    "embed": embed,
}
