"""The families of models that Regard imports and exports, by the `model_type` of their config.json."""

from __future__ import annotations

from regard.families.albert import ALBERT
from regard.families.bart import BART
from regard.families.bert import BERT, ROBERTA
from regard.families.cohere import COHERE
from regard.families.falcon import FALCON
from regard.families.family import Family
from regard.families.gpt2 import GPT2
from regard.families.gptj import GPTJ
from regard.families.llama import LLAMA, MISTRAL, QWEN2
from regard.families.t5 import T5

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (BART, T5, BERT, ROBERTA, ALBERT, GPT2, GPTJ, FALCON, LLAMA, MISTRAL, QWEN2, COHERE)
}
