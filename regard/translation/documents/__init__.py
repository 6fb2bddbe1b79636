"""Document formats: the text of a file is translated and everything else keeps its bytes.

Each format has a module with `open_*(data, ...) -> Document`. A file that cannot be read raises `InputError`. Word and PowerPoint
files are checked in `office.py` (size, member names, no XML entities) before anything in them is parsed.
"""
