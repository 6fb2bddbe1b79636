"""An index: the passages of a folder of documents, each with its vector, and exact search among them.

    index.json      the model that made it, the folder, its documents
    vectors.npy     (passages, d_model) float32, of length 1
    passages.jsonl  place and text of each passage; places.npy says where each line begins
    manifest.json   SHA-256 of every file

`indexing.py` writes it. Searching is a matrix product: no server, and nothing approximate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.arguments import check_text
from regard.bounds import check_whole
from regard.builtin import builtin_models, shown_name
from regard.bundle import WEIGHTS, Bundle
from regard.errors import UserError
from regard.escaping import shorten
from regard.files import MANIFEST, check_manifest, read_json
from regard.understanding.embedder import Embedder, Vectors, scaled

FORMAT = 1
INDEX, VECTORS, PASSAGES, PLACES = "index.json", "vectors.npy", "passages.jsonl", "places.npy"
MAX_HITS = 10_000
QUERY, DOCUMENT = "query", "document"  # prompts that models may have for the two sides of a search


@dataclass(frozen=True)
class IndexedDocument:
    """A document of an index."""

    path: str  # in the folder
    sha256: str
    size: int
    changed: int  # modification time in nanoseconds
    passages: int


@dataclass(frozen=True)
class Hit:
    """A search result."""

    score: float  # cosine, between -1 and 1
    path: str  # of the document, in the folder that was indexed
    place: str
    text: str


def fingerprint(bundle: Bundle) -> str:
    """A hash that is equal for bundles that make the same vectors, whatever their cards say."""
    files = read_json(bundle.folder / MANIFEST).get("files", {})
    parts = [
        files.get(WEIGHTS),
        bundle.tokenizer.fingerprint,
        bundle.config.to_dict(),
        bundle.max_length,
        dict(bundle.prompts),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def model_name(bundle: Bundle) -> str:
    """How an index names its model: a built-in one by name, another by its folder."""
    is_builtin = bundle.folder in builtin_models().values()
    return shown_name(bundle.folder) if is_builtin else str(bundle.folder.resolve())


def prompt_for(bundle: Bundle, side: str) -> str | None:
    """The model's prompt for a query or a document, if it has one."""
    return side if side in bundle.prompts else None


def _no_index(folder: Path) -> str:
    """Why a folder is no index, and what to do."""
    if not folder.exists():
        return f"{folder}: there is no such folder; make an index: regard embed FOLDER --index {folder}"
    own = folder.with_name(f"{folder.name}.index")
    remedy = f"name its index, {own}" if (own / INDEX).is_file() else f"make one: regard embed {folder}"
    return f"{folder}: must be an index, but has no {INDEX}; {remedy}"


class Index:
    """An opened index. `regard.load_index` opens it with its model, which searching needs."""

    def __init__(self, folder: Path, embedder: Embedder | None = None) -> None:
        self.folder, self.embedder = folder, embedder
        if not (folder / INDEX).is_file():
            raise UserError(_no_index(folder))
        check_manifest(folder, (INDEX, VECTORS, PASSAGES, PLACES))
        settings = read_json(folder / INDEX)
        if settings.get("format") != FORMAT:
            raise UserError(
                f"{folder}: the format of an index must be {FORMAT} for this version of Regard, but is "
                f"{shorten(settings.get('format'))}; make it again"
            )
        try:
            self.model, self.fingerprint = str(settings["model"]), str(settings["fingerprint"])
            self.root, self.passage_tokens = Path(settings["folder"]), int(settings["passage_tokens"])
            self.documents = [IndexedDocument(**one) for one in settings["documents"]]
            self.vectors: Vectors = np.load(folder / VECTORS, mmap_mode="r")
            self._places: NDArray[Any] = np.load(folder / PLACES)
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise self._damaged(str(error)) from None
        self._firsts = np.cumsum([0, *(one.passages for one in self.documents)])
        self._check_parts()
        if embedder is not None:
            self.check_model(embedder.bundle)

    def _check_parts(self) -> None:
        """An index may come from a stranger: check that its files fit together."""
        count, places = int(self._firsts[-1]), self._places
        if (self.vectors.ndim, self.vectors.dtype, self.vectors.shape[:1]) != (2, np.dtype(np.float32), (count,)):
            raise self._damaged(f"{VECTORS} does not have one vector for each passage")
        if (places.dtype, places.shape) != (np.dtype(np.int64), (count + 1,)):
            raise self._damaged(f"{PLACES} does not have one place for each passage")
        if places[0] != 0 or (np.diff(places) < 0).any() or places[-1] != (self.folder / PASSAGES).stat().st_size:
            raise self._damaged(f"{PLACES} does not fit {PASSAGES}")

    def _damaged(self, why: str) -> UserError:
        return UserError(
            f"{self.folder}: must be an index that regard embed wrote, but is damaged ({why}); make it again"
        )

    def __len__(self) -> int:
        """The number of passages."""
        return len(self.vectors)

    def __repr__(self) -> str:
        return f"<regard.Index {self.folder}, {len(self.documents):,} documents, {len(self):,} passages>"

    def check_model(self, bundle: Bundle) -> None:
        """Refuse a model that did not make this index: its vectors cannot be compared."""
        if fingerprint(bundle) != self.fingerprint:
            raise UserError(
                f"{self.folder}: was made with the model {self.model}, but {shown_name(bundle.folder)} is another; name that one "
                "with -m, or make the index again"
            )

    def search(self, query: str, k: int = 5) -> list[Hit]:
        """The `k` passages nearest to a query, best first."""
        if self.embedder is None:
            raise UserError(f"{self.folder}: was opened without its model; open it with regard.load_index to search it")
        if not check_text("query", query).strip():
            raise UserError("a query must have text, but is empty")
        return self.nearest(self.embedder.embed([query], prompt_for(self.embedder.bundle, QUERY))[0], k)

    def nearest(self, vector: Vectors, k: int = 5) -> list[Hit]:
        """The `k` passages nearest to a vector."""
        check_whole("k", k, 1, MAX_HITS)
        if not len(self):
            return []
        scores = self.vectors @ scaled(vector)
        some = np.argpartition(-scores, k - 1)[:k] if k < len(scores) else np.arange(len(scores))
        best = some[np.lexsort((some, -scores[some]))]
        return self._hits(best.tolist(), scores[best].tolist())

    def _hits(self, numbers: Sequence[int], scores: Sequence[float]) -> list[Hit]:
        owners = np.searchsorted(self._firsts, numbers, side="right") - 1
        hits = []
        with (self.folder / PASSAGES).open("rb") as file:
            for number, score, owner in zip(numbers, scores, owners.tolist(), strict=True):
                passage = self._read_passage(file, number)
                hits.append(Hit(score, self.documents[owner].path, str(passage["place"]), str(passage["text"])))
        return hits

    def raw_passages(self, first: int, count: int) -> list[bytes]:
        """Lines of passages.jsonl."""
        bounds = self._places[first : first + count + 1].tolist()
        with (self.folder / PASSAGES).open("rb") as file:
            file.seek(bounds[0])
            return [file.read(end - begin) for begin, end in pairwise(bounds)]

    def _read_passage(self, file: Any, number: int) -> dict[str, Any]:
        begin, end = int(self._places[number]), int(self._places[number + 1])
        file.seek(begin)
        try:
            passage = json.loads(file.read(end - begin))
            return {"place": passage["place"], "text": passage["text"]}
        except (KeyError, TypeError, ValueError):
            raise self._damaged(f"passage {number} cannot be read") from None
