"""Text for the built-in models that is made by rules: names, numbers, words, what people really type.

Everything here works on pairs (English, German). It never takes a sentence of `benchmarks/checks`, nor a name of its kind `names`.
"""
