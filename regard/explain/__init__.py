"""Explains one translation: attention, candidates, the beam and saliency, as data, a page or a figure."""
