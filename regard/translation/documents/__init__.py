"""Document formats: the text of a file is translated and everything else keeps its bytes.

Each family of formats has a module with `open_*(data, ...) -> Document`. A file that cannot be read raises `InputError`. Archives
are checked in `archives.py` (size, member names, no XML entities) before anything in them is parsed.
"""
