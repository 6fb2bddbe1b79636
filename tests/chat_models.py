"""A tiny language model with a chat template, imported from a folder of transformers, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from regard.importing.transformers import import_model
from tests import json_tokenizers

# As SmolLM2-Instruct and many others have it: ChatML, and a system message of its own where there is none.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tokenizer(folder: Path, template: str | None = CHATML, kind: str = "gpt2", **settings: Any) -> None:
    """A tokenizer of this kind with ChatML's control tokens and a template."""
    json_tokenizers.write(folder, kind)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    described = {**json.loads(path.read_text()), "eos_token": "<|im_end|>", **settings}
    if template is not None:
        described["chat_template"] = template
    path.write_text(json.dumps(described))


def write_model(folder: Path, template: str | None = CHATML, seed: int = 3, positions: int = 256) -> tuple[Path, Path]:
    """A folder of transformers with random weights, and the bundle made of it."""
    original, bundle = folder / "original", folder / "bundle"
    write_tokenizer(original, template)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(original)
    ends = {"bos_token_id": theirs.bos_token_id, "eos_token_id": theirs.eos_token_id, "pad_token_id": None}
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(vocab_size=len(theirs), max_position_embeddings=positions, **shape, **ends)
    model: Any = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() > 1 else 1)  # so that texts differ from prompt to prompt
    model.save_pretrained(original)
    import_model(original, bundle, compare=False)
    return original, bundle
