"""Markup inside texts: parsed into runs of plain text for translation, and put back around the translated words."""
