"""Documents: the text in a file is translated and everything else stays.

Each format has a module with `open_*(data, language, ...) -> Document`. What an upload may unpack to, which names its members may
have and that no XML declares entities is checked in `packed.py` before anything is parsed.
"""
