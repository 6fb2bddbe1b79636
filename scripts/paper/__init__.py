"""The walk through the paper: its text, and what turns it into docs/paper.md and docs/paper.ipynb."""
