"""The pages beside models for CTranslate2: how to use the folder, and where CTranslate2 by itself differs from Regard. The tests
run the code in them."""

from __future__ import annotations

from regard.bundle import Bundle
from regard.data.huggingface import JSON_FILE
from regard.data.tokenizer import Tokenizer
from regard.generate.engines.ctranslate2_model import WeightFormat, positions, vocabularies
from regard.generate.options import forbidden_ids

HEAD_FILE = "head.safetensors"


def make_readme(bundle: Bundle, weights: WeightFormat) -> str:
    """README.md of a folder."""
    if bundle.config.decoder_stack is None:
        title, code, notes = f"An encoder for the task {bundle.task}", _encoder_code(bundle), _encoder_notes(bundle)
    elif bundle.config.encoder_stack is None:
        title, code, notes = "A language model", _generator_code(bundle), _generator_notes(bundle)
    else:
        title = bundle.languages if bundle.source and bundle.target else "A text-to-text model"
        code, notes = _translator_code(bundle), _translator_notes(bundle)
    listed = "\n".join(f"- {note}" for note in [*notes, *_limit(bundle)])
    return f"""# {title} for CTranslate2

Written by `regard export --to ctranslate2 --weights {weights}`. The folder holds all that is needed:

```python
{code}```

{listed}
"""


def _limit(bundle: Bundle) -> list[str]:
    stack = next(iter(bundle.config.stacks.values()))
    if stack.positions not in ("learned", "sinusoidal"):
        return []
    both = len(bundle.config.stacks) == 2
    rows, noun = (positions(bundle) - 1, "sentence") if both else (positions(bundle), "text")
    return [f"A {noun} may have at most {rows:,} pieces; a longer one is an error."]


def _open_tokenizer(tokenizer: Tokenizer) -> tuple[str, str, str]:
    """Code that opens a tokenizer of one vocabulary, that makes pieces of `text`, and that makes text of `ids`."""
    if tokenizer.kind == "huggingface":
        opened = f'tokenizer = tokenizers.Tokenizer.from_file("FOLDER/tokenizer/{JSON_FILE}")'
        return (f"import tokenizers\n\n{opened}", "tokenizer.encode(text, add_special_tokens=False).tokens",
                "tokenizer.decode(ids)")  # fmt: skip
    name = "joint.model" if tokenizer.kind == "joint" else "source.model"
    opened = f'tokenizer = sentencepiece.SentencePieceProcessor("FOLDER/tokenizer/{name}")'
    return f"import sentencepiece\n\n{opened}", "tokenizer.encode(text, out_type=str)", "tokenizer.decode(ids)"


# --- encoder and decoder ---


def _translator_code(bundle: Bundle) -> str:
    tokenizer, decode = bundle.tokenizer, bundle.decode
    search = f"""    beam_size={decode.beam},
    length_penalty={decode.alpha},
    max_decoding_length={min(bundle.max_length + decode.max_extra, positions(bundle) - 1)},
"""
    if tokenizer.kind == "ids":
        return f"""import ctranslate2

translator = ctranslate2.Translator("FOLDER")
results = translator.translate_batch(
    [["<piece>", "<piece>"]],  # pieces of shared_vocabulary.json
{search})
print(*[result.hypotheses[0] for result in results], sep="\\n")
"""
    if tokenizer.kind == "huggingface":
        opened, encode, text_of = _open_tokenizer(tokenizer)
        assert tokenizer.controls is not None  # they come with a tokenizer.json
        known, _ = vocabularies(tokenizer, bundle.config.vocab_size)
        start = [known[i] for i in tokenizer.controls.source_opening]
        pieces = f"{start} + {encode}" if start else encode
        return f"""import ctranslate2
{opened}
translator = ctranslate2.Translator("FOLDER")
sentences = ["one sentence"]
results = translator.translate_batch(
    [{pieces} for text in sentences],
{search})
for result in results:
    ids = [tokenizer.token_to_id(piece) for piece in result.hypotheses[0]]
    ids = [number for number in ids if number is not None]  # the model may have ids without a piece
    print({text_of})
"""
    start = [tokenizer.pieces(tokenizer.target_tag(bundle.target))[0]] if tokenizer.targets else []
    pieces = f"{start} + source.encode(sentence, out_type=str)" if start else "source.encode(sentence, out_type=str)"
    models = ("joint.model", "joint.model") if tokenizer.kind == "joint" else ("source.model", "target.model")
    return f"""import ctranslate2
import sentencepiece

translator = ctranslate2.Translator("FOLDER")
source = sentencepiece.SentencePieceProcessor("FOLDER/tokenizer/{models[0]}")
target = sentencepiece.SentencePieceProcessor("FOLDER/tokenizer/{models[1]}")
sentences = ["one sentence"]
results = translator.translate_batch(
    [{pieces} for sentence in sentences],
{search})
print(*[target.decode(result.hypotheses[0]) for result in results], sep="\\n")
"""


def _translator_notes(bundle: Bundle) -> list[str]:
    _, target = vocabularies(bundle.tokenizer, bundle.config.vocab_size)
    banned = [target[i] for i in forbidden_ids(bundle.tokenizer)]
    notes = [
        "CTranslate2 appends the end token to each source (`add_source_eos`).",
        "Its length penalty is n^p, and Regard's is ((5 + n) / 6)^alpha with the end token counted: the best of a beam can differ.",
    ]
    if targets := bundle.tokenizer.targets:
        tags = bundle.tokenizer.pieces(tag for one in targets for tag in bundle.tokenizer.target_tag(one))
        named = ", ".join(f"`{tag}` for {one}" for one, tag in zip(targets, tags, strict=True))
        notes.append(f"A source begins with the tag of the language to translate into: {named}.")
    if banned:
        notes.append(
            f"{len(banned)} pieces stand for no text. If one appears in a translation, ban them: `suppress_sequences` takes a\n"
            f"  list such as `{[[piece] for piece in banned[:2]]}`."
        )
    return notes


# --- a decoder alone ---


def _generator_code(bundle: Bundle) -> str:
    tokenizer = bundle.tokenizer
    length = min(40, max(1, (bundle.config.longest or 80) // 2))
    search = f"max_batch_size=1, max_length={length}, sampling_topk=1, include_prompt_in_result=False"
    if tokenizer.kind == "ids":
        return f"""import ctranslate2

generator = ctranslate2.Generator("FOLDER")
prompts = [["<piece>", "<piece>"]]  # pieces of vocabulary.json
results = generator.generate_batch(
    prompts,
    {search},
)
print(*[result.sequences_ids[0] for result in results], sep="\\n")
"""
    opened, encode, text_of = _open_tokenizer(tokenizer)
    _, pieces = vocabularies(tokenizer, bundle.config.vocab_size)
    start = [pieces[i] for i in tokenizer.prompt_opening]
    prompt = f"{start} + {encode}" if start else encode
    return f"""import ctranslate2
{opened}
generator = ctranslate2.Generator("FOLDER")
prompts = ["Once upon a time"]
results = generator.generate_batch(
    [{prompt} for text in prompts],
    {search},
)
print(*[{text_of} for ids in (result.sequences_ids[0] for result in results)], sep="\\n")
"""


def _generator_notes(bundle: Bundle) -> list[str]:
    _, pieces = vocabularies(bundle.tokenizer, bundle.config.vocab_size)
    notes = [
        "`max_length` counts the tokens that are written after the prompt; `sampling_topk=1` takes the likeliest each time.",
        "`max_batch_size=1`: for prompts of different lengths in one batch, CTranslate2 returns parts of the longer ones, too.",
    ]
    if stops := [pieces[i] for i in bundle.tokenizer.stop_ids if i >= 0][1:]:
        notes.append(f"A text may also end with `{'`, `'.join(stops)}`: name all ends in `end_token`.")
    return notes


# --- an encoder alone ---


def _encoder_code(bundle: Bundle) -> str:
    tokenizer, head = bundle.tokenizer, bundle.config.head_settings
    imports = ["import ctranslate2", "import numpy as np"]
    if head.kind == "tokens" and head.transform and bundle.config.stacks["encoder"].activation == "gelu":
        imports.insert(1, "import math\n")
    lines = ['encoder = ctranslate2.Encoder("FOLDER")']
    if tokenizer.kind == "ids":
        lines += ["ids = [5, 6, 7]"]
    else:
        opened, encode, _ = _open_tokenizer(tokenizer)
        imports.append(opened)
        _, pieces = vocabularies(tokenizer, bundle.config.vocab_size)
        opening, closing = ([pieces[i] for i in ids] for ids in (tokenizer.opening, tokenizer.closing))
        lines += ['text = "one sentence"', f"ids = {opening} + {encode} + {closing}"]
    lines += [
        "output = encoder.forward_batch([ids])",
        "states = np.array(output.last_hidden_state)[0]  # (tokens, d_model)",
    ]
    if head.kind != "vector":
        imports.append("from safetensors.numpy import load_file")
        lines.append(f'head = load_file("FOLDER/{HEAD_FILE}")')
    return "\n".join([*imports, "", *lines, *_head_code(bundle)]) + "\n"


_POOLED = {"mean": "states.mean(0)", "first": "states[0]", "tanh-first": "np.array(output.pooler_output)[0]"}
_ACTIVATED = {
    "relu": "np.maximum(x, 0)",
    "silu": "x / (1 + np.exp(-x))",
    "gelu": "x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2",
    "gelu_tanh": "x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2",
}


def _head_code(bundle: Bundle) -> list[str]:
    """From `states` to the answer."""
    head, stack = bundle.config.head_settings, bundle.config.stacks["encoder"]
    if head.kind == "vector":
        scaled = ["vector = vector / np.linalg.norm(vector)"] if head.normalize else []
        return [f"vector = {_POOLED[head.pooling]}", *scaled, "print(vector)"]
    if head.kind != "tokens":
        given = _POOLED[head.pooling] if head.kind == "classes" else "states"
        return [
            f'logits = {given} @ head["head.output.weight"].T + head["head.output.bias"]',
            f"labels = {list(head.labels)}",
            "print(labels[logits.argmax()])"
            if head.kind == "classes"
            else "print([labels[i] for i in logits.argmax(-1)])",
        ]
    lines = ["x = states"]
    if head.transform:
        lines += [
            'x = x @ head["head.transform.weight"].T + head["head.transform.bias"]',
            f"x = {_ACTIVATED[stack.activation]}",
        ]
        if stack.norm == "layer":
            lines.append("x = x - x.mean(-1, keepdims=True)")
        lines.append(f"x = x / np.sqrt((x * x).mean(-1, keepdims=True) + {stack.norm_eps!r})")
        lines.append('x = x * head["head.transform_norm.weight"]')
        if stack.norm == "layer" and stack.norm_bias:
            lines[-1] += ' + head["head.transform_norm.bias"]'
    scale = "" if head.logit_scale == 1.0 else f"{head.logit_scale!r} * "
    bias = ' + head["output_bias"]' if bundle.config.output_bias else ""
    lines.append(f'logits = {scale}x @ head["output.weight"].T{bias}')
    return [*lines, "print(logits.argmax(-1))  # the likeliest token at each place"]


def _encoder_notes(bundle: Bundle) -> list[str]:
    notes = []
    if bundle.config.head_settings.kind != "vector":
        notes.append(f"CTranslate2 runs the encoder alone; {HEAD_FILE} has the rest of the model, in float32.")
    if (kinds := bundle.config.front_settings.token_types) > 1:
        notes.append(
            f"`token_type_ids` of `forward_batch` tells {kinds} kinds of tokens apart; without it, all are of kind 0."
        )
    return notes
