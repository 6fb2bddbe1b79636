"""One translation looked into: attention, candidates, the beam and saliency, as data, as a page and as a figure."""
